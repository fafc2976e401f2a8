package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"patchbay/cli/console"
	"patchbay/models/published"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// fileForm is a group of file formats whose weights take the same bytes, in the file and once they are loaded.
type fileForm struct {
	bits  string
	names []string
	bytes float64 // of a weight, with its share of factors
}

func fileForms() []fileForm {
	return []fileForm{
		{"16", []string{"f16", "bf16"}, 2},
		{"8", []string{"fp8", "int8", "mxfp8", "q8_0"}, 1.0625}, // a factor of 16 bits for 32 weights
		{"4", []string{"nvfp4", "q4_0", "q4_k"}, 0.5625},        // one of 8 bits for 16, or of 16 bits for 32
	}
}

// formOf returns the bytes of a weight of --file.
func formOf(name string) (bytes float64, err error) {
	var names []string
	for _, form := range fileForms() {
		if slices.Contains(form.names, strings.ToLower(name)) {
			return form.bytes, nil
		}
		names = append(names, form.names...)
	}
	return 0, fmt.Errorf("--file %s: want one of %s", name, strings.Join(names, ", "))
}

// cardSizes returns memory sizes of common cards in GiB.
func cardSizes() []int64 { return []int64{8, 12, 16, 24, 32, 48, 80, 96} }

// fits prints, as a Markdown table, what the devices do with every released model by form of its file and memory of a
// card, the rows of each model as soon as they are known: those of a picture of --size, then those of a usual video if
// the model makes one. Forms with equal cells share a row.
func (f *Flags) fits(out io.Writer) error {
	models := published.Names()
	if f.Model != "" {
		models = []string{f.Model}
	}
	head := []string{"model", "bits"}
	for _, size := range cardSizes() {
		head = append(head, fmt.Sprintf("%d GB", size))
	}
	console.Printf(out, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, model := range models {
		of := *f
		of.Model = model
		if err := of.rows(out, model); err != nil {
			return err
		}
		m, err := of.open()
		if err != nil {
			return console.BadInput(err)
		}
		if c := m.Clip; c.Pictures > 0 {
			of.frames, of.Size = c.Pictures, fmt.Sprintf("%dx%d", c.Width, c.Height)
			if err := of.rows(out, fmt.Sprintf("%s%s%d of %s", model, videoMark, of.frames, of.Size)); err != nil {
				return err
			}
		}
	}
	return nil
}

// videoMark stands between the name of a model and the size of its video.
const videoMark = ", video: "

// rows prints the rows of one model, whose first cell is name.
func (f *Flags) rows(out io.Writer, name string) error {
	search, err := f.Search()
	if err != nil {
		return console.BadInput(err)
	}
	if search.Cluster.Mixed != nil {
		return console.BadInput(fmt.Errorf("--fits --devices %s: want one kind of card", f.Devices))
	}
	var bits, cells []string
	row := func() {
		if bits != nil {
			console.Printf(out, "| %s | %s | %s |\n", name, strings.Join(bits, ", "), strings.Join(cells, " | "))
		}
	}
	for _, form := range fileForms() {
		next := fitting(search, form.bytes)
		if !slices.Equal(next, cells) {
			row()
			bits, cells = nil, next
		}
		bits = append(bits, form.bits)
	}
	row()
	return nil
}

// fitting returns a cell for each size of a card: "yes" if one card keeps all weights, how many times as long the run
// takes where some come from host memory, the fastest plan of several cards, or "-" if nothing fits.
func fitting(search forecast.Search, weightBytes float64) []string {
	search.Cluster.Device.WeightBytes = weightBytes
	resident := 0.
	cell := func(size int64) string {
		search.Cluster.Device.Memory = size << 30
		best, ok := search.Fastest()
		switch {
		case !ok:
			return "-"
		case best.Plan.Ranks() > 1:
			return best.Plan.String()
		case best.Plan.Stream == 0:
			return "yes"
		}
		if resident == 0 {
			resident = search.Simulate(plan.OneRank()).Seconds
		}
		return fmt.Sprintf("%.1f x", best.Seconds/resident)
	}
	sizes := cardSizes()
	cells, last := make([]string, len(sizes)), len(sizes)-1
	cells[0], cells[last] = cell(sizes[0]), cell(sizes[last])
	between(cells, 0, last, func(i int) string { return cell(sizes[i]) })
	return cells
}

// between fills in the cells between two known ones. What is fastest with less memory and with more is fastest with any
// amount in between.
func between(cells []string, low, high int, cell func(int) string) {
	if high-low < 2 {
		return
	}
	mid := (low + high) / 2
	if cells[mid] = cells[low]; cells[low] != cells[high] {
		cells[mid] = cell(mid)
	}
	between(cells, low, mid, cell)
	between(cells, mid, high, cell)
}
