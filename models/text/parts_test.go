package text_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"patchbay/engine"
	"patchbay/models/text"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// adder sums the tensors of n parts, which must call it in the same order.
type adder struct {
	mu      sync.Mutex
	arrived *sync.Cond
	n       int
	shown   [][]float32 // parts of the current sum
	sum     []float32   // the last complete sum
	rounds  int
}

func newAdder(n int) *adder {
	a := &adder{n: n}
	a.arrived = sync.NewCond(&a.mu)
	return a
}

// of returns the Env.Sum of a part.
func (a *adder) of(t *testing.T, ops engine.Ops) func(engine.Tensor) {
	return func(x engine.Tensor) {
		v := make([]float32, x.Len())
		if err := ops.Download(v, x).Wait(); err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		round := a.rounds
		if a.shown = append(a.shown, v); len(a.shown) == a.n {
			a.sum = make([]float32, len(v))
			for _, part := range a.shown {
				for i := range part {
					a.sum[i] += part[i]
				}
			}
			a.shown, a.rounds = nil, round+1
			a.arrived.Broadcast()
		}
		for round == a.rounds {
			a.arrived.Wait()
		}
		sum := a.sum // the next sum cannot complete without this part
		a.mu.Unlock()
		ops.Upload(x, sum)
	}
}

// languageModelOf returns random weights of a language model with 12 query heads and 4 key heads.
func languageModelOf() *weights.Set {
	const e, d, h, k, f = 96, 8, 12, 4, 300
	stored := map[string]weights.Stored{}
	add := func(name string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		v := golden.Input(name, n)
		for i := range v {
			v[i] = v[i]*0.2 + float32(2-len(shape))*0.5
		}
		data := make([]byte, 4*n)
		engine.Narrow(data, v, engine.F32)
		stored[name] = weights.Stored{DType: engine.F32, Shape: shape, Data: data}
	}
	add("model.embed_tokens.weight", 50, e)
	for i := range 2 {
		at := fmt.Sprintf("model.layers.%d.", i)
		add(at+"input_layernorm.weight", e)
		add(at+"post_attention_layernorm.weight", e)
		for name, rows := range map[string]int{"q": h, "k": k, "v": k} {
			add(at+"self_attn."+name+"_proj.weight", rows*d, e)
			add(at+"self_attn."+name+"_proj.bias", rows*d)
		}
		add(at+"self_attn.o_proj.weight", e, h*d)
		add(at+"mlp.gate_proj.weight", f, e)
		add(at+"mlp.up_proj.weight", f, e)
		add(at+"mlp.down_proj.weight", e, f)
	}
	add("model.norm.weight", e)
	return weights.FromMap(stored)
}

// adapted returns an encoder with an adapter on each kind of matrix of its second layer.
func adapted(t *testing.T, ops engine.Ops, set *weights.Set, net text.Net) text.Net {
	t.Helper()
	var list []weights.LowRank
	for _, kind := range []string{"self_attn.q", "self_attn.k", "self_attn.o", "mlp.up", "mlp.down"} {
		name := "model.layers.1." + kind + "_proj"
		low := func(what string, shape ...int) weights.Stored {
			data := make([]byte, 4*shape[0]*shape[1])
			engine.Narrow(data, golden.Input(name+what, shape[0]*shape[1]), engine.F32)
			return weights.Stored{DType: engine.F32, Shape: shape, Data: data}
		}
		list = append(list, weights.LowRank{
			Name: name, Scale: 0.1, Down: low("down", 3, set.Dim(name+".weight", 1)),
			Up: low("up", set.Dim(name+".weight", 0), 3),
		})
	}
	out, err := net.Adapt(ops, list)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

// TestPartsEqualTheWhole checks that every part of a language model cut evenly or unevenly, with and without adapters,
// computes the states of the whole model, with two sums per layer and one for the embeddings. A part must hold only its
// share of the matrices. An encoder that cannot be cut that often has fewer parts.
func TestPartsEqualTheWhole(t *testing.T) {
	ops, _ := fastest(backends(t))
	golden3, _, err := goldenweights.Set("qwen3-a")
	if err != nil {
		t.Fatal(err)
	}
	clip, _, err := goldenweights.Set("clip-l-tiny")
	if err != nil {
		t.Fatal(err)
	}
	small := languageModelOf()
	for _, c := range []struct {
		set         *weights.Set
		kind        string
		config      string
		parts, want int
	}{
		{golden3, "qwen3", "", 2, 2},
		{small, "qwen25_7b", `{"head_dim": 8}`, 2, 2},
		{small, "qwen25_7b", `{"head_dim": 8}`, 3, 3},
		{small, "qwen25_7b", `{"head_dim": 8}`, 4, 4},
		{small, "qwen25_7b", `{"head_dim": 8}`, 7, 4},
		{clip, "clip_l", "", 2, 1},
	} {
		t.Run(fmt.Sprintf("%s in %d", c.kind, c.parts), func(t *testing.T) {
			whole, err := text.OpenPart(ops, c.kind, c.set, []byte(c.config), 0, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer whole.Close()
			places := make([]engine.Ops, c.parts)
			for i := range places {
				places[i] = ops
			}
			parts, err := text.OpenParts(places, c.kind, c.set, []byte(c.config), 0)
			if err != nil {
				t.Fatal(err)
			}
			if len(parts) != c.want {
				t.Fatalf("%d parts, want %d", len(parts), c.want)
			}
			if c.want == 1 {
				parts[0].Close()
				return
			}
			chunks := tokens([]float32{5, 7, 33, 41, 1, 0, 2})
			form := text.Form{Taps: []int{0, 1, 2}}
			for _, adapt := range []bool{false, true} {
				whole, parts := whole, parts
				if adapt {
					whole = adapted(t, ops, c.set, whole)
					parts = slices.Clone(parts)
					for i := range parts {
						parts[i] = adapted(t, ops, c.set, parts[i])
					}
				}
				want, err := whole.Encode(text.Env{Ops: ops}, chunks, form)
				if err != nil {
					t.Fatal(err)
				}
				sum := newAdder(len(parts))
				var ended sync.WaitGroup
				for i, part := range parts {
					ops, _ := fastest(backends(t)) // an Ops serves one goroutine
					ended.Go(func() {
						got, err := part.Encode(text.Env{Ops: ops, Sum: sum.of(t, ops)}, chunks, form)
						if err != nil {
							t.Errorf("part %d: %v", i, err)
						}
						compare(t, fmt.Sprintf("part %d, adapted %v", i, adapt), got.Context.Data, want.Context.Data, 1e-5)
					})
				}
				ended.Wait()
				if layers := 2; sum.rounds != 1+2*layers {
					t.Errorf("%d sums, want one of the embeddings and two for each of %d layers", sum.rounds, layers)
				}
			}
			embeddings, matrices := int64(0), whole.Bytes()
			if n := int64(c.set.Dim("model.embed_tokens.weight", 0)); matrices > 0 {
				embeddings = 4 * n * int64(c.set.Dim("model.embed_tokens.weight", 1))
				matrices -= embeddings
			}
			for i, part := range parts {
				most := matrices/int64(c.want) + matrices/8 // all parts have norms, panels are padded, heads uneven
				if i == 0 {
					most += embeddings
				}
				if part.Bytes() > most {
					t.Errorf("part %d takes %d bytes, of the whole encoder's %d at most %d are wanted", i, part.Bytes(),
						whole.Bytes(), most)
				}
				t.Logf("part %d: %d bytes of %d", i, part.Bytes(), whole.Bytes())
				part.Close()
			}
		})
	}
}
