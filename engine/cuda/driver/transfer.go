//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"math/bits"

	"patchbay/engine"
)

// Upload implements engine.Ops: src is rounded into pinned memory at once and copied from there when the stream gets to
// it.
func (s *Stream) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	size := dst.DType.Size()
	s.fill(dst, len(src)*size, func(p []byte, at int) { engine.Narrow(p, src[at/size:(at+len(p))/size], dst.DType) })
}

// Write copies src to the bytes of a contiguous tensor of any type, as Upload does with values. src may be reused at
// once.
func (s *Stream) Write(dst engine.Tensor, src []byte) {
	s.fill(dst, len(src), func(p []byte, at int) { copy(p, src[at:]) })
}

// fill copies the given number of bytes to a tensor. from writes them into pinned memory piece by piece.
func (s *Stream) fill(dst engine.Tensor, bytes int, from func(p []byte, at int)) {
	to := Address("Upload", dst)
	for at := 0; at < bytes; at += SlotBytes {
		n := min(bytes-at, SlotBytes)
		p, err := s.Slot()
		if err != nil {
			s.Note(err)
			return
		}
		from(p.Bytes[:n], at)
		s.Send(to+uint64(at), p, n)
	}
}

// Download implements engine.Ops: the elements are copied to pinned memory in stream order and widened by Wait.
func (s *Stream) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	return s.fetch(src, len(dst)*src.DType.Size(), func(p []byte) { engine.Widen(dst, p, src.DType) })
}

// Read copies the bytes of a contiguous tensor of any type to dst, as Download does with values.
func (s *Stream) Read(dst []byte, src engine.Tensor) engine.Pending {
	return s.fetch(src, len(dst), func(p []byte) { copy(dst, p) })
}

// fetch copies the first size bytes of a tensor to pinned memory, which Wait passes to the function.
func (s *Stream) fetch(src engine.Tensor, size int, to func(p []byte)) engine.Pending {
	if size == 0 {
		err := s.err
		return engine.NewPending(func() error { return err })
	}
	var p *Pinned
	if s.err == nil {
		var err error
		p, err = s.receiver(size)
		s.Note(err)
	}
	if s.err == nil {
		s.do(func(e *C.pb_error) {
			C.pb_download(s.dev.c, s.at, p.at, C.uint64_t(Address("Download", src)), C.uint64_t(size), e)
		})
		s.record(p)
	}
	if err := s.err; err != nil {
		if p != nil {
			s.down = append(s.down, p)
		}
		return engine.NewPending(func() error { return err })
	}
	finished, broken := false, error(nil)
	return engine.NewPending(func() error {
		if finished {
			return broken
		}
		if broken = cmp.Or(s.dev.wait(p), s.ending()); broken == nil {
			to(p.Bytes[:size])
		}
		finished = true
		select {
		case s.done <- p:
		default:
			return cmp.Or(broken, s.dev.release(p))
		}
		return broken
	})
}

// receiver returns pinned memory of at least the given bytes that no download uses.
func (s *Stream) receiver(bytes int) (*Pinned, error) {
	s.takeBack()
	for i, p := range s.down {
		if len(p.Bytes) >= bytes && len(p.Bytes) <= 4*bytes+4096 {
			s.down = append(s.down[:i], s.down[i+1:]...)
			return p, nil
		}
	}
	return s.dev.newHost(receiverBytes(bytes))
}

// receiverBytes returns the size of the pinned memory for a download of the given size.
func receiverBytes(bytes int) int { return 1 << bits.Len(uint(max(bytes, 4096)-1)) }

// ReservePinned takes the pinned memory of uploads, if there are any, and that of two concurrent downloads of at most
// download bytes; 0: there are none.
func (s *Stream) ReservePinned(uploads bool, download int) error {
	if uploads {
		if err := s.up.fill(); err != nil {
			return err
		}
	}
	var taken []*Pinned
	for i := 0; i < 2 && download > 0; i++ {
		p, err := s.receiver(download)
		if err != nil {
			s.down = append(s.down, taken...)
			return err
		}
		taken = append(taken, p)
	}
	s.down = append(s.down, taken...)
	return nil
}

// takeBack collects the buffers that Wait is done with.
func (s *Stream) takeBack() {
	for {
		select {
		case p := <-s.done:
			s.down = append(s.down, p)
		default:
			return
		}
	}
}
