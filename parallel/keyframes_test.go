package parallel

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// TestBadKeyframesAreRefused checks that the error names the branch and what is expected.
func TestBadKeyframesAreRefused(t *testing.T) {
	e := newEngine(t)
	const mask = "entry 0 has frames that guide the video with a mask that is not made of numbers from 0 on, one for " +
		"each pixel of the latent's frames of 3 x 2"
	for _, c := range []struct {
		want  string
		spoil func(k []dit.Keyframes)
	}{
		{mask, func(k []dit.Keyframes) { k[0].Mask = k[0].Mask[1:] }},
		{mask, func(k []dit.Keyframes) { k[0].Mask = []float32{} }},
		{mask, func(k []dit.Keyframes) { k[0].Mask[3] = -0.5 }},
		{mask, func(k []dit.Keyframes) { k[0].Mask[3] = float32(math.NaN()) }},
		{"fewer tokens than fit the latent's frames of 3 x 2", func(k []dit.Keyframes) { k[1].Every = 2 }},
		{"weights that are no numbers from 0 on", func(k []dit.Keyframes) { k[1].Weight = -1 }},
		{"want the same for positive and negative", nil},
	} {
		r := tinyRequest(t, "ltx", 1, 6, 3, 1)
		for _, b := range r.Branches {
			for i := range b.Entries {
				if c.spoil != nil {
					c.spoil(b.Entries[i].Keyframes)
				}
			}
		}
		if c.spoil == nil {
			r.Branches[1].Entries[0].Keyframes[0].Mask[3] = 0.5
		}
		_, err := e.Sample(context.Background(), r, func(request.Progress) error { return nil })
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.BadInput || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want a refusal with %q", err, c.want)
		}
	}
}
