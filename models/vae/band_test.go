package vae_test

import (
	"fmt"
	"sync"
	"testing"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/vae"
	"patchbay/tests/golden"
)

// bands lets the goroutines that decode one image exchange data: each publishes a tensor, waits for the others, reads,
// and waits again.
type bands struct {
	mu      sync.Mutex
	arrived *sync.Cond
	count   int
	round   int
	shown   []engine.Tensor
}

func newBands(n int) *bands {
	b := &bands{shown: make([]engine.Tensor, n)}
	b.arrived = sync.NewCond(&b.mu)
	return b
}

// wait returns when all bands have called it.
func (b *bands) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	round := b.round
	if b.count++; b.count == len(b.shown) {
		b.count, b.round = 0, round+1
		b.arrived.Broadcast()
		return
	}
	for round == b.round {
		b.arrived.Wait()
	}
}

func (b *bands) show(rank int, t engine.Tensor, read func()) {
	b.shown[rank] = t
	b.wait()
	read()
	b.wait()
}

// exchange returns the hooks of one rank.
func (b *bands) exchange(t *testing.T, rank int, ops engine.Ops) *vae.Exchange {
	return &vae.Exchange{
		Halo: func(x, above, below engine.Tensor) {
			b.show(rank, x, func() {
				if (rank > 0) == above.IsZero() || (rank < len(b.shown)-1) == below.IsZero() {
					t.Errorf("rank %d: halo above %v, below %v", rank, above, below)
				}
				if rank > 0 {
					up := b.shown[rank-1]
					ops.Copy(above, up.Slice(1, up.Dim(1)-1, up.Dim(1)))
				}
				if rank < len(b.shown)-1 {
					ops.Copy(below, b.shown[rank+1].Slice(1, 0, 1))
				}
			})
		},
		Sum: func(stats engine.Tensor) {
			var sum []float64
			b.show(rank, stats, func() {
				sum = make([]float64, stats.Len())
				for _, s := range b.shown {
					for i, v := range f64(s) {
						sum[i] += v
					}
				}
			})
			copy(f64(stats), sum) // after the second wait no rank reads the parts any more
			b.wait()
		},
		Gather: func(full, part engine.Tensor) {
			b.show(rank, part, func() {
				at := 0
				for _, s := range b.shown {
					ops.Copy(full.Slice(1, at, at+s.Dim(1)), s)
					at += s.Dim(1)
				}
			})
		},
	}
}

// f64 views a contiguous host f64 tensor.
func f64(t engine.Tensor) []float64 {
	return unsafe.Slice((*float64)(unsafe.Pointer(&t.Buf.Host[8*t.Off])), t.Len())
}

// TestBandsEqualWhole decodes an image in bands of unequal height, down to single rows, and compares it with the image
// decoded whole. The arena of every rank has exactly the size that BandBytes promises.
func TestBandsEqualWhole(t *testing.T) {
	for _, model := range []string{"vae-kl", "wanvae-a", "wanvae-b", "flux2vae-a", "q21vae-a"} {
		t.Run(model, func(t *testing.T) { bandsEqualWhole(t, model) })
	}
}

func bandsEqualWhole(t *testing.T, model string) {
	t.Helper()
	ops, _ := fastest(t)
	v := open(t, ops, checkpoint(t, model))
	const y, x = 5, 3
	c := v.Config.Latent()
	latent := golden.Input("bands", c*y*x)
	want, err := v.Decode(vae.Env{Ops: ops}, latent, 1, y, x)
	if err != nil {
		t.Fatal(err)
	}
	rows := last(latent, c) // [Y*X, C]
	for _, cuts := range [][]int{{0, 2, 5}, {0, 1, 4, 5}, {0, 1, 2, 3, 4, 5}} {
		n := len(cuts) - 1
		parts, errs := make([][]float32, n), make([]error, n)
		b := newBands(n)
		var done sync.WaitGroup
		for rank := range n {
			band := vae.Band{Start: cuts[rank], End: cuts[rank+1], Total: y}
			done.Go(func() {
				ops, _ := fastest(t) // each rank has its own stream
				env := arenaEnv(t, ops, vae.BandBytes(v.Config, engine.F32, band, x))
				env.Exchange = b.exchange(t, rank, ops)
				z := env.Arena.Alloc(engine.F32, 1, band.Len(), x, c)
				ops.Upload(z, rows[band.Start*x*c:band.End*x*c])
				picture, err := v.DecodeBand(env, z, band)
				if errs[rank] = err; err == nil {
					parts[rank] = make([]float32, picture.Len())
					errs[rank] = ops.Download(parts[rank], picture).Wait()
				}
			})
		}
		done.Wait()
		var got []float32
		for rank := range n {
			if errs[rank] != nil {
				t.Fatalf("rank %d: %v", rank, errs[rank])
			}
			got = append(got, parts[rank]...)
		}
		compare(t, fmt.Sprintf("bands %v", cuts), got, want, 5e-6)
	}
	if _, err := v.DecodeBand(vae.Env{Ops: ops}, engine.FromF32(rows[:2*x*c], 1, 2, x, c),
		vae.Band{Start: 0, End: 2, Total: y}); err == nil {
		t.Error("a band without an exchange was decoded")
	}
}

// TestStripsChangeNothing decodes and encodes in strips of two and six rows and compares with whole images. The
// reference must give the same bits; the fast backends may sum in another order.
func TestStripsChangeNothing(t *testing.T) {
	ops, name := fastest(t)
	strips(t, ops, name, 5e-6)
	if !testing.Short() {
		strips(t, ref.New(), "ref", 0)
	}
}

func strips(t *testing.T, ops engine.Ops, name string, bound float64) {
	t.Helper()
	v := open(t, ops, checkpoint(t, "vae-kl"))
	const y, x = 3, 2
	latent := golden.Input("strips", v.Config.Latent()*y*x)
	picture := golden.Fill("strips", 8*y*8*x*3, 2, 0)
	run := func(strip int) (decoded, encoded []float32) {
		env := vae.Env{Ops: ops, StripBytes: strip}
		decoded, err := v.Decode(env, latent, 1, y, x)
		if err != nil {
			t.Fatal(err)
		}
		if encoded, err = v.Encode(env, picture, 1, 8*y, 8*x); err != nil {
			t.Fatal(err)
		}
		return decoded, encoded
	}
	d, e := run(0)
	for _, strip := range []int{1, 64 * 8 * x * 4 * 6} { // two rows, and six of the widest layer
		d2, e2 := run(strip)
		compare(t, fmt.Sprintf("%s: decoded in strips of %d bytes", name, strip), d2, d, bound)
		compare(t, fmt.Sprintf("%s: encoded in strips of %d bytes", name, strip), e2, e, bound)
	}
}
