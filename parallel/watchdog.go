package parallel

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/parallel/failure"
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
	since time.Time // when moves last changed
	lost  error     // error of the ranks that stand still; nil: none do
}

// await waits for the reply of one rank. If no rank of the team moves for the limit, it aborts all exchanges and
// returns an error that names the ranks that stand still and where every rank is. A rank that does not return even then
// is left behind.
func (t *team) await(done <-chan rank.Reply) (rank.Reply, error) {
	select {
	case r := <-done:
		return r, nil
	default:
	}
	if t.scheduler != nil {
		t.scheduler.Block(false, func() bool { return len(done) > 0 || t.verdict() != nil })
		if err := t.verdict(); err != nil {
			return rank.Reply{}, err
		}
		return <-done, nil
	}
	tick := time.NewTicker(max(t.watch.limit/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			if err := t.verdict(); err != nil { // r only echoes the abort
				return rank.Reply{}, err
			}
			return r, nil
		case <-tick.C:
		}
		err := t.stalled()
		if err == nil {
			continue
		}
		select {
		case <-done:
		case <-time.After(min(t.watch.limit, time.Second)):
			t.hangs.Store(true)
		}
		return rank.Reply{}, err
	}
}

// verdict returns the error of the ranks that stand still, nil if none do.
func (t *team) verdict() error { return t.watch.verdict() }

func (w *watchdog) verdict() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// stalled returns an error once no rank has moved for the limit.
func (t *team) stalled() error {
	w := &t.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost != nil {
		return w.lost
	}
	var moves int64
	for _, l := range t.members {
		moves += l.Progress().Moves
	}
	if now := time.Now(); moves != w.moves || w.since.IsZero() {
		w.moves, w.since = moves, now
		return nil
	} else if now.Sub(w.since) < w.limit {
		return nil
	}
	if slices.ContainsFunc(t.subteams, process.Subteam.Silent) {
		return nil // others may be waiting for it, and its connection ends soon if it stays silent
	}
	return t.condemn(fmt.Sprintf("no progress for %v", w.limit))
}

// deadlock is called by the scheduler when nothing can go on.
func (t *team) deadlock() {
	t.watch.mu.Lock()
	defer t.watch.mu.Unlock()
	_ = t.condemn("deadlock")
}

// condemn sets the error of the ranks that stand still and ends all exchanges with it. The caller must hold t.watch.mu.
func (t *team) condemn(verdict string) error {
	t.watch.lost = t.accuse(verdict)
	for _, l := range t.members {
		l.Abort(t.watch.lost)
	}
	return t.watch.lost
}

// accuse returns the error of ranks that stand still. It names those that are busy without waiting for another rank, or
// if there are none, all that wait.
func (t *team) accuse(verdict string) *failure.Error {
	var guilty, waiting, all []string
	for r, l := range t.members {
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
	return &failure.Error{
		Code: failure.PeerLost,
		Text: fmt.Sprintf("%s: %s; positions: %s", verdict, strings.Join(guilty, ", "), strings.Join(all, " ")),
	}
}
