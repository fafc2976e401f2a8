package engine

import (
	"slices"
	"testing"
)

// TestRecorderSizesAPass records a small transformer block without memory and checks the recorded calls, shapes and
// operation counts, and the peak of the arena.
func TestRecorderSizesAPass(t *testing.T) {
	const b, l, h, d, e = 2, 5, 3, 4, 12
	r := NewRecorder()
	a := NewMeasuringArena("activations")
	qkv, err := r.Pack(Matrix{Data: make([]byte, 4*3*e*e), DType: F32, N: 3 * e, K: e}, 0)
	if err != nil {
		t.Fatal(err)
	}
	low, _ := r.Pack(Matrix{Data: make([]byte, 4*2*e), DType: F32, N: 2, K: e}, 0)
	up, _ := r.Pack(Matrix{Data: make([]byte, 4*3*e*2), DType: F32, N: 3 * e, K: 2}, 0)
	x := a.Alloc(F32, b, l, e)
	mark := a.Mark()
	y := a.Alloc(F32, b, l, 3*e)
	r.Linear(y, x, &Weight{Base: qkv, Adapters: []Adapter{{Down: low, Up: up, Scale: 1}}}, Epilogue{})
	heads := y.Split(2, 3, h, d)
	q, k, v := heads.Index(2, 0), heads.Index(2, 1), heads.Index(2, 2)
	r.QKNormRoPE(q, k, v, q, k, v, QKNorm{Kind: RMSNorm}, RoPE{})
	o := a.Alloc(F32, b, l, h, d)
	r.Attention(o, q, k, v, AttentionArgs{})
	r.GatedAdd(x, x, Tensor{}, o.Merge(2), Tensor{})
	a.Release(mark)
	host := []float32{7}
	if err := r.Download(host, a.Alloc(F32, 1)).Wait(); err != nil || host[0] != 7 {
		t.Errorf("download: got %v (%v), want the slice untouched", host, err)
	}
	wantLinears := []LinearShape{{10, 36, 12, 2}, {10, 2, 12, 0}, {10, 36, 2, 0}}
	if !slices.Equal(r.Linears, wantLinears) {
		t.Errorf("products: got %v, want %v", r.Linears, wantLinears)
	}
	strides := [3]int{l * 3 * e, 3 * e, d}
	if want := []AttentionShape{{
		B: b, H: h, Lq: l, Lk: l, D: d, DType: F32, Q: strides, K: strides, V: strides, O: [3]int{l * e, e, d}, Plain: true,
	}}; !slices.Equal(r.Attentions, want) {
		t.Errorf("attentions: got %v, want %v", r.Attentions, want)
	}
	for op, want := range map[string]int{
		"Pack": 3, "Linear": 1, "QKNormRoPE": 1, "Attention": 1, "GatedAdd": 1,
		"Download": 1, "Copy": 0,
	} {
		if r.Calls[op] != want {
			t.Errorf("calls of %s: got %d, want %d", op, r.Calls[op], want)
		}
	}
	if want := 512 + 1472 + 512; a.Peak() != want { // 480, 1440 and 480 bytes, rounded up to 64
		t.Errorf("peak: got %d bytes, want %d", a.Peak(), want)
	}
	if recovered(func() { r.Linear(x, x, &Weight{Base: qkv}, Epilogue{}) }) == nil {
		t.Error("the recorder must check shapes")
	}
}
