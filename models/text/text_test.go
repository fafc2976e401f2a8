package text_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/flux"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// demo is the folder of the trained demo checkpoint.
const demo = "../../examples/demo"

// demoSet opens one of the demo's text encoders.
func demoSet(t testing.TB, name string) (*weights.Set, []byte) {
	t.Helper()
	if _, err := os.Stat(demo); err != nil {
		t.Skipf("NOT RUN: the demo checkpoint is missing: %v", err)
	}
	f, err := safetensors.Open(filepath.Join(demo, "text_encoders", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return weights.FromFile(f), []byte(f.Metadata()["config"])
}

func tokens(ids []float32) [][]tokenizer.Token {
	var chunk []tokenizer.Token
	for _, id := range ids {
		chunk = append(chunk, tokenizer.Token{ID: int(id), Weight: 1})
	}
	return [][]tokenizer.Token{chunk}
}

// TestDemo compares the states of both encoders with those of PyTorch for the same ids.
func TestDemo(t *testing.T) {
	clipSet, clipConfig := demoSet(t, "demo_clip.safetensors")
	t5Set, t5Config := demoSet(t, "demo_t5.safetensors")
	for name, ops := range backends(t) {
		clip, err := text.OpenCLIP(ops, clipSet, clipConfig)
		if err != nil {
			t.Fatal(err)
		}
		t5, err := text.OpenT5(ops, t5Set, t5Config)
		if err != nil {
			t.Fatal(err)
		}
		for prompt := range 3 {
			f, err := safetensors.Open(filepath.Join(demo, "reference", fmt.Sprintf("prompt%d.safetensors", prompt)))
			if err != nil {
				t.Fatal(err)
			}
			textEnv := env(t, ops)
			a, err := clip.Encode(textEnv, tokens(values(t, f, "clip_ids")), text.Form{Norm: true})
			if err != nil {
				t.Fatal(err)
			}
			b, err := t5.Encode(textEnv, tokens(values(t, f, "t5_ids")), text.Form{})
			if err != nil {
				t.Fatal(err)
			}
			e := entry(t, flux.Family(), map[string]*text.Encoding{"clip_l": &a, "t5": &b})
			compare(t, fmt.Sprintf("%s demo prompt %d pooled", name, prompt), e.Pooled, values(t, f, "clip_pooled"), tolerance)
			compare(t, fmt.Sprintf("%s demo prompt %d t5", name, prompt), e.Context.Data, values(t, f, "t5_output"), tolerance)
			f.Close()
		}
		clip.Close()
		t5.Close()
	}
}

// TestVectors checks that a token with the embedding of an id gives the same states as the id.
func TestVectors(t *testing.T) {
	ops := ref.New()
	c := load(t, "clip-l-tiny").clip(t, ops)
	plain := []tokenizer.Token{
		{ID: 49406, Weight: 1},
		{ID: 777, Weight: 1},
		{ID: 778, Weight: 1.5},
		{ID: 49407, Weight: 1},
	}
	vector := slices.Clone(plain)
	row := golden.Fill("clip-l-tiny/text_model.embeddings.token_embedding.weight", 779*64, 1, 0)
	vector[1] = tokenizer.Token{ID: tokenizer.None, Weight: 1, Vector: row[777*64 : 778*64]}
	vector[2] = tokenizer.Token{ID: tokenizer.None, Weight: 1.5, Vector: row[778*64:]}
	var got [2]text.Encoding
	for i, chunk := range [][]tokenizer.Token{plain, vector} {
		var err error
		if got[i], err = c.Encode(text.Env{Ops: ops}, [][]tokenizer.Token{chunk}, text.Form{Norm: true}); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, "states", got[1].Context.Data, got[0].Context.Data, 0)
	compare(t, "pooled", got[1].Pooled, got[0].Pooled, 0)
}

// TestManyChunks checks that chunks do not affect each other, however they are batched.
func TestManyChunks(t *testing.T) {
	ops := ref.New()
	m := load(t, "t5-tiny").t5(t, ops)
	var chunks [][]tokenizer.Token
	for i := range 11 {
		chunk := []tokenizer.Token{{ID: 100 + i, Weight: 1}, {ID: 1, Weight: 1}, {ID: 0, Weight: 1}}
		chunks = append(chunks, chunk[:3-i/6])
	}
	all, err := m.Encode(text.Env{Ops: ops}, chunks, text.Form{Masked: true})
	if err != nil {
		t.Fatal(err)
	}
	var want []float32
	var valid []int
	for _, chunk := range chunks {
		one, err := m.Encode(text.Env{Ops: ops}, [][]tokenizer.Token{chunk}, text.Form{Masked: true})
		if err != nil {
			t.Fatal(err)
		}
		want, valid = append(want, one.Context.Data...), append(valid, one.Valid...)
	}
	compare(t, "eleven chunks", all.Context.Data, want, 1e-6)
	if all.Context.Rows != 6*3+5*2 || !slices.Equal(all.Valid, valid) || all.ValidLen() != 2 {
		t.Errorf("%d rows, mask %v of length %d; want %d rows, mask %v of length 2", all.Context.Rows, all.Valid,
			all.ValidLen(), 28, valid)
	}
}

// TestLayers checks that an inner layer of T5 equals the output of a model that ends there, and that a layer beyond the
// model means the last one.
func TestLayers(t *testing.T) {
	ops := ref.New()
	set, _, err := goldenweights.Set("t5-tiny")
	if err != nil {
		t.Fatal(err)
	}
	short := map[string]weights.Stored{}
	for _, n := range set.Names() {
		if !strings.HasPrefix(n, "encoder.block.1.") {
			short[n], _ = set.Get(n)
		}
	}
	one, err := text.OpenT5(ops, weights.FromMap(short), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	chunks := tokens([]float32{5, 6, 1})
	run := func(m *text.T5, layer int) []float32 {
		e, err := m.Encode(text.Env{Ops: ops}, chunks, text.Form{Layer: layer})
		if err != nil {
			t.Fatal(err)
		}
		return e.Context.Data
	}
	both := load(t, "t5-tiny").t5(t, ops)
	compare(t, "layer -2 of 2", run(both, -2), run(one, 0), 0)
	compare(t, "layer -1 of 2", run(both, -1), run(both, 0), 0)
	compare(t, "layer -9 of 2", run(both, -9), run(both, 0), 0)
}

// TestBF16 checks that states with bf16 activations equal those with f32 up to bf16's 8 bits.
func TestBF16(t *testing.T) {
	ops := ref.New()
	chunk := tokens([]float32{49406, 7, 8, 9, 49407})
	chunk[0][2].Weight = 1.5
	c := load(t, "clip-l-tiny").clip(t, ops)
	var got [2]text.Encoding
	for i, dtype := range []engine.DType{engine.F32, engine.BF16} {
		var err error
		if got[i], err = c.Encode(text.Env{Ops: ops, DType: dtype}, chunk, text.Form{Layer: -2, Project: true}); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, "CLIP states", got[1].Context.Data, got[0].Context.Data, 0.05)
	compare(t, "CLIP pooled", got[1].Pooled, got[0].Pooled, 0.05)
	if slices.Equal(got[0].Pooled, got[1].Pooled) {
		t.Error("bf16 changed nothing")
	}
	m := load(t, "t5-tiny").t5(t, ops)
	for i, dtype := range []engine.DType{engine.F32, engine.BF16} {
		var err error
		if got[i], err = m.Encode(text.Env{Ops: ops, DType: dtype}, tokens([]float32{5, 6, 7, 1}),
			text.Form{}); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, "T5 states", got[1].Context.Data, got[0].Context.Data, 0.05)
}

func TestCheckStops(t *testing.T) {
	ops := ref.New()
	stop := errors.New("stop")
	calls := 0
	textEnv := text.Env{Ops: ops, Check: func() error {
		if calls++; calls == 2 {
			return stop
		}
		return nil
	}}
	if _, err := load(t, "clip-l-tiny").clip(t, ops).Encode(textEnv, tokens([]float32{5}),
		text.Form{Norm: true}); !errors.Is(err, stop) || calls != 2 {
		t.Errorf("CLIP: got %v after %d calls", err, calls)
	}
	calls = 0
	if _, err := load(t, "t5-tiny").t5(t, ops).Encode(textEnv, tokens([]float32{5}), text.Form{}); !errors.Is(err, stop) ||
		calls != 2 {
		t.Errorf("T5: got %v after %d calls", err, calls)
	}
}

func TestRefusals(t *testing.T) {
	ops := ref.New()
	textEnv := text.Env{Ops: ops}
	c := load(t, "clip-l-tiny").clip(t, ops)
	for want, chunks := range map[string][][]tokenizer.Token{
		"without chunks":                    nil,
		"has id 49408":                      tokens([]float32{49408}),
		"has 78 tokens, allowed are 1..77":  tokens(make([]float32, 78)),
		"chunk 0 has 0 tokens":              {{}},
		"has 3 values, this encoder has 64": {{{ID: tokenizer.None, Weight: 1, Vector: make([]float32, 3)}}},
	} {
		if _, err := c.Encode(textEnv, chunks, text.Form{Norm: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	files := map[string]*weights.Set{}
	for _, bad := range []struct{ model, config, want string }{
		{"clip-l-tiny", `{"num_attention_heads": 3}`, "num_attention_heads is 3, must divide"},
		{"clip-l-tiny", `{"hidden_act": "tanh"}`, `activation "tanh", allowed are`},
		{"clip-l-tiny", `{"num_hidden_layers": 4}`, "missing"},
		{"clip-l-tiny", `{"vocab_size": 5}`, "vocab_size is 5"},
		{"clip-l-tiny", `[]`, "text encoder config"},
		{"t5-tiny", `{"num_heads": 2}`, "num_heads is 2, the file has 4"},
		{"t5-tiny", `{"is_gated_act": false}`, "is_gated_act is false"},
		{"bert-tiny", `{"max_position_embeddings": 4}`, "max_position_embeddings is 4, the file has 512"},
	} {
		file, ok := files[bad.model]
		if !ok {
			file = load(t, bad.model).set
			files[bad.model] = file
		}
		var err error
		switch bad.model {
		case "clip-l-tiny":
			_, err = text.OpenCLIP(ops, file, []byte(bad.config))
		case "t5-tiny":
			_, err = text.OpenT5(ops, file, []byte(bad.config))
		default:
			_, err = text.OpenBERT(ops, file, []byte(bad.config))
		}
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s %s: error is %v, want one with %q", bad.model, bad.config, err, bad.want)
		}
	}
	if _, err := text.OpenBERT(ops, weights.FromMap(nil), nil); err == nil ||
		!strings.Contains(err.Error(), "0 encoders of kind bert") {
		t.Errorf("an empty file: error is %v", err)
	}
}

// TestFind checks that the encoders of a full checkpoint are detected by names alone.
func TestFind(t *testing.T) {
	one := weights.Stored{Shape: []int{1, 1}}
	big := weights.Stored{Shape: []int{250112, 8}}
	set := weights.FromMap(map[string]weights.Stored{
		"text_encoders.clip_l.transformer.text_model.embeddings.token_embedding.weight":  one,
		"text_encoders.clip_g.transformer.text_model.embeddings.token_embedding.weight":  one,
		"text_encoders.clip_g.transformer.text_model.encoder.layers.30.mlp.fc1.weight":   one,
		"text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight": one,
		"text_encoders.mt5xl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight": one,
		"text_encoders.mt5xl.transformer.shared.weight":                                  big,
		"text_encoders.hydit_clip.transformer.bert.embeddings.word_embeddings.weight":    one,
		"model.diffusion_model.img_in.weight":                                            one,
		"xtext_model.embeddings.token_embedding.weight":                                  one,
	})
	const p = "text_encoders."
	want := []text.Part{
		{Kind: "clip_g", Prefix: p + "clip_g.transformer."},
		{Kind: "clip_l", Prefix: p + "clip_l.transformer."},
		{Kind: "bert", Prefix: p + "hydit_clip.transformer."},
		{Kind: "mt5", Prefix: p + "mt5xl.transformer."},
		{Kind: "t5", Prefix: p + "t5xxl.transformer."},
	}
	if got := text.Find(set); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestDenseForm loads a T5 of the older form (ReLU without gate) below a prefix, with the table under its other name,
// and compares one token with the formula: attention to itself alone returns the token's own value.
func TestDenseForm(t *testing.T) {
	ops := ref.New()
	gated, _, err := goldenweights.Set("t5-tiny")
	if err != nil {
		t.Fatal(err)
	}
	old, by := map[string]weights.Stored{}, map[string][]float32{}
	for _, n := range gated.Names() {
		if strings.HasSuffix(n, "wi_1.weight") {
			continue
		}
		s, _ := gated.Get(n)
		n = strings.Replace(n, "wi_0", "wi", 1)
		by[n] = s.F32()
		old["t5xxl.transformer."+strings.Replace(n, "shared.weight", "encoder.embed_tokens.weight", 1)] = s
	}
	m, err := text.OpenT5(ops, weights.FromMap(old), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const id, width = 9, 64
	got, err := m.Encode(text.Env{Ops: ops}, tokens([]float32{id}), text.Form{})
	if err != nil {
		t.Fatal(err)
	}
	x := slices.Clone(by["shared.weight"][id*width : (id+1)*width])
	for i := range 2 {
		p := fmt.Sprintf("encoder.block.%d.layer.", i)
		v := times(by[p+"0.SelfAttention.v.weight"], rms(x, by[p+"0.layer_norm.weight"]))
		add(x, times(by[p+"0.SelfAttention.o.weight"], v))
		h := times(by[p+"1.DenseReluDense.wi.weight"], rms(x, by[p+"1.layer_norm.weight"]))
		for k := range h {
			h[k] = max(h[k], 0)
		}
		add(x, times(by[p+"1.DenseReluDense.wo.weight"], h))
	}
	compare(t, "one token", got.Context.Data, rms(x, by["encoder.final_layer_norm.weight"]), 1e-5)
}

// rms returns x / sqrt(mean(x^2) + 1e-6) * w.
func rms(x, w []float32) []float32 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(float64(v)/math.Sqrt(sum/float64(len(x))+1e-6)) * w[i]
	}
	return out
}

// times returns the product of a matrix [N, K] and a vector [K].
func times(m, x []float32) []float32 {
	out := make([]float32, len(m)/len(x))
	for n := range out {
		sum := 0.0
		for k, v := range x {
			sum += float64(m[n*len(x)+k]) * float64(v)
		}
		out[n] = float32(sum)
	}
	return out
}

func add(x, y []float32) {
	for i, v := range y {
		x[i] += v
	}
}
