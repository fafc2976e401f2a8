//go:build cgo

package driver

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"

	"patchbay/engine"
)

// peers are the other devices whose streams exchange memory with those of one device.
type peers struct {
	mu    sync.Mutex
	peers map[*Device]bool // true: their memory can be read from here
}

// sync waits for all of these devices. Their errors are for their own ranks to report.
func (l *peers) sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for dev := range l.peers {
		_ = dev.Sync()
	}
}

// Reaches reports whether kernels and copies of s can use the memory of the device of from.
func (s *Stream) Reaches(from *Stream) bool {
	if s.dev == from.dev {
		return true
	}
	s.dev.links.mu.Lock()
	defer s.dev.links.mu.Unlock()
	return s.dev.links.peers[from.dev]
}

// Reach enables access to the memory of the device of from if it is possible; Reaches then reports the result.
func (s *Stream) Reach(from *Stream) error {
	if s.dev == from.dev {
		return nil
	}
	var reaches C.int
	err := try(func(e *C.pb_error) { C.pb_peer(s.dev.c, from.dev.c, &reaches, e) })
	if err != nil {
		return err
	}
	l := &s.dev.links
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.peers == nil {
		l.peers = map[*Device]bool{}
	}
	l.peers[from.dev] = reaches != 0
	return nil
}

// inbox is memory that receives parts of sums from other devices. When it grows, the old memory is kept: freeing it
// would wait for devices, which may be waiting for this one.
type inbox struct {
	all   []uint64 // the last one is in use
	bytes int
}

// Inbox returns at least bytes of memory, which is valid until the stream's next Inbox.
func (s *Stream) Inbox(bytes int) (engine.Buf, error) {
	if in := &s.inbox; bytes > in.bytes {
		bytes = max(bytes, 2*in.bytes)
		at, err := s.dev.Alloc(bytes)
		if err != nil {
			return engine.Buf{}, err
		}
		in.all, in.bytes = append(in.all, at), bytes
	}
	return engine.Buf{Dev: s.inbox.all[len(s.inbox.all)-1]}, nil
}

func (in *inbox) free(dev *Device) error {
	var errs []error
	for _, at := range in.all {
		errs = append(errs, dev.Free(at))
	}
	return errors.Join(errs...)
}

// Take copies src, which belongs to the stream from of another rank, to dst: contiguous tensors of equal type and
// length. If the device of from is not within reach, the copy goes through the host.
func (s *Stream) Take(dst, src engine.Tensor, from *Stream) {
	s.Bring(Address("Take", dst), Address("Take", src), dst.Bytes(), from)
}

// Bring is Take for addresses.
func (s *Stream) Bring(to, at uint64, bytes int, from *Stream) {
	switch {
	case bytes == 0:
	case s.Reaches(from):
		s.Move(to, at, bytes)
	default:
		s.do(func(e *C.pb_error) {
			C.pb_move_peer(s.dev.c, s.at, C.uint64_t(to), from.dev.c, C.uint64_t(at), C.uint64_t(bytes), e)
		})
	}
}
