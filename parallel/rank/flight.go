package rank

import (
	"patchbay/parallel/comm"
	"patchbay/parallel/scope"
)

// flight is the collective that runs beside what a session computes. There is at most one.
type flight struct {
	comm comm.Comm
	up   bool
}

// begin begins a collective once the previous one is over.
func (f *flight) begin(c *comm.Call) {
	f.wait()
	f.comm.Begin(c)
	f.up = true
}

// wait makes later calls wait until no collective is running.
func (f *flight) wait() {
	if f.up {
		f.up = false
		f.comm.Fetched()
	}
}

// close waits until no collective is running, even after an error, so that the memory may be freed.
func (f *flight) close() {
	// a failed exchange has failed the request already
	_ = scope.Recovered("exchange beside", func() error { f.wait(); return nil })
}
