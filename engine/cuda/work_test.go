//go:build cgo && fakegpu

package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
)

// TestWorkInPTX counts, in the committed PTX, the instructions of a warp for a KB that a kernel reads and writes (the
// tensors with a row a token; what all rows share is in caches), in shapes of FLUX.1 and its autoencoder. An H200
// issues 220 in the time in which its memory moves a KB, if nothing stalls; at two thirds of that and above the kernel
// is bound by instructions. Results are compared with ref too.
func TestWorkInPTX(t *testing.T) {
	if os.Getenv("FAKEGPU_FROM") != "ptx" || os.Getenv("PATCHBAY_TEST_CUDA") != "" {
		t.Skip("NOT RUN: only kernels translated from PTX are counted (FAKEGPU_FROM=ptx, make cuda-check)")
	}
	o := openOps(t)
	const tokens, heads, d, e, pixels, channels = 64, 24, 128, 3072, 64, 128
	const row, picture = 2 * tokens * e, 2 * pixels * pixels * channels
	normalised := func(m *bench) engine.Tensor {
		x := m.normal(engine.BF16, 1, pixels, pixels, channels)
		s := engine.NewTensor(m.normal(engine.F32, 1, 32, 4).Buf, engine.F64, 1, 32, 2)
		m.ops.GroupNormStats(s, x, 32)
		m.ops.GroupNormApply(x, x, s, m.normal(engine.F32, channels), m.normal(engine.F32, channels),
			pixels*pixels*channels/32, 1e-6, engine.SiLU)
		return x
	}
	for _, c := range []struct {
		name, kernel string
		bytes, most  int
		call         func(m *bench) engine.Tensor
	}{
		{"LayerNorm", "pb_norm", 2 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 1, tokens, e)
			m.ops.LayerNorm(y, y, m.normal(engine.F32, e), m.normal(engine.F32, e), 1e-6)
			return y
		}},
		{"RMSNorm", "pb_norm", 2 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 1, tokens, e)
			m.ops.RMSNorm(y, y, m.normal(engine.F32, e), 1e-6)
			return y
		}},
		{"AdaLN", "pb_norm", 2 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 1, tokens, e)
			m.ops.AdaLN(y, y, m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e), 1e-6)
			return y
		}},
		{"AdaLN of two items", "pb_norm", 2 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 2, tokens/2, e)
			m.ops.AdaLN(y, y, m.normal(engine.F32, 2, e), m.normal(engine.F32, 2, e), 1e-6)
			return y
		}},
		{"QKNormRoPE", "pb_heads", 4 * row, 120, func(m *bench) engine.Tensor {
			all := m.normal(engine.BF16, 1, tokens, 3*e)
			q, k := all.Slice(2, 0, e).Split(2, heads, d), all.Slice(2, e, 2*e).Split(2, heads, d)
			n := engine.QKNorm{Kind: engine.RMSNorm, Eps: 1e-6, QScale: m.normal(engine.F32, d), KScale: m.normal(engine.F32, d)}
			r := engine.RoPE{Cos: m.normal(engine.F32, tokens, d/2), Sin: m.normal(engine.F32, tokens, d/2)}
			m.ops.QKNormRoPE(q, k, engine.Tensor{}, q, k, engine.Tensor{}, n, r)
			return all
		}},
		{"GatedAdd", "pb_pointwise", 3 * row, 120, func(m *bench) engine.Tensor {
			y, r := m.normal(engine.BF16, 1, tokens, e), m.normal(engine.BF16, 1, tokens, e)
			m.ops.GatedAdd(y, y, m.normal(engine.F32, 1, e), r, m.normal(engine.F32, e))
			return y
		}},
		{"GatedAdd and AdaLN", "pb_norm_added", 4 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 2, 1, tokens, e)
			x, h, r := y.Index(0, 0), y.Index(0, 1), m.normal(engine.BF16, 1, tokens, e)
			gate, shift, scale := m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e)
			bias := m.normal(engine.F32, e)
			m.ops.GatedAdd(x, x, gate, r, bias)
			m.ops.AdaLN(h, x, shift, scale, 1e-6)
			return y
		}},
		{"GatedAdd and AdaLN beside AdaLN", "pb_norm_pair", 6 * row, 120, func(m *bench) engine.Tensor {
			y := m.normal(engine.BF16, 3, 1, tokens, e)
			x, h, r := y.Index(0, 0), y.Index(0, 1), m.normal(engine.BF16, 1, tokens, e)
			gate, shift, scale := m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e)
			m.ops.GatedAdd(x, x, gate, r, engine.Tensor{})
			m.ops.AdaLN(h, x, shift, scale, 1e-6)
			m.ops.AdaLN(y.Index(0, 2), y.Index(0, 2), scale, shift, 1e-6)
			return y
		}},
		{"ActivateMul", "pb_pointwise", 3 * row, 120, func(m *bench) engine.Tensor {
			y, b := m.normal(engine.BF16, 1, tokens, e), m.normal(engine.BF16, 1, tokens, e)
			m.ops.ActivateMul(y, y, b, engine.SiLU)
			return y
		}},
		{"Copy of a peer's heads", "pb_copy", 2 * 2 * tokens * 3 * d, 120, func(m *bench) engine.Tensor {
			y, x := m.normal(engine.BF16, 1, tokens, e), m.normal(engine.BF16, 1, tokens, 3*d)
			m.ops.Copy(y.Slice(2, 0, 3*d), x)
			return y
		}},
		{"Copy in four dimensions", "pb_copy", 2 * row, 120, func(m *bench) engine.Tensor {
			y, x := m.normal(engine.BF16, tokens, 2, 4, 6, d/2), m.normal(engine.BF16, tokens, 6, 4, 2, d/2)
			m.ops.Copy(y, x.Transpose(1, 3))
			return y
		}},
		{"GroupNormStats", "pb_group_part", picture, 300, func(m *bench) engine.Tensor {
			return normalised(m)
		}},
		{"GroupNormApply", "pb_group_apply", 2 * picture, 160, func(m *bench) engine.Tensor {
			return normalised(m)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "count")
			t.Setenv("FAKEGPU_COUNT", path)
			compare(t, o, 1.0/128, c.call)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			launches, all := 0, 0
			for line := range strings.Lines(string(text)) {
				var kernel string
				var n int
				if _, err := fmt.Sscan(line, &kernel, &n); err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(kernel, "pb_pointwise") && strings.HasPrefix(c.kernel, "pb_norm_") {
					t.Errorf("a launch of %s beside", kernel)
				}
				if strings.HasPrefix(kernel, c.kernel) && kernel != kernels[kCopyNarrow].name { // of uploads
					launches, all = launches+1, all+n
				}
			}
			got := float64(all) / 32 / (float64(c.bytes) / 1024)
			t.Logf("%.0f instructions of a warp for a KB, %d launches", got, launches)
			if launches != 1 || !(got > 0 && got <= float64(c.most)) {
				t.Errorf("%.1f instructions a KB in %d launches, want at most %d in one", got, launches, c.most)
			}
		})
	}
}

