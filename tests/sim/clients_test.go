package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
)

// client submits one job, and does with it what the plan says.
type client struct {
	w      *world
	oracle *oracle
	nodes  []*node
	job    int
	id     string
	dice   *rand.Rand // of one goroutine
}

// run submits the job and returns when all that the plan says is done.
func (c client) run(submit step) {
	time.Sleep(submit.at)
	steps := c.w.plan.of(c.job)
	two := slices.ContainsFunc(steps, func(s step) bool { return s.kind == twoBodies })
	var all sync.WaitGroup
	if two {
		other := c
		other.dice = c.w.plan.dice(c.id, twoBodies)
		all.Go(func() { other.create(c.nodes[1-submit.node], hashes[1]) })
	}
	if !c.create(c.nodes[submit.node], hashes[0]) && !two {
		c.w.violated("%s is refused for another body, and there is none", c.id)
	}
	for _, s := range steps {
		all.Go(func() { c.does(s) })
	}
	all.Wait()
}

// does does what a step of the plan says.
func (c client) does(s step) {
	c.dice = c.w.plan.dice(s)
	if s.n > 0 || s.kind == submits || s.kind == twoBodies {
		return
	}
	time.Sleep(s.at)
	c.w.happened(s)
	switch s.kind {
	case again:
		if !c.create(nil, c.oracle.hash(c.id)) {
			c.w.violated("%s is refused when it is submitted again", c.id)
		}
	case cancels:
		c.cancel()
	case revives:
		c.retry()
	}
}

// cancel cancels the job, as often as it takes.
func (c client) cancel() {
	c.oracle.asks(c.id)
	for {
		state, cancelled, err := c.any().Cancel(context.Background(), c.id)
		c.w.note("cancel %s: %s, %v, %v", c.id, state, cancelled, err)
		if err == nil {
			if cancelled {
				c.oracle.cancels(c.id, state)
			}
			return
		}
		time.Sleep(between(c.dice, 10*time.Millisecond, time.Second))
	}
}

// retry waits until the job has ended without a result, and retries it.
func (c client) retry() {
	for {
		rec, err := c.any().Get(c.id)
		if err == nil && rec.State == message.Done {
			return
		}
		if err == nil && rec.State.Final() {
			break
		}
		time.Sleep(time.Second)
	}
	defer c.oracle.revives(c.id)()
	rec, err := c.any().Retry(context.Background(), c.id)
	c.w.note("retry %s: %s, %v", c.id, rec.State, err)
}

// any waits for a daemon that is up and returns its table.
func (c client) any() *jobs.Table {
	for {
		if t := c.nodes[c.dice.IntN(len(c.nodes))].up(); t != nil {
			return t
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// create submits the job until a daemon takes it, first at a certain one, or refuses it because it has another body.
func (c client) create(first *node, hash string) bool {
	req := &message.RunRequest{
		ID: c.id, Workflow: messagetest.Graph("Step 1"), Inputs: map[string][]byte{"x": []byte(bodyOf(c.id, hash))},
	}
	var table *jobs.Table
	if first != nil {
		table = first.up()
	}
	for range 400 {
		if table == nil {
			table = c.any()
		}
		ctx, cancel := context.WithTimeout(context.Background(), jobs.AskTime)
		_, _, err := table.Create(ctx, req, hash)
		cancel()
		switch {
		case err == nil:
			c.w.note("receipt for %s, body %s", c.id, hash)
			c.oracle.receipt(c.id, hash)
			return true
		case errors.Is(err, jobs.ErrHash):
			return false
		}
		table = nil
		time.Sleep(between(c.dice, 10*time.Millisecond, 400*time.Millisecond))
	}
	c.w.violated("%s is never accepted", c.id)
	return false
}
