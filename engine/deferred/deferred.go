// Package deferred runs another engine.Ops as late as an asynchronous device might: a test double for machines without
// one.
//
// Every call is checked and queued with copies of its host arguments; nothing runs before somebody waits for a
// Download, and then only what was queued up to it. A step that reads a result early sees the old contents, so its
// output differs from the inner Ops run directly. Memory that an arena takes back is overwritten with NaN in stream
// order: a tensor used after its release poisons the result. The inner Ops does all the arithmetic, so a correct
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

// Ops queues calls for an inner Ops. Like every Ops it is one stream: calls come from one goroutine; Wait may come from
// another.
type Ops struct {
	engine.Through
	*Stream
	inner  engine.Ops
	marked atomic.Int64
	zero   time.Time
}

// New wraps inner, on a device of its own.
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
	_ engine.Marker  = (*Ops)(nil)
	_ engine.Stamper = (*Ops)(nil)
)

// Mark is queued.
func (d *Ops) Mark(n int64) { d.push(func() { d.marked.Store(n) }) }

// Marked returns the last mark that has run.
func (d *Ops) Marked() int64 { return d.marked.Load() }

// Stamp queues a look at the clock.
func (d *Ops) Stamp() func() time.Duration {
	var at time.Duration
	d.push(func() { at = time.Since(d.zero) })
	return func() time.Duration { return at }
}

// Watch overwrites every range that a releases with NaN, in stream order. It replaces the arena's OnRelease function.
func (d *Ops) Watch(a *engine.Arena) {
	a.OnRelease(func(t engine.Tensor) { d.push(func() { d.poison(t) }) })
}

// Poison sets every bit of b, a NaN of any float type.
func Poison(b []byte) {
	if len(b) == 0 {
		return
	}
	b[0] = 0xff
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// poison fills a released range; on a device Fill writes bf16 NaN, which reads as NaN in f32 too.
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

// push issues a call that waits for nothing.
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

// Free is queued: earlier calls may still use the memory.
func (d *Ops) Free(b engine.Buf) { d.push(func() { d.inner.Free(b) }) }

// Sync runs everything queued.
func (d *Ops) Sync() error { return d.Record().Wait() }

// Close runs what is queued, frees among it, and closes the inner Ops. It implements io.Closer.
func (d *Ops) Close() error {
	err := d.Sync()
	if c, ok := d.inner.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Pack reads m at once; the packed bytes are in their memory when the queue has come to them.
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
	kept := slices.Clone(src)
	d.push(func() { d.inner.Upload(dst, kept) })
}

// Download is queued. Its Wait runs everything queued up to it; before that dst is untouched.
func (d *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	done := d.push(func() {
		if err := d.inner.Download(dst, src).Wait(); err != nil {
			d.Fail(err)
		}
	})
	return engine.NewPending(done.Wait)
}
