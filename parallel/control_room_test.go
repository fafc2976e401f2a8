package parallel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"patchbay/fault"
)

// TestNetsAreRefusedWhereWeightsDoNotFitTogether checks that nets and a model that fit alone but not together are
// refused, and that the same request runs where all fit.
func TestNetsAreRefusedWhereWeightsDoNotFitTogether(t *testing.T) {
	const part = 40 << 20
	for _, c := range []struct {
		room int64
		fits bool
	}{{200 << 20, true}, {3*part - 1, false}, {2*part - 1, false}} {
		e, err := NewPool(Config{NewOps: testOps, MemoryBytes: c.room})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		g := openGolden(t, "flux-c")
		r := parityRequest(t, g, "flux-c", 1, 4, 6, 1)
		netted(t, r, "flux-c")
		r.Model.WeightBytes = part
		for _, b := range r.Branches {
			for i := range b.Entries[0].Control {
				b.Entries[0].Control[i].Net.WeightBytes = part
			}
		}
		_, err = e.Sample(context.Background(), r, nil)
		var f *fault.Error
		switch {
		case c.fits && err != nil:
			t.Errorf("in %d bytes: %v", c.room, err)
		case !c.fits && (!errors.As(err, &f) || f.Code != fault.OutOfMemory || f.Field != "model" ||
			!strings.Contains(f.Text, "of 2 control nets do not fit into memory together")):
			t.Errorf("in %d bytes: got %v, want out_of_memory that names the nets", c.room, err)
		}
	}
}
