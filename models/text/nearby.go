package text

import (
	"patchbay/engine"
	"patchbay/models/weights"
)

// isGemma3 reports whether the language model under a prefix is Gemma 3 of 12 billion parameters: not that of 4
// billion, which other networks read, and no Gemma 4, whose layers have a factor.
func isGemma3(set *weights.Set, prefix string) bool {
	return set.Has(prefix+lmSandwichKey) && !set.Has(prefix+"model.layers.0.layer_scalar") &&
		set.Dim(prefix+"model.embed_tokens.weight", 1) != 2560
}

// nearby says which layers of a language model see only what is nearby, with rotations of their own, and what divides
// the rotations of the others. The zero value: all layers are alike.
type nearby struct {
	window  int // of tokens that such a layer sees, its own included
	every   int // the last of so many layers sees all
	theta   float64
	stretch float64
}

// gemma3 returns what Gemma 3 has (arXiv:2503.19786, sec. 2).
func gemma3() nearby { return nearby{window: 1024, every: 6, theta: 1e4, stretch: 8} }

func (n nearby) some() bool { return n.window > 0 }

// sees reports whether layer i sees only what is nearby.
func (n nearby) sees(i int) bool { return n.some() && i%n.every != n.every-1 }

// near is what those layers read: their rotations, and a bias [1, L, L] that hides what is too far away, if a prompt is
// that long.
type near struct {
	rope engine.RoPE
	bias engine.Tensor
}

// room allocates what l tokens need from a.
func (n nearby) room(a *engine.Arena, l, d int) (out near) {
	if !n.some() {
		return out
	}
	out.rope = engine.RoPE{Cos: a.Alloc(engine.F32, l, d/2), Sin: a.Alloc(engine.F32, l, d/2)}
	if l > n.window {
		out.bias = a.Alloc(engine.F32, 1, l, l)
	}
	return out
}

// hidden is added to scores of keys that are too far away.
const hidden = -1e30

// near fills what layers read that see what is nearby, for tokens at their positions.
func (c LMConfig) near(ops engine.Ops, n near, at [][3]int) {
	if !c.nearby.some() {
		return
	}
	cos, sin := c.rotation(at, c.nearby.theta, 0)
	ops.Upload(n.rope.Cos, cos)
	ops.Upload(n.rope.Sin, sin)
	if n.bias.IsZero() {
		return
	}
	ops.Fill(n.bias, 0)
	for i := c.nearby.window; i < len(at); i++ {
		ops.Fill(n.bias.Slice(1, i, i+1).Slice(2, 0, i+1-c.nearby.window), hidden)
	}
}
