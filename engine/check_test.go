package engine

import (
	"strings"
	"testing"
)

func TestErrorsNameOperationRuleAndOperands(t *testing.T) {
	w := &Weight{Name: "blocks.0.qkv", Base: &Packed{DType: BF16, N: 6, K: 4}}
	err := recovered(func() {
		CheckLinear(NewTensor(Buf{}, F32, 2, 6), NewTensor(Buf{}, F32, 2, 5), w, Epilogue{})
	})
	if err == nil {
		t.Fatal("K = 4 took rows of 5")
	}
	for _, want := range []string{"Linear", "K of the weight", "blocks.0.qkv", "x f32[2 5]", "y f32[2 6]", "w bf16[6 4]"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "residual") {
		t.Errorf("error %q mentions an absent operand", err)
	}
}

func TestOverlaps(t *testing.T) {
	v := make([]float32, 24)
	x := FromF32(v, 2, 3, 4)
	for _, c := range []struct {
		name string
		a, b Tensor
		want bool
	}{
		{"itself", x, x, true},
		{"two rows", x.Index(0, 0), x.Index(0, 1), false},
		{"shared row", x.Slice(0, 0, 1), x.Index(0, 0).Slice(0, 2, 3), true},
		{"interleaved columns", x.Slice(2, 0, 2), x.Slice(2, 2, 4), false},
		{"same start, other strides", x.Slice(2, 0, 2), x.Index(0, 0), true},
		{"empty", x.Slice(0, 1, 1), x, false},
		{"no memory", NewTensor(Buf{}, F32, 4), NewTensor(Buf{}, F32, 4), false},
		{"device", NewTensor(Buf{Dev: 4096}, F32, 4), NewTensor(Buf{Dev: 4104}, F32, 4), true},
		{"device neighbours", NewTensor(Buf{Dev: 4096}, F32, 4), NewTensor(Buf{Dev: 4112}, F32, 4), false},
	} {
		if got := Overlaps(c.a, c.b); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := Overlaps(c.b, c.a); got != c.want {
			t.Errorf("%s, swapped: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestChecksDoNotAllocate(t *testing.T) {
	buf := Buf{Host: make([]byte, 1<<12)}
	x, y := NewTensor(buf, F32, 2, 3, 8), NewTensor(Buf{Host: make([]byte, 1<<12)}, F32, 2, 3, 8)
	gate, w := NewTensor(buf, F32, 2, 8), &Weight{Base: &Packed{DType: F32, N: 8, K: 8}}
	q, o := x.Split(2, 2, 4), y.Split(2, 2, 4)
	lens := []int{3, 1}
	got := testing.AllocsPerRun(100, func() {
		CheckLinear(y, x, w, Epilogue{Gate: gate, Residual: y})
		CheckAdaLN(y, x, gate, gate)
		CheckGatedAdd(y, x, gate, x, Tensor{})
		CheckAttention(o, q, q, q, AttentionArgs{KeyLen: lens})
		CheckQKNormRoPE(o, o, Tensor{}, q, q, Tensor{}, QKNorm{Kind: RMSNorm}, RoPE{})
	})
	if got != 0 {
		t.Errorf("five checks allocate %g times, want 0", got)
	}
}

func BenchmarkCheckLinear(b *testing.B) {
	x, y := NewTensor(Buf{}, F32, 2, 3, 8), NewTensor(Buf{}, F32, 2, 3, 8)
	w := &Weight{Base: &Packed{DType: F32, N: 8, K: 8}}
	for b.Loop() {
		CheckLinear(y, x, w, Epilogue{Residual: y})
	}
}
