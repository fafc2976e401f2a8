package engine

import (
	"errors"
	"testing"
)

func TestArenaStacksAndFindsItsPeak(t *testing.T) {
	measured := NewMeasuringArena("plan")
	buf := Buf{Host: make([]byte, 256)}
	full := NewArena("real", buf, 256)
	var released []int
	full.OnRelease(func(r Tensor) { released = append(released, r.Len()) })
	for _, a := range []*Arena{measured, full} {
		first := a.Alloc(F32, 3) // 12 bytes, rounded up to 64
		mark := a.Mark()
		a.Alloc(BF16, 40) // 80 bytes, rounded up to 128
		a.Release(mark)
		again := a.Alloc(F32, 16)
		if a.Peak() != 192 || a.Mark() != 128 {
			t.Errorf("measuring %v: peak %d, top %d, want 192 and 128", a.Measuring(), a.Peak(), a.Mark())
		}
		if a == full && (&first.Buf.Host[0] != &buf.Host[0] || &again.Buf.Host[0] != &buf.Host[64] ||
			len(first.Buf.Host) != 12) {
			t.Error("tensors are not at bytes 0 and 64 of the buffer")
		}
		if a == measured && (first.Buf.Host != nil || again.Dim(0) != 16) {
			t.Error("a measured tensor must have a shape and no memory")
		}
	}
	if len(released) != 1 || released[0] != 128 {
		t.Errorf("released ranges: got %v, want [128]", released)
	}
}

func TestArenaIsNotLeftFullByAFailedAlloc(t *testing.T) {
	a := NewArena("activations", Buf{Dev: 1 << 20}, 128)
	if got := a.Alloc(U8, 1).Buf.Dev; got != 1<<20 {
		t.Errorf("device address: got %#x, want %#x", got, 1<<20)
	}
	err := func() (err *ArenaError) {
		defer func() { _ = errors.As(recover().(error), &err) }()
		a.Alloc(F32, 17)
		return nil
	}()
	if err == nil || err.Name != "activations" || err.Need != 192 || err.Have != 128 {
		t.Errorf("full arena: got %v, want activations: needs 192, has 128", err)
	}
	if got := a.Alloc(F32, 16).Buf.Dev; got != 1<<20+64 || a.Peak() != 128 {
		t.Errorf("after the failure: address %#x, peak %d, want %#x and 128", got, a.Peak(), 1<<20+64)
	}
}
