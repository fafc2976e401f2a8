package plan

import (
	"fmt"
	"io"
	"slices"
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

// fileKinds are the kinds of files: fp8 is widened to bf16; int8 and GGUF take what the file does (docs/files.md).
func fileKinds() []fileKind { return []fileKind{{"f16, bf16, fp8", 2}, {"f32", 4}} }

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
	if search.Cluster.Mixed != nil {
		return nil, console.BadInput(fmt.Errorf("--fits --devices %s: want one kind of card", one.Devices))
	}
	d := &search.Cluster.Device
	d.WeightBytes = float64(kind.bytes)
	sizes := cardSizes()
	table := make([][]string, len(sizes)) // by size, then by number of cards
	for _, n := range cardCounts() {
		search.Cluster.PerHost = n
		best := func(i int) string {
			d.Memory = sizes[i] << 30
			if choice, ok := search.Fastest(); ok {
				return choice.Plan.String()
			}
			return "-"
		}
		cells := make([]string, len(sizes))
		last := len(sizes) - 1
		cells[0], cells[last] = best(0), best(last)
		between(cells, 0, last, best)
		for i, c := range cells {
			table[i] = append(table[i], c)
		}
	}
	first := 0 // the first size of the last row
	for i, cells := range table {
		if i > 0 && slices.Equal(table[first], cells) {
			rows[len(rows)-1][2] = fmt.Sprintf("%d to %d GB", sizes[first], sizes[i])
			continue
		}
		first = i
		rows = append(rows, append([]string{model, kind.names, strconv.FormatInt(sizes[i], 10) + " GB"}, cells...))
	}
	return rows, nil
}

// between fills in the cells between two that are known. What is fastest with less memory and with more is so with any
// size between.
func between(cells []string, low, high int, best func(int) string) {
	if high-low < 2 {
		return
	}
	mid := (low + high) / 2
	if cells[mid] = cells[low]; cells[low] != cells[high] {
		cells[mid] = best(mid)
	}
	between(cells, low, mid, best)
	between(cells, mid, high, best)
}
