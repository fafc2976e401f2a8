//go:build cgo

package cuda

import (
	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

var _ engine.Fetcher = (*Ops)(nil)

// copies returns the stream of Fetch, made when it is first needed.
func (o *Ops) copies() (*driver.Stream, error) {
	if o.fetches == nil {
		s, err := o.dev.NewStream(false)
		if err != nil {
			return nil, err
		}
		o.fetches = s
	}
	return o.fetches, nil
}

// Fetch implements engine.Fetcher: the bytes pass through two buffers of pinned memory, and are copied by a stream of
// their own, which waits for the calls issued so far.
func (o *Ops) Fetch(dst engine.Tensor, read func(piece []byte, at int) error) func() error {
	to, bytes, free := uint64(address("Fetch", dst)), dst.Bytes(), o.Record()
	s, err := o.copies()
	if err == nil {
		err = o.Err()
	}
	return func() error {
		if err != nil {
			return err
		}
		s.After(free)
		s.Forget(free)
		for at := 0; at < bytes; at += driver.SlotBytes {
			n := min(bytes-at, driver.SlotBytes)
			p, err := s.Slot()
			if err != nil {
				return err
			}
			if err := read(p.Bytes[:n], at); err != nil {
				return err
			}
			s.Send(to+uint64(at), p, n)
		}
		return s.Err()
	}
}

// Fetched implements engine.Fetcher.
func (o *Ops) Fetched() {
	there := o.fetches.Record()
	o.After(there)
	o.fetches.Forget(there)
	o.Note(o.fetches.Err())
}

// endFetches waits for the stream of Fetch and releases it.
func (o *Ops) endFetches() error {
	if o.fetches == nil {
		return nil
	}
	_ = o.fetches.Drain() // its error has been that of a Fetch
	return o.fetches.Close()
}
