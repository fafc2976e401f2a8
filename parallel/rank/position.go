package rank

import (
	"fmt"
	"sync"

	"patchbay/engine"
	"patchbay/parallel/plan"
)

// Position is where a rank stands in the schedule: the rank writes it as it goes, the watchdog and its reports read it.
// On Ops whose calls run later than they are issued it is where the device is, not the host. A nil position takes notes
// of nothing (recording passes).
type Position struct {
	device engine.Marker // nil: calls have run when they return

	mu    sync.Mutex
	moves int64 // grows with every step forward
	busy  bool  // a command is being worked on
	micro plan.Micro
	doing string
	begun int64  // blocks that were not refused by a cancellation
	ahead []note // issued and not known to have run, oldest first; the first one is where the device is
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

// start notes the micro-step that begins.
func (p *Position) start(m plan.Micro) {
	p.note(func() { p.busy, p.micro, p.doing = true, m, "start" })
}

// at notes what the rank does from now on.
func (p *Position) at(doing string, args ...any) {
	p.note(func() { p.busy, p.doing = true, fmt.Sprintf(doing, args...) })
}

// block notes that block b comes next.
func (p *Position) block(b int) {
	p.at("block %d", b)
	p.count(1)
}

// count corrects the number of blocks begun.
func (p *Position) count(n int64) {
	if p != nil {
		p.mu.Lock()
		p.begun += n
		p.mu.Unlock()
	}
}

// Blocks is how many blocks the rank has begun that were not refused by a cancellation.
func (p *Position) Blocks() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// idle notes that the rank waits for commands.
func (p *Position) idle() { p.note(func() { p.busy = false }) }

// note writes down a step of the rank, and has its device write it down too when it comes there.
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
		p.ahead = append(p.ahead, note{p.moves, p.micro, p.doing})
		p.reach()
	}
}

// reach forgets the notes behind the device; mu is held.
func (p *Position) reach() {
	at := p.device.Marked()
	for len(p.ahead) > 1 && p.ahead[1].mark <= at {
		p.ahead = p.ahead[1:]
	}
}

// Standing is how far a rank has come.
type Standing struct {
	Moves int64  // grows with every step forward
	Busy  bool   // a command is being worked on
	Place string // "evaluation 2, patch 1, block 3"
	Waits string // in which exchanges it stands, "" in none
}

// read is the Standing but for exchanges.
func (p *Position) read() Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	moves, micro, doing := p.moves, p.micro, p.doing
	if p.device != nil && len(p.ahead) > 0 {
		p.reach()
		moves, micro, doing = p.device.Marked(), p.ahead[0].micro, p.ahead[0].doing
	}
	place := fmt.Sprintf("evaluation %d, patch %d, %s", micro.Evaluation, micro.Patch, doing)
	if micro.Whole {
		place = fmt.Sprintf("evaluation %d, whole picture, %s", micro.Evaluation, doing)
	}
	return Standing{Moves: moves, Busy: p.busy, Place: place}
}

// Now is the micro-step that the rank works on or has worked on last.
func (p *Position) Now() plan.Micro {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.micro
}
