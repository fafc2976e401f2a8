package console

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"

	"patchbay/ipc/wire"
)

// Printf writes to an output stream of the command. Errors are ignored: if the reader is gone, as in a pipe to head,
// there is nobody left to report them to.
func Printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// PrintJSON writes one JSON line.
func PrintJSON(w io.Writer, v any) {
	b, err := wire.Encode(v, wire.JSON)
	if err != nil {
		b = fmt.Appendf(nil, `{"type":"unprintable","message":%q}`, err.Error())
	}
	Printf(w, "%s\n", b)
}

// PrintIndented writes v as indented JSON.
func PrintIndented(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// CloseQuietly closes c and ignores the error: c was only read, or is no longer needed.
func CloseQuietly(c io.Closer) { _ = c.Close() }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// PrintTable prints a table on a terminal, and tab-separated lines without a header elsewhere.
func PrintTable(out io.Writer, head []string, rows [][]string) {
	if !IsTerminal(out) {
		for _, r := range rows {
			Printf(out, "%s\n", strings.Join(r, "\t"))
		}
		return
	}
	tw := table.NewWriter()
	tw.SetOutputMirror(out)
	tw.SetStyle(table.StyleLight)
	tw.AppendHeader(cells(head))
	for _, r := range rows {
		tw.AppendRow(cells(r))
	}
	tw.Render()
}

// PrintColumns prints a table with a header and aligned columns, on a terminal and elsewhere. Line breaks inside a cell
// become spaces.
func PrintColumns(out io.Writer, head []string, rows [][]string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		line := make([]string, len(row))
		for i, cell := range row {
			line[i] = strings.Join(strings.Fields(cell), " ")
		}
		Printf(w, "%s\n", strings.Join(line, "\t"))
	}
	_ = w.Flush()
}

func cells(s []string) table.Row {
	row := make(table.Row, len(s))
	for i := range s {
		row[i] = s[i]
	}
	return row
}
