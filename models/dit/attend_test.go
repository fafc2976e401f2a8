package dit

import (
	"testing"

	"patchbay/engine"
)

// heads counts calls of QKNormRoPE and computes nothing.
type heads struct {
	engine.Ops
	calls int
}

func (h *heads) QKNormRoPE(_, _, _, _, _, _ engine.Tensor, _ engine.QKNorm, _ engine.RoPE) { h.calls++ }

// TestNormaliseLeavesPlainHeadsAlone checks that rows without a norm and a rotation, as SD3's, cost no pass over them,
// and that text and image with one norm cost one call.
func TestNormaliseLeavesPlainHeadsAlone(t *testing.T) {
	tensor := func(shape ...int) engine.Tensor { return engine.NewTensor(engine.Buf{}, engine.F32, shape...) }
	q, tables := tensor(1, 5, 2, 8), engine.RoPE{Cos: tensor(5, 4), Sin: tensor(5, 4)}
	rms := engine.QKNorm{Kind: engine.RMSNorm}
	weighted, alike := rms, rms
	weighted.QScale = engine.NewTensor(engine.Buf{Dev: 64}, engine.F32, 8)
	alike.QScale = engine.NewTensor(engine.Buf{Dev: 128}, engine.F32, 8)
	for name, c := range map[string]struct {
		text, image engine.QKNorm
		rope        engine.RoPE
		want        int
	}{
		"nothing":        {want: 0},
		"one norm":       {text: weighted, image: weighted, want: 1},
		"two norms":      {text: weighted, image: alike, want: 2},
		"the image's":    {image: rms, want: 1},
		"rotations only": {rope: tables, want: 1},
	} {
		a := Attention{Q: q, K: q, V: q, TextNorm: c.text, ImageNorm: c.image, RoPE: c.rope}
		a.Rows.Text, a.Rows.Image = Range{End: 2}, Range{End: 3}
		ops := &heads{}
		if Normalise(ops, a); ops.calls != c.want {
			t.Errorf("%s: %d calls, want %d", name, ops.calls, c.want)
		}
	}
}
