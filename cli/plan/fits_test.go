package plan

import (
	"bytes"
	"strings"
	"testing"

	"patchbay/models/published"
)

// TestFits checks rows of the table against sizes of weights known from elsewhere (models/published's tests: 11.9, 8.1
// and 2.1 billion parameters of 2 or 4 bytes): no card smaller than its part of them fits.
func TestFits(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it plans for every card; the tests beside it for some")
	}
	var out bytes.Buffer
	f := Flags{Size: "1024x1024", Devices: "4090-pcie", Batch: 1, Warmup: 1, exact: true}
	if err := f.fits(&out); err != nil {
		t.Fatal(err)
	}
	table := map[string][]string{} // model, bytes of a weight and size of a card -> a plan for 1, 2, 4 and 8 cards
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) != 7 {
			continue
		}
		first, last, _ := strings.Cut(strings.TrimSuffix(cells[2], " GB"), " to ")
		within := false
		for _, size := range []string{"12", "16", "24", "32", "48", "80", "96"} {
			within = within || size == first
			if within {
				table[cells[0]+"/"+map[bool]string{true: "4", false: "2"}[cells[1] == "f32"]+"/"+size] = cells[3:]
			}
			if size == last || last == "" {
				within = false
			}
		}
	}
	if models := len(published.Names()); len(table) != models*2*7 {
		t.Fatalf("%d rows, want one for each of %d models, 2 kinds of file and 7 sizes:\n%s", len(table), models,
			out.String())
	}
	for _, c := range []struct {
		row  string
		fits string // on 1, 2, 4, 8 cards
	}{
		{"flux-dev/2/12", "--++"},
		{"flux-dev/2/16", "-+++"},
		{"flux-dev/2/24", "-+++"},
		{"flux-dev/2/32", "++++"},
		{"flux-dev/2/48", "++++"},
		{"flux-dev/4/12", "---+"},
		{"flux-dev/4/24", "--++"},
		{"flux-dev/4/80", "++++"},
		{"flux2-dev/2/80", "++++"},
		{"flux2-dev/4/96", "-+++"},
		{"sd3.5-large/2/16", "-+++"},
		{"sd3.5-large/2/24", "++++"},
		{"sd3.5-large/4/24", "-+++"},
		{"sd3-medium/4/12", "++++"},
		{"hunyuandit/4/12", "++++"},
	} {
		got := ""
		for _, cell := range table[c.row] {
			got += map[bool]string{true: "-", false: "+"}[cell == "-"]
		}
		if got != c.fits {
			t.Errorf("%s: %q, want %s on 1, 2, 4 and 8 cards", c.row, table[c.row], c.fits)
		}
	}
}
