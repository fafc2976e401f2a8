package rank

import (
	"patchbay/parallel/comm"
	"patchbay/parallel/group"
)

// flight is the collective that is under way beside what a session computes, of which there is one at most.
type flight struct {
	comm comm.Comm
	up   bool
}

// begin begins a collective, once the one before is over.
func (f *flight) begin(c *comm.Call) {
	f.land()
	f.comm.Begin(c)
	f.up = true
}

// land holds what follows back until nothing is under way.
func (f *flight) land() {
	if f.up {
		f.up = false
		f.comm.Fetched()
	}
}

// close waits until nothing is under way, whatever became of it, so that the memory may be freed.
func (f *flight) close() {
	// a failed exchange has failed the request already
	_ = group.Recovered("exchange beside", func() error { f.land(); return nil })
}
