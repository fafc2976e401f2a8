package rank

import (
	"fmt"
	"sync"

	"patchbay/engine"
	"patchbay/parallel/plan"
)

// Position is where a rank stands in the schedule. The rank updates it as it goes; the watchdog reads it. On Ops whose
// calls run later than they are issued it is where the device is, not the host. A nil Position records nothing
// (recording passes).
type Position struct {
	device engine.Marker // nil: calls have run when they return

	mu      sync.Mutex
	moves   int64 // grows with every step forward
	busy    bool  // a command is being worked on
	micro   plan.Micro
	doing   string
	begun   int64  // blocks begun, without those that a cancellation stopped
	pending []note // issued and not known to have run, oldest first; the device is at the first
}

// note is a place in the schedule that the device will come to.
type note struct {
	mark  int64
	micro plan.Micro
	doing string
}

func newPosition(ops engine.Ops) *Position {
	device, _ := ops.(engine.Marker)
	return &Position{device: device}
}

// start records the micro-step that begins.
func (p *Position) start(m plan.Micro) {
	p.note(func() { p.busy, p.micro, p.doing = true, m, "start" })
}

// at records what the rank does from now on.
func (p *Position) at(doing string, args ...any) {
	p.note(func() { p.busy, p.doing = true, fmt.Sprintf(doing, args...) })
}

// within records what the rank does until the returned function is called, and then what it did before.
func (p *Position) within(doing string, args ...any) (end func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	before := p.doing
	p.mu.Unlock()
	p.at(doing, args...)
	return func() { p.at("%s", before) }
}

// block records that block b comes next.
func (p *Position) block(b int) {
	p.at("block %d", b)
	p.count(1)
}

// count adds n to the number of blocks begun.
func (p *Position) count(n int64) {
	if p != nil {
		p.mu.Lock()
		p.begun += n
		p.mu.Unlock()
	}
}

// Blocks returns how many blocks the rank has begun, without those that a cancellation stopped.
func (p *Position) Blocks() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// idle records that the rank waits for commands.
func (p *Position) idle() { p.note(func() { p.busy = false }) }

// note records a step of the rank, and issues a mark that tells when the device reaches it.
func (p *Position) note(f func()) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves++
	f()
	if p.device != nil && p.busy {
		p.device.Mark(p.moves)
		p.pending = append(p.pending, note{p.moves, p.micro, p.doing})
		p.reach()
	}
}

// reach drops the notes that the device has passed. The caller must hold p.mu.
func (p *Position) reach() {
	at := p.device.Marked()
	for len(p.pending) > 1 && p.pending[1].mark <= at {
		p.pending = p.pending[1:]
	}
}

// Progress is how far a rank has come.
type Progress struct {
	Moves int64  // grows with every step forward
	Busy  bool   // a command is being worked on
	Place string // "evaluation 2, patch 1, block 3"
	Waits string // exchanges that it waits in, "" if none
}

// read returns the Progress without Waits.
func (p *Position) read() Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	moves, micro, doing := p.moves, p.micro, p.doing
	if p.device != nil && len(p.pending) > 0 {
		p.reach()
		moves, micro, doing = p.device.Marked(), p.pending[0].micro, p.pending[0].doing
	}
	place := fmt.Sprintf("evaluation %d, patch %d, %s", micro.Evaluation, micro.Patch, doing)
	if micro.Whole {
		place = fmt.Sprintf("evaluation %d, whole picture, %s", micro.Evaluation, doing)
	}
	return Progress{Moves: moves, Busy: p.busy, Place: place}
}

// Now returns the micro-step that the rank issues, or issued last.
func (p *Position) Now() plan.Micro {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.micro
}
