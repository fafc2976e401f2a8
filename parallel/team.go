package parallel

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"patchbay/parallel/failure"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/scope"
)

// team is the ranks of one plan as the leader sees them: it sends commands to them and collects their replies. (The
// word is from Fortran and UPC++; a group is what one Comm joins.)
type team struct {
	process.Team
	mesh      plan.Mesh // of members
	members   []process.Member
	subteams  []process.Subteam
	watch     watchdog
	hangs     atomic.Bool      // a rank hangs and was left behind
	scheduler *scope.Scheduler // nil: everything runs freely
	ended     chan struct{}    // closed after close, once all ranks have returned
	names     []string         // of the members' processes; nil: all share this one

	interruptible bool // exchanges can be cut short
	inStep        bool // a canceled run has left all ranks in step
}

// rendezvous is how long ranks of Workspace.Shared, and bands of the VAE, wait for each other before the work fails
// with an error that names both.
const rendezvous = 2 * time.Minute

// teamConfig is what a team needs of the process that leads it.
type teamConfig struct {
	processes process.List     // where its ranks run
	owned     bool             // the processes are closed if a rank does not start
	patience  time.Duration    // see watchdog.limit; 0: the default
	scheduler *scope.Scheduler // nil: everything runs freely
}

// newTeam starts the ranks of a plan, each in the process that it belongs to.
func newTeam(of process.Team, c teamConfig) (*team, error) {
	limit := cmp.Or(c.patience, patience)
	of.Deadline = 2 * limit
	t := &team{Team: of, mesh: of.Mesh(), watch: watchdog{limit: limit}, ended: make(chan struct{})}
	t.scheduler = c.scheduler
	stiff := func(h process.Process) bool { return !h.Interruptible() }
	t.interruptible = t.scheduler != nil || !slices.ContainsFunc(c.processes, stiff)
	if t.scheduler != nil {
		t.scheduler.Stuck = t.deadlock
	}
	t.members = make([]process.Member, t.mesh.Plan.Ranks())
	here, first := make([][]int, len(c.processes)), make([]int, len(c.processes))
	of.Processes = make([]int, len(t.members))
	for m := range t.members {
		rank, _ := t.Device(m)
		at, place := c.processes.PlaceOf(rank)
		first[at] = rank - place
		here[at], of.Processes[m] = append(here[at], m), at
		if h, ok := c.processes[at].(fmt.Stringer); ok {
			t.names = append(t.names, h.String())
		}
	}
	if err := t.join(of, c, here, first); err != nil {
		return nil, err
	}
	return t, nil
}

// join starts the members in all processes at the same time, because processes may wait for each other. The first
// failure closes all processes, so that none waits in vain.
func (t *team) join(of process.Team, c teamConfig, here [][]int, first []int) error {
	joining := scope.New(func(error) {
		if c.owned {
			for _, h := range c.processes {
				h.Close()
			}
		}
	})
	t.subteams = make([]process.Subteam, len(c.processes))
	for at, h := range c.processes {
		if len(here[at]) == 0 {
			continue
		}
		own := of
		own.Local, own.First = here[at], first[at]
		joining.Go("start ranks", func() error {
			crew, err := h.Join(own)
			if err != nil {
				return err
			}
			t.subteams[at] = crew
			for i, m := range crew.Members() {
				t.members[own.Local[i]] = m
			}
			return nil
		})
	}
	err := joining.Wait()
	t.subteams = slices.DeleteFunc(t.subteams, func(c process.Subteam) bool { return c == nil })
	return err
}

// close ends the ranks after the commands that they have. It does not wait for a rank that hangs; ended is closed once
// that rank has returned too.
func (t *team) close() {
	var all []<-chan struct{}
	for _, c := range t.subteams {
		all = append(all, c.Close())
	}
	wait := func() error {
		for _, ended := range all {
			<-ended
		}
		close(t.ended)
		return nil
	}
	if t.hangs.Load() {
		scope.New(nil).Go("end of a rank that hangs", wait)
		return
	}
	_ = wait()
}

// all sends cut(rank) to every rank for which it is not nil and returns a function that waits for the replies, by rank.
// It returns the first error that is not just the echo of another rank's failure.
func (t *team) all(cut func(rank int) *rank.Command) func() ([]rank.Reply, error) {
	waits := make([]<-chan rank.Reply, len(t.members))
	errs := make([]error, len(t.members))
	for r, l := range t.members {
		if c := cut(r); c != nil {
			waits[r], errs[r] = l.Send(*c)
		}
	}
	return func() ([]rank.Reply, error) {
		replies := make([]rank.Reply, len(t.members))
		var first error
		for r, wait := range waits {
			if wait != nil {
				replies[r], errs[r] = t.await(wait)
			}
			if told := replies[r].Err; errs[r] == nil && told != nil {
				errs[r] = told
			}
			if errs[r] == nil {
				continue
			}
			if e := scope.AsError(errs[r]); first == nil ||
				scope.AsError(first).Code == failure.PeerLost && e.Code != failure.PeerLost {
				first = e
			}
		}
		return replies, first
	}
}
