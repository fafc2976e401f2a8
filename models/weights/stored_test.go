package weights

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/ref"
)

func TestConcatAndRows(t *testing.T) {
	a, b := f32(0, 3, 2), f32(100, 2, 2) // values from 0 and from 100 on
	c, err := Concat(a, b, a)
	if err != nil || !slices.Equal(c.Shape, []int{8, 2}) {
		t.Fatalf("shape %v, error %v", c.Shape, err)
	}
	want := slices.Concat(a.F32(), b.F32(), a.F32())
	if got := c.F32(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for lo := 0; lo <= 16; lo++ {
		for hi := lo; hi <= 16; hi++ {
			got := make([]float32, hi-lo)
			engine.Widen(got, c.Elements(lo, hi), engine.F32)
			if !slices.Equal(got, want[lo:hi]) {
				t.Fatalf("elements [%d, %d): got %v, want %v", lo, hi, got, want[lo:hi])
			}
		}
	}
	for _, whole := range []Stored{c, f32(0, 8, 2)} {
		all := whole.F32()
		part, err := whole.Rows(2, 3)
		if err != nil || !slices.Equal(part.Shape, []int{3, 2}) || !slices.Equal(part.F32(), all[4:10]) {
			t.Errorf("rows 2..5: shape %v, %v, error %v; want %v", part.Shape, part.F32(), err, all[4:10])
		}
		for _, bad := range [][2]int{{-1, 1}, {8, 1}, {0, 9}, {0, -1}} {
			if _, err := whole.Rows(bad[0], bad[1]); err == nil {
				t.Errorf("rows %v of 8 must be refused", bad)
			}
		}
	}
}

func TestConcatOfDifferentTypesIsF32(t *testing.T) {
	scaled := Stored{DType: engine.F8E4M3, Shape: []int{1, 2}, Data: []byte{0x38, 0x40}, Scale: 3} // 1 and 2
	half := Stored{DType: engine.BF16, Shape: []int{1, 2}, Data: []byte{0x80, 0x3f, 0x00, 0xc0}}   // 1 and -2
	c, err := Concat(scaled, half)
	if err != nil || c.DType != engine.F32 || c.Scale != 0 || !slices.Equal(c.F32(), []float32{3, 6, 1, -2}) {
		t.Errorf("got %s %v, error %v; want f32 [3 6 1 -2]", c.DType, c.F32(), err)
	}
	same, err := Concat(scaled, scaled)
	if err != nil || same.DType != engine.F8E4M3 || same.Scale != 3 || !slices.Equal(same.F32(), []float32{3, 6, 3, 6}) {
		t.Errorf("got %s %v, error %v; want fp8 that widens to [3 6 3 6]", same.DType, same.F32(), err)
	}
	for _, bad := range [][]Stored{
		{},
		{{}},
		{f32(0, 1, 2), f32(0, 1, 3)},
		{f32(0, 1, 2), f32(0, 2)},
		{{DType: 255, Shape: []int{1}}},
	} {
		if _, err := Concat(bad...); err == nil {
			t.Errorf("%v must be refused", bad)
		}
	}
}

// TestCutsOfMadeElementsAreThoseOfData compares every kind of cut from elements computed on demand and from Data.
func TestCutsOfMadeElementsAreThoseOfData(t *testing.T) {
	values := make([]float32, 12*32)
	for i := range values {
		values[i] = float32(i%29) - 14
	}
	opt := Options{
		Dims:  map[string]int{"E": 4, "K": 32},
		Perms: map[string][]int{"turned": {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
	}
	whole, err := gguf.OpenBytes(ggufwrite.File(map[string]any{
		"general.architecture": "llama", "llama.attention.head_count": uint32(3),
	}, []ggufwrite.Tensor{
		{Name: "w", Type: gguf.Q8v0, Shape: []int{12, 32}, Data: ggufwrite.Quantise(gguf.Q8v0, values)},
		{Name: "blk.0.attn_q.weight", Type: gguf.Q8v0, Shape: []int{12, 32}, Data: ggufwrite.Quantise(gguf.Q8v0, values)},
		{Name: "c", Type: gguf.Q4v0, Shape: []int{12, 8, 2, 2}, Data: ggufwrite.Quantise(gguf.Q4v0, values)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	set, err := FromGGUF(whole, engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		tag         tag
		rank, ranks int
	}{
		{"w", tag{}, 0, 1},
		{"w", tag{rows: "E:3E"}, 0, 1},
		{"w", tag{perm: "turned"}, 0, 1},
		{"w", tag{split: "rows 3E"}, 1, 2},
		{"w", tag{split: "cols K"}, 1, 3},
		{"c", tag{conv: true}, 0, 1},
		{"model.layers.0.self_attn.q_proj.weight", tag{}, 0, 1},
		{"model.layers.0.self_attn.q_proj.weight", tag{rows: "E:3E"}, 0, 1},
		{"model.layers.0.self_attn.q_proj.weight", tag{perm: "turned"}, 0, 1},
	} {
		opt.Rank, opt.Ranks = c.rank, c.ranks
		f := filler{ops: ref.New(), opt: opt}
		made, _ := set.Get(c.name)
		held := made
		held.make, held.packed, held.Data = nil, nil, made.Elements(0, made.Len())
		cut, err := f.cut(item{tag: c.tag}, made)
		if err != nil {
			t.Fatal(err)
		}
		var a, b []byte
		got, want := cut.matrix(made, &a), cut.matrix(held, &b)
		if !slices.Equal(rowsOf(got), rowsOf(want)) || got.N != want.N || got.K != want.K || len(rowsOf(got)) == 0 {
			t.Errorf("%s %+v: %d rows of %d, want %d of %d, or other values", c.name, c.tag, got.N, got.K, want.N, want.K)
		}
	}
}

// rowsOf returns the widened rows of m without gaps.
func rowsOf(m engine.Matrix) []float32 {
	out, wide := make([]float32, m.N*m.K), m.Widened(m.DType)
	engine.Widen(out, wide.Data, m.DType)
	return out
}

func TestFromGGUF(t *testing.T) {
	values := make([]float32, 1<<20) // more than one goroutine's share
	for i := range values {
		values[i] = float32(i%251)/100 - 1
	}
	file := ggufwrite.File(map[string]any{"general.architecture": "flux"}, []ggufwrite.Tensor{
		{Name: "a", Type: gguf.Q6K, Shape: []int{1024, 1024}, Data: ggufwrite.Quantise(gguf.Q6K, values)},
		{Name: "b", Type: gguf.F16, Shape: []int{4}, Data: ggufwrite.Quantise(gguf.F16, values[:4])},
		{Name: "c", Type: gguf.F32, Shape: []int{4}, Data: ggufwrite.Quantise(gguf.F32, values[:4])},
	})
	f, err := gguf.OpenBytes(file)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := f.Entry("a")
	for _, form := range []engine.DType{engine.BF16, engine.F32} {
		set, err := FromGGUF(f, form)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := set.Get("a")
		want := ggufwrite.Widen(e, form)
		if a.DType != form || a.Data != nil || !bytes.Equal(a.Elements(0, a.Len()), want) {
			t.Errorf("a as %s: type %s, or values differ from those of the file", form, a.DType)
		}
		b, _ := set.Get("b")
		c, _ := set.Get("c")
		if b.DType != engine.F16 || c.DType != engine.F32 || b.Data == nil || c.Data == nil {
			t.Errorf("plain tensors: %s and %s, want views of f16 and f32", b.DType, c.DType)
		}
		size := 1 << 20 / 256 * 210 // as in the blocks of the file
		if form == engine.F32 {
			size = 4 << 20
		}
		if got, want := set.Bytes(), int64(size+8+16); got != want {
			t.Errorf("as %s: %d bytes, want %d", form, got, want)
		}
	}
	if _, err := FromGGUF(f, engine.F8E4M3); err == nil || !strings.Contains(err.Error(), "bf16, f32") {
		t.Errorf("fp8: got error %v", err)
	}
}

func TestFromGGUFRefuses(t *testing.T) {
	block := make([]byte, 18)
	rows := func(n int) []ggufwrite.Tensor {
		return []ggufwrite.Tensor{{Name: "blk.0.attn_q.weight", Type: gguf.F32, Shape: []int{n}, Data: block[:4*n]}}
	}
	for _, c := range []struct {
		words   map[string]any
		tensors []ggufwrite.Tensor
		want    string
	}{
		{nil, rows(1), `"" are not read (allowed: gemma2, gemma3, llama, qwen2, qwen2vl, qwen3, qwen3vl, t5, t5encoder)`},
		{map[string]any{"general.architecture": "mistral3"}, rows(1), `architecture "mistral3" are not read`},
		{map[string]any{"general.architecture": "llama"}, rows(4), "no llama.attention.head_count"},
		{
			map[string]any{"general.architecture": "llama", "llama.attention.head_count": uint32(3)},
			rows(4),
			"blk.0.attn_q.weight: shape [4] is not that of 3 heads",
		},
		{nil, []ggufwrite.Tensor{
			{Name: "y", Type: 20, Shape: []int{32}, Data: block},
			{Name: "x", Type: 20, Shape: []int{32}, Data: block},
		}, `2 of IQ4_NL, the first is "x"`},
		{map[string]any{"general.architecture": "t5"}, []ggufwrite.Tensor{
			{Name: "enc.blk.0.attn_q.weight", Type: gguf.F32, Shape: []int{1}, Data: block[:4]},
			{Name: "token_embd.weight", Type: gguf.F32, Shape: []int{1}, Data: block[:4]},
			{Name: "shared.weight", Type: gguf.F32, Shape: []int{1}, Data: block[:4]},
		}, `"shared.weight"`},
	} {
		f, err := gguf.OpenBytes(ggufwrite.File(c.words, c.tensors))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := FromGGUF(f, engine.BF16); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one with %q", err, c.want)
		}
	}
}

// BenchmarkWiden widens an eighth of FLUX's largest matrix, [21504, 3072], from blocks on all processors. It counts the
// bytes of the bf16 result.
func BenchmarkWiden(b *testing.B) {
	const n = 2688 * 3072
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%251)/100 - 1
	}
	for _, kind := range []gguf.Type{gguf.Q8v0, gguf.Q4v0, gguf.Q4K, gguf.Q5K, gguf.Q6K} {
		s := storedGGUF(gguf.Tensor{
			Name: "w", Type: kind, Shape: []int{2688, 3072}, Data: datafile.Of(ggufwrite.Quantise(kind, values)),
		}, engine.BF16)
		b.Run(kind.String(), func(b *testing.B) {
			var scratch []byte
			b.SetBytes(2 * n)
			for b.Loop() {
				s.elements(&scratch, 0, n)
			}
		})
	}
}

// TestLoadingHoldsOneWidenedMatrix checks that loading a struct from blocks needs working memory for the largest
// matrix, not for all.
func TestLoadingHoldsOneWidenedMatrix(t *testing.T) {
	var dst struct {
		W []struct {
			A *engine.Weight `weight:"a,nobias" shape:"N,K"`
		} `weight:"w"`
	}
	const n, k, count = 64, 96, 9
	dst.W = make([]struct {
		A *engine.Weight `weight:"a,nobias" shape:"N,K"`
	}, count)
	var tensors []ggufwrite.Tensor
	for i := range count {
		tensors = append(tensors, ggufwrite.Tensor{
			Name: fmt.Sprintf("w.%d.a.weight", i), Type: gguf.Q8v0, Shape: []int{n, k},
			Data: make([]byte, n*k/32*34),
		})
	}
	f, err := gguf.OpenBytes(ggufwrite.File(nil, tensors))
	if err != nil {
		t.Fatal(err)
	}
	set, err := FromGGUF(f, engine.BF16)
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Dims: map[string]int{"N": n, "K": k}}
	p, err := plan(&dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.check(set); err != nil {
		t.Fatal(err)
	}
	ops := ref.New()
	fill := filler{ops: ops, set: set, opt: opt, loaded: &Loaded{ops: ops}}
	if err := fill.fill(p.items); err != nil {
		t.Fatal(err)
	}
	defer fill.loaded.Close()
	if got, want := cap(fill.bytes), n*k*2; got > want || len(fill.loaded.packed) != count {
		t.Errorf("work memory of %d bytes for %d matrices, want at most %d: one matrix in bf16", got,
			len(fill.loaded.packed), want)
	}
}