// added returns calls that add r to x, with or without a gate and a bias, and add the norm of the sum to it. In pieces,
// one launch does the first two.
func added(gated, biased, rms bool) func(m *bench, x engine.Tensor) {
	return func(m *bench, x engine.Tensor) {
		e := x.Dim(-1)
		shape := append(x.Shape()[:2], x.Stride(1))
		r, h := m.normal(x.DType, shape...).Slice(2, 0, e), m.normal(x.DType, shape...).Slice(2, 0, e)
		m.ops.Copy(r, x)
		m.rng = newRand() // in either layout
		var gate, bias engine.Tensor
		if gated {
			gate = m.normal(engine.F32, 2, e)
		}
		if biased {
			bias = m.normal(engine.F32, e)
		}
		w, shift := m.normal(engine.F32, 1, e), m.normal(engine.F32, 1, e)
		m.ops.GatedAdd(x, x, gate, r, bias) // nothing may come between this and the norm
		switch {
		case rms:
			m.ops.RMSNorm(h, x, w.Index(0, 0), 1e-6)
		case gated:
			m.ops.AdaLN(h, x, shift, w, 1e-6)
		default:
			m.ops.LayerNorm(h, x, engine.Tensor{}, engine.Tensor{}, 1e-6)
		}
		m.ops.Add(x, x, h)
	}
}

