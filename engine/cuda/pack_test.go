//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

// TestPackBeside checks that weights larger than the pinned buffers are uploaded while earlier calls are pending, and
// that later calls see all of them, with rows copied as they are and with rows that are widened and padded.
func TestPackBeside(t *testing.T) {
	dev := openDevice(t)
	o := newOps(t, dev)
	x := vector(t, o, 64)
	for i, c := range []struct {
		n, k  int
		scale float32
	}{{5, driver.SlotBytes / 8, 1}, {5, driver.SlotBytes/8 - 3, 2}} {
		values := make([]float32, c.n*c.k)
		for j := range values {
			values[j] = float32((j*7+j/c.k)%251) - 100 // exact in bf16
		}
		data := make([]byte, 4*len(values))
		engine.Narrow(data, values, engine.F32)
		const calls = 400
		for range calls {
			o.Fill(x, 1)
		}
		o.Mark(int64(i + 1))
		p, err := o.Pack(engine.Matrix{Data: data, DType: engine.F32, N: c.n, K: c.k, Scale: c.scale}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if dev.Name == "Fake GPU" && o.Marked() > int64(i) {
			t.Errorf("the weights waited for all %d calls before them", calls)
		}
		got := make([]float32, c.n*rowStride(c.k))
		if err := o.Download(got, engine.NewTensor(p.Buf, engine.F32, len(got))).Wait(); err != nil {
			t.Fatal(err)
		}
		for row := range c.n {
			for col, v := range got[row*rowStride(c.k) : (row+1)*rowStride(c.k)] {
				want := float32(0)
				if col < c.k {
					want = c.scale * values[row*c.k+col]
				}
				if v != want {
					t.Fatalf("row %d, column %d: got %g, want %g", row, col, v, want)
				}
			}
		}
		o.Free(p.Buf)
	}
	one := make([]byte, 4*64)
	engine.Narrow(one, filled(64, 1), engine.F32)
	for range 12 { // the weight is read by the next call
		p, err := o.Pack(engine.Matrix{Data: one, DType: engine.F32, N: 8, K: 8}, 0)
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, o, engine.NewTensor(p.Buf, engine.F32, 64), 1)
		o.Free(p.Buf)
	}
	o.Free(x.Buf)
}
