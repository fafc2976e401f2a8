//go:build cgo

package cuda

import (
	"fmt"
	"math/bits"

	"patchbay/engine"
)

// Reserve implements engine.Reserver: scratch memory for the greediest of the calls, the pinned memory of uploads, and
// that of two downloads under way at once. It waits for the device where the scratch memory grows.
func (o *Ops) Reserve(calls *engine.Recorder) error {
	bytes := o.scratchFor(calls)
	for p := range calls.Products {
		if pl, ok := o.dev.blas.planOf(&p); ok && o.algorithm(pl.shape) != nil {
			bytes = max(bytes, o.dev.blas.room(&p, &pl))
		}
	}
	if o.err != nil {
		return o.Sync()
	}
	if err := o.mem.need(bytes); err != nil {
		return fmt.Errorf("%s: take %d MB of scratch memory: %w", o.Location(), bytes>>20, err)
	}
	if calls.Uploads+calls.Gathered > 0 {
		if err := o.up.fill(); err != nil {
			return fmt.Errorf("%s: take pinned memory: %w", o.Location(), err)
		}
	}
	if calls.Read == 0 {
		return nil
	}
	var taken []*pinned
	for range 2 {
		p, err := o.receiver(calls.Read * engine.F32.Size())
		if err != nil {
			o.down = append(o.down, taken...)
			return fmt.Errorf("%s: take pinned memory: %w", o.Location(), err)
		}
		taken = append(taken, p)
	}
	o.down = append(o.down, taken...)
	return nil
}

// scratchFor returns the most scratch bytes that one of the calls takes. A convolution by a 1x1 kernel takes none but
// counts like the others.
func (o *Ops) scratchFor(calls *engine.Recorder) int {
	bytes := max(room(4*calls.Gathered), room(16*groupSlices*calls.Groups))
	for _, l := range calls.Linears {
		bytes = max(bytes, adapterRoom(l.Rows, l.N, l.Ranks, engine.F32.Size()))
	}
	for _, a := range calls.Attentions {
		if a.D > attendMost && a.DType == engine.BF16 && a.Lk > 0 {
			bytes = max(bytes, scoreRoom(o.scoreRows(a.Lq, a.Lk), a.Lk, a.D))
		}
	}
	for _, c := range calls.Convs {
		if c.Pixels > 0 {
			size := c.DType.Size()
			rows := c.Width * o.convLines(c.Height, c.Width, c.K, size)
			bytes = max(bytes, room(rows*rowStride(c.K)*size)+adapterRoom(c.Width*c.Height, c.N, c.Ranks, size))
		}
	}
	return bytes
}

// receiverBytes returns the size of the pinned memory for a download of so many bytes.
func receiverBytes(bytes int) int { return 1 << bits.Len(uint(max(bytes, 4096)-1)) }
