package plan

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"

	"patchbay/models/published"
)

// The table of `patchbay plan --fits --host-memory 32G` in docs/parallel.md is between these lines.
const (
	fitsBegin = "<!-- fits: PATCHBAY_WRITE_FITS=1 go test ./cli/plan -run TestFits -->\n"
	fitsEnd   = "<!-- /fits -->\n"
)

// TestFits compares docs/parallel.md with what the command prints, and the table with the released numbers of
// parameters: a card holds no more than it has, a model that card and host memory hold together runs, and a video needs
// no smaller card than a picture.
func TestFits(t *testing.T) {
	if testing.Short() {
		t.Skip("long: it plans for every model; TestFitsSeveralCards for two")
	}
	const path, host = "../../docs/parallel.md", 32 << 30
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), fitsBegin)
	documented, after, ends := strings.Cut(rest, fitsEnd)
	if !ok || !ends {
		t.Fatalf("%s has no markers for the table", path)
	}
	var out bytes.Buffer
	f := Flags{Size: "1024x1024", Devices: "1x4090-pcie", HostMemory: "32G", Batch: 1, Warmup: 1}
	if err := f.fits(&out); err != nil {
		t.Fatal(err)
	}
	switch {
	case out.String() == documented:
	case os.Getenv("PATCHBAY_WRITE_FITS") != "":
		if err := os.WriteFile(path, []byte(before+fitsBegin+out.String()+fitsEnd+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has\n%s\nthe command prints\n%s", path, documented, out.String())
	}
	forms := map[string]float64{"16": 2, "8": 1, "4": 0.5}
	seen, pictures, want := map[string]bool{}, map[string][]string{}, 0 // models and bits; cells of pictures
	for _, name := range published.Names() {
		m, err := published.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if want += len(fileForms()); m.Clip.Pictures > 0 {
			want += len(fileForms())
		}
	}
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		model, _, video := strings.Cut(cells[0], videoMark)
		m, err := published.Find(model)
		if err != nil {
			continue // head and rule
		}
		for bits := range strings.SplitSeq(cells[1], ", ") {
			seen[cells[0]+"/"+bits] = true
			if key := model + "/" + bits; !video {
				pictures[key] = cells
			} else {
				for i, cell := range cells {
					if of := pictures[key][i]; i > 1 && (cell == "yes" && of != "yes" || cell != "-" && of == "-") {
						t.Errorf("%s in %s bits on %d GB: %s, a picture %s", cells[0], bits, cardSizes()[i-2], cell, of)
					}
				}
			}
			bytes := forms[bits] * 1e9 * m.Billions // a little less than there are
			for i, cell := range cells[2:] {
				card := float64(cardSizes()[i] << 30)
				slower, err := strconv.ParseFloat(strings.TrimSuffix(cell, " x"), 64)
				switch {
				case cell == "yes" && bytes > 1.02*card:
					t.Errorf("%s in %s bits, %.1f GB, stays on a card of %d GB", cells[0], bits, bytes/1e9, cardSizes()[i])
				case cell == "-" && bytes*1.0625 < 0.5*card+host && !m.Spec.Whole:
					t.Errorf("%s in %s bits, %.1f GB, does not run on %d GB beside 32 GB of host memory", cells[0], bits,
						bytes/1e9, cardSizes()[i])
				case cell != "yes" && cell != "-" && (err != nil || !(slower >= 1 && slower < 100)):
					t.Errorf("%s in %s bits on %d GB: %q", cells[0], bits, cardSizes()[i], cell)
				}
			}
		}
	}
	if len(seen) != want {
		t.Errorf("%d rows of models, videos and forms, want %d:\n%s", len(seen), want, out.String())
	}
}

// TestFitsSeveralCards checks the plans of several cards against the sizes of FLUX.1-dev, 11.9 billion parameters, and
// FLUX.2-dev, 32 billion, without host memory.
func TestFitsSeveralCards(t *testing.T) {
	for _, c := range []struct {
		model, cards string
		fits         string // in 16 bits, by size of a card
	}{
		{"flux-dev", "1", "----++++"}, {"flux-dev", "2", "--++++++"}, {"flux2-dev", "2", "-----+++"},
	} {
		f := Flags{Model: c.model, Size: "1024x1024", Devices: c.cards + "x4090-pcie", Batch: 1, Warmup: 1, exact: true}
		search, err := f.Search()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, cell := range fitting(search, 2) {
			got += map[bool]string{true: "-", false: "+"}[cell == "-"]
		}
		if got != c.fits {
			t.Errorf("%s on %s cards: %s, want %s for %v GB", c.model, c.cards, got, c.fits, cardSizes())
		}
	}
}
