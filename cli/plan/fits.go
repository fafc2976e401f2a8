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

// fileKind is a group of file formats whose weights take the same bytes each once they are loaded.
type fileKind struct {
	names string
	bytes int
}

// fileKinds returns the groups. Quantised files keep their size (docs/files.md): --model with the file counts them.
func fileKinds() []fileKind { return []fileKind{{"f16, bf16", 2}, {"f32", 4}} }

// cardSizes returns memory sizes of common cards in GiB, cardCounts how many of them are tried.
func cardSizes() []int64 { return []int64{12, 16, 24, 32, 48, 80, 96} }

func cardCounts() []int { return []int{1, 2, 4, 8} }

// fits prints, as a Markdown table, the fastest plan that fits by released model, kind of file, size of a card and
// number of cards. Sizes with the same plans share a row.
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

// between fills in the cells between two known ones. A plan that is fastest with less memory and with more is fastest
// with any amount in between.
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
