package parallel

import (
	"fmt"
	"sync"
)

// position is where a rank stands in the schedule: the rank writes it as it goes, the watchdog and its reports read it. A nil position takes notes of
// nothing (recording passes).
type position struct {
	mu    sync.Mutex
	moves int64 // grows with every step forward
	busy  bool  // a command is being worked on
	micro Micro
	doing string
	begun int64 // blocks that were not refused by a cancellation
}

// start notes the micro-step that begins.
func (p *position) start(m Micro) {
	p.note(func() { p.busy, p.micro, p.doing = true, m, "start" })
}

// at notes what the rank does from now on.
func (p *position) at(doing string, args ...any) {
	p.note(func() { p.busy, p.doing = true, fmt.Sprintf(doing, args...) })
}

// block notes that block b comes next.
func (p *position) block(b int) {
	p.at("block %d", b)
	p.count(1)
}

// count corrects the number of blocks begun.
func (p *position) count(n int64) {
	if p != nil {
		p.mu.Lock()
		p.begun += n
		p.mu.Unlock()
	}
}

// idle notes that the rank waits for commands.
func (p *position) idle() { p.note(func() { p.busy = false }) }

func (p *position) note(f func()) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves++
	f()
}

// read returns the count of moves, whether the rank works, and the place in words: "evaluation 2, patch 1, block 3".
func (p *position) read() (moves int64, busy bool, place string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place = fmt.Sprintf("evaluation %d, patch %d, %s", p.micro.Evaluation, p.micro.Patch, p.doing)
	if p.micro.Whole {
		place = fmt.Sprintf("evaluation %d, whole picture, %s", p.micro.Evaluation, p.doing)
	}
	return p.moves, p.busy, place
}

// now is the micro-step that the rank works on or has worked on last.
func (p *position) now() Micro {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.micro
}