// TestSumsJoinNorms checks which gated sums are computed in the launch of the norm that follows: not where another
// call is between them, where the norm reads other rows, or where it writes what the sum reads. Likewise which norm of
// other rows joins them: not where it reads what they write, or writes what they read or write, or rows have another
// length. The results are those of ref.
func TestSumsJoinNorms(t *testing.T) {
	o := openOps(t)
	const l, e = 5, 640
	for _, c := range []struct {
		name     string
		launches int64 // of sum and norm, and what is between them
		call     func(m *bench, all, gate engine.Tensor)
	}{
		{"in a row", 1, func(m *bench, all, gate engine.Tensor) {
			m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.AdaLN(all.Index(0, 2), all.Index(0, 0), gate, gate, 1e-6)
		}},
		{"to another place", 1, func(m *bench, all, gate engine.Tensor) {
			m.ops.GatedAdd(all.Index(0, 3), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.AdaLN(all.Index(0, 2), all.Index(0, 3), gate, gate, 1e-6)
		}},
		{"a call between", 3, func(m *bench, all, gate engine.Tensor) {
			m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.Add(all.Index(0, 0), all.Index(0, 0), all.Index(0, 3))
			m.ops.AdaLN(all.Index(0, 2), all.Index(0, 0), gate, gate, 1e-6)
		}},
		{"other rows", 2, func(m *bench, all, gate engine.Tensor) {
			m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.AdaLN(all.Index(0, 2).Slice(1, 1, l), all.Index(0, 0).Slice(1, 1, l), gate, gate, 1e-6)
		}},
		{"in place", 2, func(m *bench, all, gate engine.Tensor) {
			m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.AdaLN(all.Index(0, 0), all.Index(0, 0), gate, gate, 1e-6)
		}},
		{"over the addend", 2, func(m *bench, all, gate engine.Tensor) {
			flat := all.Merge(1).Merge(0)
			m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
			m.ops.AdaLN(flat.Slice(0, l+1, 2*l+1).Unsqueeze(0), all.Index(0, 0), gate, gate, 1e-6)
		}},
		{"and another norm", 1, func(m *bench, all, gate engine.Tensor) {
			scale := m.normal(engine.F32, 1, e)
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 4).Slice(1, 0, 2), all.Index(0, 5).Slice(1, 1, 3), gate, scale, 1e-5)
		}},
		{"and another norm in place", 1, func(m *bench, all, gate engine.Tensor) {
			w := m.normal(engine.F32, e)
			sumAndNorm(m, all, gate)
			m.ops.RMSNorm(all.Index(0, 4), all.Index(0, 4), w, 1e-5)
		}},
		{"and a norm of other memory", 1, func(m *bench, all, gate engine.Tensor) {
			rows := m.normal(engine.F32, 1, l, e)
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(rows, rows, gate, gate, 1e-6)
			m.ops.Copy(all.Index(0, 4), rows)
		}},
		{"and two other norms", 2, func(m *bench, all, gate engine.Tensor) {
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 4), all.Index(0, 4), gate, gate, 1e-6)
			m.ops.AdaLN(all.Index(0, 5), all.Index(0, 5), gate, gate, 1e-6)
		}},
		{"and a norm of the norm", 2, func(m *bench, all, gate engine.Tensor) {
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 4), all.Index(0, 2), gate, gate, 1e-6)
		}},
		{"and a norm of the sum", 2, func(m *bench, all, gate engine.Tensor) {
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 4), all.Index(0, 0), gate, gate, 1e-5)
		}},
		{"and a norm over the addend", 2, func(m *bench, all, gate engine.Tensor) {
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 1), all.Index(0, 4), gate, gate, 1e-5)
		}},
		{"and a norm with the norm as scale", 2, func(m *bench, all, gate engine.Tensor) {
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(all.Index(0, 4), all.Index(0, 5), gate, all.Index(0, 2).Index(0, 0).Slice(0, 0, 1), 1e-5)
		}},
		{"and a norm over the gate", 2, func(m *bench, all, gate engine.Tensor) {
			row := all.Index(0, 3).Index(0, 0).Slice(0, 0, 1)
			sumAndNorm(m, all, row)
			m.ops.AdaLN(all.Index(0, 3), all.Index(0, 5), gate, gate, 1e-5)
		}},
		{"and a longer row", 2, func(m *bench, all, gate engine.Tensor) {
			flat := all.Index(0, 3).Merge(1).Split(1, 1, l*e)
			sumAndNorm(m, all, gate)
			m.ops.AdaLN(flat, flat, engine.Tensor{}, engine.Tensor{}, 1e-5)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			launches := int64(0)
			compare(t, o, 1e-4, func(m *bench) engine.Tensor {
				all, gate := m.normal(engine.F32, 6, 1, l, e), m.normal(engine.F32, 1, e)
				before := o.dev.Counts().Launches
				c.call(m, all, gate)
				o.Flush()
				launches = o.dev.Counts().Launches - before
				return all
			})
			if launches != c.launches {
				t.Errorf("%d launches, want %d", launches, c.launches)
			}
		})
	}
}

