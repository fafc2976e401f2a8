// Package leader directs the ranks of one plan: it starts them in their processes as a team (team.go), cuts each
// evaluation of a session into commands for them and assembles their replies (session.go), and fails requests whose
// ranks make no progress (watchdog.go). It knows neither samplers nor where weights are resident.
package leader

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"patchbay/fault"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
	"patchbay/parallel/scope"
)

// Team is the ranks of one plan as the leader sees them: it sends commands to them and collects their replies. (The
// word is from Fortran and UPC++; a group is what one Comm joins.)
type Team struct {
	process.TeamSpec
	Mesh      plan.Mesh // of members
	Members   []process.Member
	subteams  []process.Subteam
	Watch     watchdog
	Hangs     atomic.Bool      // a rank hangs and was left behind
	Scheduler *scope.Scheduler // nil: everything runs freely
	Ended     chan struct{}    // closed after close, once all ranks have returned
	names     []string         // of the members' processes; nil: all share this one

	Interruptible bool // exchanges can be cut short
	InStep        bool // a canceled run has left all ranks in step
}

// Rendezvous is how long ranks of Workspace.Shared, and bands of the VAE, wait for each other before the work fails
// with an error that names both.
const Rendezvous = 2 * time.Minute

// TeamConfig is what a team needs of the process that leads it.
type TeamConfig struct {
	Processes process.List     // where its ranks run
	Owned     bool             // the processes are closed if a rank does not start
	Patience  time.Duration    // how long all ranks together may make no progress; 0: ten minutes
	Scheduler *scope.Scheduler // nil: everything runs freely
}

// NewTeam starts the ranks of a plan, each in the process that it belongs to.
func NewTeam(of process.TeamSpec, c TeamConfig) (*Team, error) {
	limit := cmp.Or(c.Patience, patience)
	of.Deadline = 2 * limit
	t := &Team{TeamSpec: of, Mesh: of.Mesh(), Watch: watchdog{limit: limit}, Ended: make(chan struct{})}
	t.Scheduler = c.Scheduler
	stiff := func(h process.Process) bool { return !h.Interruptible() }
	t.Interruptible = t.Scheduler != nil || !slices.ContainsFunc(c.Processes, stiff)
	if t.Scheduler != nil {
		t.Scheduler.Stuck = t.deadlock
	}
	t.Members = make([]process.Member, t.Mesh.Plan.Ranks())
	local, first := make([][]int, len(c.Processes)), make([]int, len(c.Processes))
	of.Processes = make([]int, len(t.Members))
	for m := range t.Members {
		rank, _ := t.Device(m)
		at, place := c.Processes.PlaceOf(rank)
		first[at] = rank - place
		local[at], of.Processes[m] = append(local[at], m), at
		if h, ok := c.Processes[at].(fmt.Stringer); ok {
			t.names = append(t.names, h.String())
		}
	}
	if err := t.join(of, c, local, first); err != nil {
		return nil, err
	}
	return t, nil
}

// join starts the members in all processes at the same time, because processes may wait for each other. The first
// failure closes all processes, so that none waits forever.
func (t *Team) join(of process.TeamSpec, c TeamConfig, local [][]int, first []int) error {
	joining := scope.New(func(error) {
		if c.Owned {
			for _, h := range c.Processes {
				h.Close()
			}
		}
	})
	t.subteams = make([]process.Subteam, len(c.Processes))
	for at, h := range c.Processes {
		if len(local[at]) == 0 {
			continue
		}
		spec := of
		spec.Local, spec.First = local[at], first[at]
		joining.Go("start ranks", func() error {
			crew, err := h.Join(spec)
			if err != nil {
				return err
			}
			t.subteams[at] = crew
			for i, m := range crew.Members() {
				t.Members[spec.Local[i]] = m
			}
			return nil
		})
	}
	err := joining.Wait()
	t.subteams = slices.DeleteFunc(t.subteams, func(c process.Subteam) bool { return c == nil })
	return err
}

// Close ends the ranks after the commands that they have. It does not wait for a rank that hangs; ended is closed once
// that rank has returned too.
func (t *Team) Close() {
	var all []<-chan struct{}
	for _, c := range t.subteams {
		all = append(all, c.Close())
	}
	wait := func() error {
		for _, ended := range all {
			<-ended
		}
		close(t.Ended)
		return nil
	}
	if t.Hangs.Load() {
		scope.New(nil).Go("end of a rank that hangs", wait)
		return
	}
	_ = wait()
}

// All sends cut(rank) to every rank for which it is not nil and returns a function that waits for the replies, by rank.
// It returns the first error that is not just the echo of another rank's failure.
func (t *Team) All(cut func(rank int) *rank.Command) func() ([]rank.Reply, error) {
	waits := make([]<-chan rank.Reply, len(t.Members))
	errs := make([]error, len(t.Members))
	for r, l := range t.Members {
		if c := cut(r); c != nil {
			waits[r], errs[r] = l.Send(*c)
		}
	}
	return func() ([]rank.Reply, error) {
		replies := make([]rank.Reply, len(t.Members))
		var first error
		for r, wait := range waits {
			if wait != nil {
				replies[r], errs[r] = t.await(wait)
			}
			if failure := replies[r].Err; errs[r] == nil && failure != nil {
				errs[r] = failure
			}
			if errs[r] == nil {
				continue
			}
			if e := scope.AsError(errs[r]); first == nil ||
				scope.AsError(first).Code == fault.PeerLost && e.Code != fault.PeerLost {
				first = e
			}
		}
		return replies, first
	}
}
