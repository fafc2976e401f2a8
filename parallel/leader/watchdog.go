package leader

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
)

// patience is the default of Config.Patience. It must cover the longest single operation: the attention of a large
// picture on a CPU takes minutes.
const patience = 10 * time.Minute

// watchdog fails requests whose ranks make no progress. It looks at their positions while the leader waits for replies.
type watchdog struct {
	limit time.Duration

	mu    sync.Mutex
	moves int64     // of all ranks together, at the last look
	Since time.Time // when moves last changed
	lost  error     // error of the ranks that stand still; nil: none do
}

// await waits for the reply of one rank. If no rank of the team moves for the limit, it aborts all exchanges and
// returns an error that names the ranks that stand still and where every rank is. A rank that does not return even then
// is left behind.
func (t *Team) await(done <-chan rank.Reply) (rank.Reply, error) {
	select {
	case r := <-done:
		return r, nil
	default:
	}
	if t.Scheduler != nil {
		t.Scheduler.Block(false, func() bool { return len(done) > 0 || t.Verdict() != nil })
		if err := t.Verdict(); err != nil {
			return rank.Reply{}, err
		}
		return <-done, nil
	}
	tick := time.NewTicker(max(t.Watch.limit/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			if err := t.Verdict(); err != nil { // r only echoes the abort
				return rank.Reply{}, err
			}
			return r, nil
		case <-tick.C:
		}
		err := t.Stalled()
		if err == nil {
			continue
		}
		select {
		case <-done:
		case <-time.After(min(t.Watch.limit, time.Second)):
			t.Hangs.Store(true)
		}
		return rank.Reply{}, err
	}
}

// Verdict returns the error of the ranks that stand still, nil if none do.
func (t *Team) Verdict() error { return t.Watch.verdict() }

func (w *watchdog) verdict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Stalled returns an error once no rank has moved for the limit.
func (t *Team) Stalled() error {
	w := &t.Watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		return w.lost
	}
	var moves int64
	for _, l := range t.Members {
		moves += l.Progress().Moves
	}
	if now := time.Now(); moves != w.moves || w.Since.IsZero() {
		w.moves, w.Since = moves, now
		return nil
	} else if now.Sub(w.Since) < w.limit {
		return nil
	}
	if slices.ContainsFunc(t.subteams, process.Subteam.Silent) {
		return nil // others may be waiting for it, and its connection ends soon if it stays silent
	}
	return t.condemn(fmt.Sprintf("no progress for %v", w.limit))
}

// deadlock is called by the scheduler when nothing can go on.
func (t *Team) deadlock() {
	t.Watch.mu.Lock()
	defer t.Watch.mu.Unlock()
	_ = t.condemn("deadlock")
}

// condemn sets the error of the ranks that stand still and ends all exchanges with it. The caller must hold t.watch.mu.
func (t *Team) condemn(verdict string) error {
	t.Watch.lost = t.accuse(verdict)
	for _, l := range t.Members {
		l.Abort(t.Watch.lost)
	}
	return t.Watch.lost
}

// accuse returns the error of ranks that stand still. It names those that are busy without waiting for another rank, or
// if there are none, all that wait.
func (t *Team) accuse(verdict string) *fault.Error {
	var guilty, waiting, all []string
	for r, l := range t.Members {
		at := l.Progress()
		name := fmt.Sprintf("rank %d at %s", r, at.Place)
		if t.names != nil {
			name = fmt.Sprintf("rank %d in %s at %s", r, t.names[r], at.Place)
		}
		switch {
		case !at.Busy:
			all = append(all, fmt.Sprintf("[rank %d has nothing to do after %s]", r, at.Place))
			continue
		case at.Waits == "":
			guilty = append(guilty, name)
		default:
			waiting = append(waiting, name)
			name += ", waits in " + at.Waits
		}
		all = append(all, "["+name+"]")
	}
	if len(guilty) == 0 {
		guilty = waiting
	}
	if len(guilty) == 0 {
		guilty = []string{"no rank has a command, and an answer is missing"}
	}
	return fault.New(fault.PeerLost, "%s: %s; positions: %s", verdict, strings.Join(guilty, ", "), strings.Join(all, " "))
}