// layerNorm returns the norm of heads of d elements, with random weights.
func layerNorm(m *bench, d int) engine.QKNorm {
	return engine.QKNorm{
		Kind: engine.LayerNorm, Eps: 1e-6, QScale: m.normal(engine.F32, d), KScale: m.normal(engine.F32, d),
		QBias: m.normal(engine.F32, d), KBias: m.normal(engine.F32, d),
	}
}

// sumAndNorm adds part 1 of all to part 0 and writes the norm of the sum to part 2.
func sumAndNorm(m *bench, all, gate engine.Tensor) {
	m.ops.GatedAdd(all.Index(0, 0), all.Index(0, 0), gate, all.Index(0, 1), engine.Tensor{})
	m.ops.AdaLN(all.Index(0, 2), all.Index(0, 0), gate, gate, 1e-6)
}

// TestHeadsJoin checks which heads are normalised and rotated in the launch of those of the tokens before: not where
// they are not the next tokens, in both operands and the tables, differ in more than weights, or write what the others
// read. The results are those of ref.
func TestHeadsJoin(t *testing.T) {
	o := openOps(t)
	const h, d, text, l = 3, 64, 3, 8
	type operands struct {
		from, to engine.Tensor // [2, l, 3*h*d]
		rope     engine.RoPE
		norms    [2]engine.QKNorm // of text and image
	}
	heads := func(m *bench, c *operands, to, from engine.Tensor, lo, hi, table int, n engine.QKNorm) {
		part := func(t engine.Tensor, i int) engine.Tensor {
			return t.Slice(1, lo, hi).Slice(2, i*h*d, (i+1)*h*d).Split(2, h, d)
		}
		r := engine.RoPE{}
		if !c.rope.Cos.IsZero() {
			r.Cos, r.Sin = c.rope.Cos.Slice(0, table, table+hi-lo), c.rope.Sin.Slice(0, table, table+hi-lo)
		}
		m.ops.QKNormRoPE(part(to, 0), part(to, 1), part(to, 2), part(from, 0), part(from, 1), part(from, 2), n, r)
	}
	for _, c := range []struct {
		name     string
		launches int64
		call     func(m *bench, c *operands)
	}{
		{"in place", 1, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.to, text, l, text, c.norms[1])
		}},
		{"to another place", 1, func(m *bench, c *operands) {
			heads(m, c, c.to, c.from, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.from, text, l, text, c.norms[1])
		}},
		{"not rotated", 1, func(m *bench, c *operands) {
			c.rope = engine.RoPE{}
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.to, text, l, text, c.norms[1])
		}},
		{"three", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.to, text, text+2, text, c.norms[1])
			heads(m, c, c.to, c.to, text+2, l, text+2, c.norms[0])
		}},
		{"a call between", 3, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			m.ops.Add(c.to, c.to, c.from)
			heads(m, c, c.to, c.to, text, l, text, c.norms[1])
		}},
		{"a gap", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.to, text+1, l, text, c.norms[1])
		}},
		{"other tables", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.to, text, l, text-1, c.norms[1])
		}},
		{"other sources", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			heads(m, c, c.to, c.from, text, l, text, c.norms[1])
		}},
		{"another kind", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			c.norms[1].Kind = engine.LayerNorm
			heads(m, c, c.to, c.to, text, l, text, c.norms[1])
		}},
		{"another epsilon", 2, func(m *bench, c *operands) {
			heads(m, c, c.to, c.to, 0, text, 0, c.norms[0])
			c.norms[1].Eps = 0.1
			heads(m, c, c.to, c.to, text, l, text, c.norms[1])
		}},
		{"over what was read", 2, func(m *bench, c *operands) {
			shifted := c.from.Slice(1, 0, l-text)
			up := func(lo, hi int, n engine.QKNorm) { // from tokens lo to hi to the text tokens before them
				heads(m, &operands{}, shifted.Slice(1, lo, hi), c.from.Slice(1, lo+text, hi+text), 0, hi-lo, 0, n)
			}
			up(0, text, c.norms[0])
			up(text, l-text, c.norms[1])
		}},
	} {
		for _, dtype := range []engine.DType{engine.F32, engine.BF16} {
			t.Run(c.name+"/"+dtype.String(), func(t *testing.T) {
				launches := int64(0)
				compare(t, o, map[engine.DType]float64{engine.F32: 1e-4, engine.BF16: 1.0 / 128}[dtype],
					func(m *bench) engine.Tensor {
						all := m.normal(dtype, 2, 2, l, 3*h*d)
						a := operands{from: all.Index(0, 0), to: all.Index(0, 1)}
						a.rope = engine.RoPE{Cos: m.normal(engine.F32, l, d/2), Sin: m.normal(engine.F32, l, d/2)}
						for i := range a.norms {
							a.norms[i] = engine.QKNorm{
								Kind: engine.RMSNorm, Eps: 1e-6, QScale: m.normal(engine.F32, d), KScale: m.normal(engine.F32, d),
							}
						}
						before := o.dev.Counts().Launches
						c.call(m, &a)
						o.Flush()
						launches = o.dev.Counts().Launches - before
						return all
					})
				if launches != c.launches {
					t.Errorf("%d launches, want %d", launches, c.launches)
				}
			})
		}
	}
}

