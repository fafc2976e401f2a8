package denoise

import (
	"slices"
	"testing"

	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// TestCachesCompareEveryEighthRowOfALayer checks that the elements compared are those of ComfyUI's EasyCache and
// LazyCache: x[..., ::8, ::8] of a latent [C, T, Y, X].
func TestCachesCompareEveryEighthRowOfALayer(t *testing.T) {
	const c, layers, y, x = 2, 3, 11, 18
	l := newLayout(c, 2, (&dit.Spec{PatchSize: 2}).FrameTokens(layers, layers*y, x), dit.Sound{}, nil)
	g := newGauge(l, 0, request.CacheEasy, 0)
	var got, want []int32
	for _, at := range g.elementsOf(&latentPart{n: len(l.order)}, l).compared {
		got = append(got, l.order[at])
	}
	slices.Sort(got)
	for row := range int32(c * layers * y) {
		for column := int32(0); column < x; column += 8 {
			if row%y%8 == 0 {
				want = append(want, row*x+column)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("places %v, want %v", got, want)
	}
}
