package dit

import (
	"sync"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// Shelf has the packed matrices of one part of a model on one device by name, with the number of loads that use each. A
// load that finds a matrix there does not read it: placements that differ in the blocks that stay on the device share
// the others. It is safe for concurrent use.
type Shelf struct {
	slice  string
	copies *datafile.Copies // of blocks in host memory, which all devices share

	mu      sync.Mutex
	held    map[string]*shelved
	keeping bool
}

type shelved struct {
	packed *engine.Packed
	users  int
}

// NewShelf returns an empty shelf. slice names the model and what is held of each of its blocks, among all whose blocks
// are in copies.
func NewShelf(slice string, copies *datafile.Copies) *Shelf {
	return &Shelf{slice: slice, copies: copies}
}

// Copies returns the blocks that are in host memory, and what begins the names of these there; nil on a nil Shelf.
func (s *Shelf) Copies() (c *datafile.Copies, slice string) {
	if s == nil {
		return nil, ""
	}
	return s.copies, s.slice
}

// shelving is Ops for loads that use a shelf.
type shelving struct {
	engine.Ops
	shelf *Shelf
}

// located is shelving on a device with memory of its own: what tells devices apart must see that.
type located struct {
	shelving
	engine.Located
}

// On returns ops with which weights are loaded by way of the shelf.
func (s *Shelf) On(ops engine.Ops) engine.Ops {
	if device, ok := ops.(engine.Located); ok {
		return located{shelving{ops, s}, device}
	}
	return shelving{ops, s}
}

// ShelfOf returns what On was called with, or ops and no shelf.
func ShelfOf(ops engine.Ops) (engine.Ops, *Shelf) {
	switch s := ops.(type) {
	case shelving:
		return s.Ops, s.shelf
	case located:
		return s.Ops, s.shelf
	}
	return ops, nil
}

// Take returns the matrix called name for one more user, nil if it is not there.
func (s *Shelf) Take(name string) *engine.Packed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[name]; h != nil {
		h.users++
		return h.packed
	}
	return nil
}

// Put adds a matrix that was not there, for one user.
func (s *Shelf) Put(name string, p *engine.Packed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[string]*shelved{}
	}
	s.held[name] = &shelved{p, 1}
}

// Release ends one use of a matrix. That of the last one frees it, or leaves it there while the shelf keeps.
func (s *Shelf) Release(ops engine.Ops, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[name]
	if h.users--; h.users == 0 && !s.keeping {
		s.free(ops, name)
	}
}

// Keep says whether matrices and copies without users stay for a load that is about to begin.
func (s *Shelf) Keep(ops engine.Ops, yes bool) {
	s.copies.Keep(yes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeping = yes; !yes {
		s.only(ops, nil)
	}
}

// Only frees the matrices without users that are not wanted.
func (s *Shelf) Only(ops engine.Ops, wanted map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.only(ops, wanted)
}

func (s *Shelf) only(ops engine.Ops, wanted map[string]bool) {
	for name, h := range s.held {
		if h.users == 0 && !wanted[name] {
			s.free(ops, name)
		}
	}
}

func (s *Shelf) free(ops engine.Ops, name string) {
	ops.Free(s.held[name].packed.Buf)
	delete(s.held, name)
}
