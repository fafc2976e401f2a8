package lora

import (
	"math"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/goldenrun"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// encoding is a text encoder of any type.
type encoding interface {
	Encode(env text.Env, chunks [][]tokenizer.Token) ([]float32, error)
	Close()
	adapt(ops engine.Ops, list []weights.LowRank) (encoding, error)
}

type clipEncoding struct{ *text.CLIP }

func (c clipEncoding) Encode(env text.Env, chunks [][]tokenizer.Token) ([]float32, error) {
	out, err := c.CLIP.Encode(env, chunks, text.Form{Project: true})
	return append(out.Context.Data, out.Pooled...), err
}

func (c clipEncoding) adapt(ops engine.Ops, list []weights.LowRank) (encoding, error) {
	a, err := c.Adapt(ops, list)
	if err != nil {
		return nil, err
	}
	return clipEncoding{a.(*text.CLIP)}, nil
}

type t5Encoding struct{ *text.T5 }

func (c t5Encoding) Encode(env text.Env, chunks [][]tokenizer.Token) ([]float32, error) {
	out, err := c.T5.Encode(env, chunks, text.Form{})
	return out.Context.Data, err
}

func (c t5Encoding) adapt(ops engine.Ops, list []weights.LowRank) (encoding, error) {
	a, err := c.Adapt(ops, list)
	if err != nil {
		return nil, err
	}
	return t5Encoding{a.(*text.T5)}, nil
}

type bertEncoding struct{ *text.BERT }

func (c bertEncoding) Encode(env text.Env, chunks [][]tokenizer.Token) ([]float32, error) {
	out, err := c.BERT.Encode(env, chunks, text.Form{})
	return out.Context.Data, err
}

func (c bertEncoding) adapt(ops engine.Ops, list []weights.LowRank) (encoding, error) {
	a, err := c.Adapt(ops, list)
	if err != nil {
		return nil, err
	}
	return bertEncoding{a.(*text.BERT)}, nil
}

func openEncoding(t *testing.T, ops engine.Ops, kind string, set *weights.Set, config []byte) encoding {
	t.Helper()
	var e encoding
	var err error
	switch kind {
	case "clip_l":
		var c *text.CLIP
		c, err = text.OpenCLIP(ops, set, config)
		e = clipEncoding{c}
	case "bert":
		var b *text.BERT
		b, err = text.OpenBERT(ops, set, config)
		e = bertEncoding{b}
	default:
		var c *text.T5
		c, err = text.OpenT5(ops, set, config)
		e = t5Encoding{c}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestTextEncodersUnmergedEqualMerged is TestUnmergedEqualsMerged for text encoders, through the names in LoRA files.
func TestTextEncodersUnmergedEqualMerged(t *testing.T) {
	for name, kind := range map[string]string{"clip-l-tiny": "clip_l", "t5-tiny": "t5", "bert-tiny": "bert"} {
		t.Run(name, func(t *testing.T) {
			set, config, err := goldenweights.Set(name)
			if err != nil {
				t.Fatal(err)
			}
			set = bare(t, set)
			e, file := Encoder{kind, map[string][]int{}}, map[string]weights.Stored{}
			for i, n := range set.Names() {
				shape := set.Shape(n)
				e.Shapes[n] = shape
				if matrix, ok := strings.CutSuffix(n, ".weight"); ok && multiplied(n) && len(shape) == 2 {
					r, module := 1+i%4, "text_encoders."+inside(kind)+matrix
					file[module+".lora_up.weight"] = tensor(golden.Fill("up "+matrix, shape[0]*r, 2, 0), shape[0], r)
					file[module+".lora_down.weight"] = tensor(golden.Fill("down "+matrix, shape[1]*r,
						0.5/math.Sqrt(float64(shape[1])), 0), r, shape[1])
				}
			}
			keys, all := Text([]Encoder{e}), weights.FromMap(file)
			m, err := Match(all, keys)
			if err != nil {
				t.Fatal(err)
			}
			list, err := Gather(all, ForPart(kind, m.Additions), strength)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) < 8 || 2*len(list) != len(file) {
				t.Fatalf("%d adapters of %d tensors", len(list), len(file))
			}
			ops, prompt := goldenrun.NewOps(), [][]tokenizer.Token{{
				{ID: 5, Weight: 1},
				{ID: 9, Weight: 1.2},
				{ID: 3, Weight: 1},
				{ID: 7, Weight: 1},
			}}
			plain := openEncoding(t, ops, kind, set, config)
			whole := openEncoding(t, ops, kind, merged(set, list), config)
			adapted, err := plain.adapt(ops, list)
			if err != nil {
				t.Fatal(err)
			}
			defer adapted.Close()
			var out [3][]float32
			for i, e := range []encoding{adapted, whole, plain} {
				if out[i], err = e.Encode(text.Env{Ops: ops}, prompt); err != nil {
					t.Fatal(err)
				}
			}
			worst, err := goldenrun.Compare(out[0], out[1], 1e-4)
			if err != nil {
				t.Fatalf("unmerged against merged: %v", err)
			}
			effect, err := goldenrun.Compare(out[0], out[2], 1e-2)
			if err == nil {
				t.Errorf("the adapters change the result by %.2g only", effect)
			}
			t.Logf("%d adapters: error %.2g, bound 1e-4; they change the result by %.2g", len(list), worst, effect)
		})
	}
}

// bare strips the prefix of the only encoder in a set.
func bare(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	parts := text.Find(set)
	if len(parts) != 1 {
		t.Fatalf("the set holds the encoders %v", parts)
	}
	return set.Prefix(parts[0].Prefix)
}
