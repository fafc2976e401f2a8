// Package loratest checks what adapters call the weights of a family. It is for the tests in the family's folder, which
// have names written by hand from the formats of files.
package loratest

import (
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/models/family"
	"patchbay/models/lora"
	"patchbay/models/weights"
)

// Row is the matrix [N, K] that a module of a file adds to, and where.
type Row struct {
	Module string
	N, K   int
	Want   []Place
}

// Place is a range of rows of a weight, and the first row of the file's matrix that goes there.
type Place struct {
	Name               string
	First, Rows, UpRow int
}

// One returns the row of a module whose matrix goes to the rows of one weight from first on.
func One(module string, n, k int, name string, first int) Row {
	return Row{module, n, k, []Place{{name, first, n, 0}}}
}

// Check matches a file of each row alone with the tiny model of a family.
func Check(t *testing.T, f family.Family, rows ...Row) {
	t.Helper()
	d, err := f.Tiny.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	keys := lora.Diffusion(f.Name, f.Names, declared)
	const rank = 3
	zeros := func(n, k int) weights.Stored {
		return weights.Stored{DType: engine.F32, Shape: []int{n, k}, Data: make([]byte, 4*n*k)}
	}
	for _, r := range rows {
		m, err := lora.Match(weights.FromMap(map[string]weights.Stored{
			r.Module + ".lora_up.weight": zeros(r.N, rank), r.Module + ".lora_down.weight": zeros(rank, r.K),
		}), keys)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		var got []Place
		for _, a := range m.Additions {
			got = append(got, Place{a.Name, a.First, a.Rows, a.UpRow})
			if a.Part != "" {
				t.Errorf("%s %s: goes to part %q", f.Name, r.Module, a.Part)
			}
		}
		if !slices.Equal(got, r.Want) {
			t.Errorf("%s %s: got %+v, want %+v", f.Name, r.Module, got, r.Want)
		}
	}
}
