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
	o.fill(dst, len(src)*size, func(p []byte, at int) { engine.Narrow(p, src[at/size:(at+len(p))/size], dst.DType) })
}

// Write copies the bytes of a contiguous tensor of any type to it, as Upload does values. src may be used again at
// once.
func (o *Ops) Write(dst engine.Tensor, src []byte) {
	o.fill(dst, len(src), func(p []byte, at int) { copy(p, src[at:]) })
}

// fill copies so many bytes to a tensor, which from puts into pinned memory piece by piece.
func (o *Ops) fill(dst engine.Tensor, bytes int, from func(p []byte, at int)) {
	to := uint64(address("Upload", dst))
	for at := 0; at < bytes; at += ringBytes {
		n := min(bytes-at, ringBytes)
		p, err := o.up.take()
		if err != nil {
			o.note(err)
			return
		}
		from(p.bytes[:n], at)
		o.send(to+uint64(at), p, n)
	}
}

// Download implements engine.Ops: the elements are copied to pinned memory in stream order and widened by Wait.
func (o *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	return o.fetch(src, len(dst)*src.DType.Size(), func(p []byte) { engine.Widen(dst, p, src.DType) })
}

// Read copies the bytes of a contiguous tensor of any type to dst, as Download does values.
func (o *Ops) Read(dst []byte, src engine.Tensor) engine.Pending {
	return o.fetch(src, len(dst), func(p []byte) { copy(dst, p) })
}

// fetch copies the first so many bytes of a tensor to pinned memory, which Wait gives to the function.
func (o *Ops) fetch(src engine.Tensor, size int, to func(p []byte)) engine.Pending {
	if size == 0 {
		err := o.err
		return engine.NewPending(func() error { return err })
	}
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
			to(p.bytes[:size])
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
