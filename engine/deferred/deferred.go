// Package deferred runs the calls of another engine.Ops as late as an asynchronous device might. It is a test double
// for machines without such a device.
//
// Every call is checked and queued with copies of its host arguments. Nothing runs before the host waits for a
// Download, and then only what was queued up to it. A step that reads a result early sees the old contents, so its
// output differs from that of the inner Ops. Memory released to a watched arena is overwritten with NaN in stream
// order, so a tensor used after its release poisons the result. The inner Ops does all the arithmetic: a correct
// program gives the same bits with and without this package.
package deferred

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"patchbay/engine"
)

// Ops queues calls for an inner Ops. Like every Ops it is one stream: its methods must be called from one goroutine,
// but Wait of what they return may be called from another.
type Ops struct {
	engine.Through
	*Stream
	inner  engine.Ops
	marked atomic.Int64
	zero   time.Time
	copies *Stream // of Fetch; nil before the first
}

// New wraps inner as the only stream of a new device.
func New(inner engine.Ops) *Ops { return NewDevice(0).Ops(inner) }

// Ops wraps inner as a stream of the device.
func (d *Device) Ops(inner engine.Ops) *Ops {
	o := &Ops{Stream: d.Stream(), inner: inner, zero: time.Now()}
	o.Do = func(_ string, check func(), call func(engine.Ops)) {
		check()
		o.push(func() { call(inner) })
	}
	return o
}

var (
	_ engine.Ops     = (*Ops)(nil)
	_ engine.Fetcher = (*Ops)(nil)
	_ engine.Marker  = (*Ops)(nil)
	_ engine.Stamper = (*Ops)(nil)
)

// Mark implements engine.Marker. It is queued.
func (d *Ops) Mark(n int64) { d.push(func() { d.marked.Store(n) }) }

// Marked implements engine.Marker: it returns the last mark that the stream has reached.
func (d *Ops) Marked() int64 { return d.marked.Load() }

// Stamp implements engine.Stamper. The clock is read when the queue gets there.
func (d *Ops) Stamp() func() time.Duration {
	var at time.Duration
	d.push(func() { at = time.Since(d.zero) })
	return func() time.Duration { return at }
}

// Watch overwrites every range released from a with NaN, in stream order. It replaces the arena's OnRelease function.
func (d *Ops) Watch(a *engine.Arena) {
	a.OnRelease(func(t engine.Tensor) { d.push(func() { d.poison(t) }) })
}

// Poison sets every bit of b, which makes every element NaN in any float type.
func Poison(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = 0xff
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// poison fills a released range with NaN. In device memory, Fill writes bf16 NaNs, which read as NaN in f32 too.
func (d *Ops) poison(t engine.Tensor) {
	if t.Buf.Host == nil {
		d.inner.Fill(engine.NewTensor(t.Buf, engine.BF16, t.Len()/2), float32(math.NaN()))
		return
	}
	Poison(t.Buf.Host)
}

// Queued returns the number of calls that have not run.
func (d *Ops) Queued() int {
	d.d.mu.Lock()
	defer d.d.mu.Unlock()
	return len(d.queue)
}

// push queues a call that depends on no other stream.
func (d *Ops) push(call func()) Event {
	return d.Push(func() (bool, []*Stream) {
		call()
		return true, nil
	})
}

// Name returns "deferred(inner)".
func (d *Ops) Name() string { return fmt.Sprintf("deferred(%s)", d.inner.Name()) }

// Alloc allocates at once, with the inner Ops.
func (d *Ops) Alloc(bytes int) (engine.Buf, error) { return d.inner.Alloc(bytes) }

// Free is queued, because earlier calls may still use the memory.
func (d *Ops) Free(b engine.Buf) { d.push(func() { d.inner.Free(b) }) }

// Sync runs everything queued.
func (d *Ops) Sync() error { return d.Record().Wait() }

// Close runs what is queued, including frees, and closes the inner Ops. It implements io.Closer.
func (d *Ops) Close() error {
	err := d.Sync()
	if c, ok := d.inner.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Pack reads m at once, but the packed bytes reach their memory only when the queue gets there.
func (d *Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	p, err := d.inner.Pack(m, c)
	if err != nil {
		return nil, err
	}
	late := slices.Clone(p.Buf.Host)
	Poison(p.Buf.Host)
	d.push(func() { copy(p.Buf.Host, late) })
	return p, nil
}

// Upload is queued with a copy of src.
func (d *Ops) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	copied := slices.Clone(src)
	d.push(func() { d.inner.Upload(dst, copied) })
}

// Download is queued. Wait runs everything queued up to it, and dst is untouched before that.
func (d *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	done := d.push(func() {
		if err := d.inner.Download(dst, src).Wait(); err != nil {
			d.Fail(err)
		}
	})
	return engine.NewPending(done.Wait)
}

// Fetch implements engine.Fetcher on a stream of its own. The bytes are read at once and reach dst late.
func (d *Ops) Fetch(dst engine.Tensor, read func(piece []byte, at int) error) func() error {
	if d.copies == nil {
		d.copies = d.d.Stream()
	}
	free := d.Record()
	return func() error {
		bytes := make([]byte, dst.Len())
		if err := read(bytes, 0); err != nil {
			return err
		}
		d.copies.After(free)
		d.copies.Push(func() (bool, []*Stream) {
			copy(dst.Buf.Host, bytes)
			return true, nil
		})
		return nil
	}
}

// Fetched implements engine.Fetcher.
func (d *Ops) Fetched() { d.After(d.copies.Record()) }
