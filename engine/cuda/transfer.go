//go:build cgo

package cuda

/*
#include "shim.h"
#include "kernels/args.h"
*/
import "C"

import (
	"cmp"

	"patchbay/engine"
)

// Upload implements engine.Ops: src is rounded into pinned memory at once and copied from there when the stream gets to
// it.
func (o *Ops) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	size := dst.DType.Size()
	to := uint64(address("Upload", dst))
	for len(src) > 0 {
		n := min(len(src), ringBytes/size)
		p, err := o.up.take()
		if err != nil {
			o.note(err)
			return
		}
		engine.Narrow(p.bytes, src[:n], dst.DType)
		o.send(to, p, n*size)
		to += uint64(n * size)
		src = src[n:]
	}
}

// Download implements engine.Ops: the elements are copied to pinned memory in stream order and widened by Wait.
func (o *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	if len(dst) == 0 {
		err := o.err
		return engine.NewPending(func() error { return err })
	}
	size, dtype := len(dst)*src.DType.Size(), src.DType
	var p *pinned
	if o.err == nil {
		var err error
		p, err = o.receiver(size)
		o.note(err)
	}
	if o.err == nil {
		o.note(try(func(e *C.pb_error) {
			C.pb_download(o.dev.c, o.stream, p.at, C.uint64_t(address("Download", src)), C.uint64_t(size), e)
		}))
		o.record(p)
	}
	if err := o.err; err != nil {
		if p != nil {
			o.down = append(o.down, p)
		}
		return engine.NewPending(func() error { return err })
	}
	finished, broken := false, error(nil)
	return engine.NewPending(func() error {
		if finished {
			return broken
		}
		if err := o.dev.wait(p); err != nil {
			return err
		}
		if broken = o.ending(); broken == nil {
			engine.Widen(dst, p.bytes[:size], dtype)
		}
		finished = true
		select {
		case o.done <- p:
		default:
			return cmp.Or(broken, o.dev.release(p))
		}
		return broken
	})
}

// receiver returns pinned memory of at least the given bytes that no download uses.
func (o *Ops) receiver(bytes int) (*pinned, error) {
	o.takeBack()
	for i, p := range o.down {
		if len(p.bytes) >= bytes && len(p.bytes) <= 4*bytes+4096 {
			o.down = append(o.down[:i], o.down[i+1:]...)
			return p, nil
		}
	}
	return o.dev.newPinned(receiverBytes(bytes))
}

// takeBack collects the buffers that Wait is done with.
func (o *Ops) takeBack() {
	for {
		select {
		case p := <-o.done:
			o.down = append(o.down, p)
		default:
			return
		}
	}
}