// TestPiecesHaveTheSameBits checks that rows which cannot be read in 16-byte pieces, and so take other kernels, have
// the bits of those that can.
func TestPiecesHaveTheSameBits(t *testing.T) {
	o := openOps(t)
	for name, call := range map[string]func(m *bench, x engine.Tensor){
		"LayerNorm": func(m *bench, x engine.Tensor) {
			m.ops.LayerNorm(x, x, m.normal(engine.F32, x.Dim(-1)), m.normal(engine.F32, x.Dim(-1)), 1e-6)
		},
		"RMSNorm": func(m *bench, x engine.Tensor) { m.ops.RMSNorm(x, x, m.normal(engine.F32, x.Dim(-1)), 1e-6) },
		"AdaLN": func(m *bench, x engine.Tensor) {
			m.ops.AdaLN(x, x, m.normal(engine.F32, 2, x.Dim(-1)), m.normal(engine.F32, 2, x.Dim(-1)), 1e-6)
		},
		"QKNormRoPE": func(m *bench, x engine.Tensor) {
			d := x.Dim(-1) / 5
			h := x.Split(2, 5, d)
			n := layerNorm(m, d)
			r := engine.RoPE{Cos: m.normal(engine.F32, 3, d/2), Sin: m.normal(engine.F32, 3, d/2)}
			none := engine.Tensor{}
			m.ops.QKNormRoPE(none, h, none, none, h, none, n, r)
			n.Kind, n.QBias, n.KBias = engine.RMSNorm, none, none
			m.ops.QKNormRoPE(none, h, none, none, h, none, n, r)
		},
		"GatedAdd": func(m *bench, x engine.Tensor) {
			m.ops.GatedAdd(x, x, m.normal(engine.F32, 2, x.Dim(-1)), x, m.normal(engine.F32, x.Dim(-1)))
		},
		"GatedAdd and AdaLN":   added(true, true, false),
		"GatedAdd and RMSNorm": added(true, false, true),
		"sum and LayerNorm":    added(false, false, false),
		"sum and RMSNorm":      added(false, true, true),
		"norms of two streams": func(m *bench, x engine.Tensor) {
			r := m.normal(x.DType, append(x.Shape()[:2], x.Stride(1))...).Slice(2, 0, x.Dim(-1))
			m.ops.Copy(r, x)
			m.rng = newRand() // in either layout
			vector := func() engine.Tensor { return m.normal(engine.F32, 2, x.Dim(-1)) }
			gate, shift, scale, shift2, scale2 := vector(), vector(), vector(), vector(), vector()
			text, image, h := x.Slice(1, 0, 1), x.Slice(1, 1, 3), r.Slice(1, 1, 3)
			m.ops.GatedAdd(image, image, gate, h, engine.Tensor{})
			m.ops.AdaLN(h, image, shift, scale, 1e-6)
			m.ops.AdaLN(r.Slice(1, 0, 1), text, shift2, scale2, 1e-6)
			m.ops.Add(x, x, r)
		},
		"heads of two streams": func(m *bench, x engine.Tensor) {
			d := x.Dim(-1) / 5
			h := x.Split(2, 5, d)
			r := engine.RoPE{Cos: m.normal(engine.F32, 3, d/2), Sin: m.normal(engine.F32, 3, d/2)}
			part := func(lo, hi int) {
				n := layerNorm(m, d)
				k := h.Slice(1, lo, hi)
				r := engine.RoPE{Cos: r.Cos.Slice(0, lo, hi), Sin: r.Sin.Slice(0, lo, hi)}
				m.ops.QKNormRoPE(engine.Tensor{}, k, engine.Tensor{}, engine.Tensor{}, k, engine.Tensor{}, n, r)
			}
			part(0, 1)
			part(1, 3)
		},
		"ActivateMul": func(m *bench, x engine.Tensor) { m.ops.ActivateMul(x, x, x, engine.SiLU) },
		"Activate":    func(m *bench, x engine.Tensor) { m.ops.Activate(x, x, engine.GELUTanh) },
	} {
		for _, dtype := range []engine.DType{engine.BF16, engine.F32} {
			for _, cols := range []int{360, 640, 2000} {
				run := func(gap int) []float32 {
					return results(t, o, func(m *bench) engine.Tensor {
						values := m.normal(dtype, 2, 3, cols)
						x := m.normal(dtype, 2, 3, cols+gap).Slice(2, 0, cols)
						m.ops.Copy(x, values)
						m.rng = newRand()
						call(m, x)
						m.ops.Copy(values, x)
						return values
					})
				}
				if (name == "QKNormRoPE" || name == "heads of two streams") && cols > 640 {
					continue
				}
				if whole, odd := run(0), run(1); !slices.Equal(whole, odd) {
					t.Errorf("%s of %s, %d columns: other bits", name, dtype, cols)
				}
			}
		}
	}
}
