package plan

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"patchbay/cli/console"
	"patchbay/models/published"
)

// fileKind is the files whose weights take so many bytes each once they are loaded.
type fileKind struct {
	names string
	bytes int
}

// fileKinds are the kinds of files: fp8 and quantised GGUF weights are widened to bf16 (docs/files.md).
func fileKinds() []fileKind { return []fileKind{{"f16, bf16, fp8, GGUF", 2}, {"f32", 4}} }

// cardSizes are the memories of cards that people have, in GiB; cardCounts how many of them.
func cardSizes() []int64 { return []int64{12, 16, 24, 48, 80} }

func cardCounts() []int { return []int{1, 2, 4, 8} }

// fits prints the fastest plan that fits for released models, kinds of files, sizes of cards and numbers of them: a
// table in Markdown, in which sizes with the same plans share a row.
func (f *Flags) fits(out io.Writer) error {
	models := published.Names()
	if f.Model != "" {
		models = []string{f.Model}
	}
	var rows [][]string
	for _, model := range models {
		for _, kind := range fileKinds() {
			more, err := f.fitting(model, kind)
			if err != nil {
				return err
			}
			rows = append(rows, more...)
		}
	}
	head := []string{"model", "file", "a card has"}
	for _, n := range cardCounts() {
		head = append(head, fmt.Sprintf("%d x", n))
	}
	console.Printf(out, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, r := range rows {
		console.Printf(out, "| %s |\n", strings.Join(r, " | "))
	}
	return nil
}

// fitting is the rows of one model and kind of file.
func (f *Flags) fitting(model string, kind fileKind) (rows [][]string, err error) {
	one := *f
	one.Model = model
	search, err := one.Search()
	if err != nil {
		return nil, console.BadInput(err)
	}
	d := &search.Cluster.Device
	d.WeightBytes = kind.bytes
	first := int64(0) // size of the first card of the last row
	for _, size := range cardSizes() {
		d.Memory = size << 30
		var cells []string
		for _, n := range cardCounts() {
			search.Cluster.PerHost = n
			best, ok, err := search.Fastest()
			switch {
			case err != nil:
				return nil, err
			case ok:
				cells = append(cells, best.Plan.String())
			default:
				cells = append(cells, "-")
			}
		}
		if len(rows) > 0 && strings.Join(rows[len(rows)-1][3:], "|") == strings.Join(cells, "|") {
			rows[len(rows)-1][2] = fmt.Sprintf("%d to %d GB", first, size)
			continue
		}
		first = size
		rows = append(rows, append([]string{model, kind.names, strconv.FormatInt(size, 10) + " GB"}, cells...))
	}
	return rows, nil
}
