package graph

import (
	"testing"

	"patchbay/models/dit"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// TestConditioningsCountAllTheyHold checks that the memory of each array that an entry refers to is counted.
func TestConditioningsCountAllTheyHold(t *testing.T) {
	const n = 1000
	data, bare := make([]float32, n), sizeOf(value.Conditioning{{}})
	for name, c := range map[string]value.Cond{
		"context":        {Entry: dit.Entry{Context: dit.Array{Data: data}}},
		"second context": {Entry: dit.Entry{Context2: dit.Array{Data: data}}},
		"pooled":         {Entry: dit.Entry{Pooled: data}}, "size": {Entry: dit.Entry{Size: data}},
		"mask":                {Mask: &picture.Mask{Data: data}},
		"references":          {Latents: []request.Latent{{Data: data[:400]}, {Data: data[400:]}}},
		"concatenated latent": {ConcatImage: request.Latent{Data: data}},
		"concatenated mask":   {ConcatMask: &picture.Mask{Data: data}},
		"hints": {Controls: []*value.Control{
			{Image: &picture.Image{Data: data[:300]}}, {Image: &picture.Image{Data: data[300:]}},
		}},
	} {
		if got := sizeOf(value.Conditioning{c}) - bare; got != 4*n {
			t.Errorf("%s of %d values count as %d bytes", name, n, got)
		}
	}
}
