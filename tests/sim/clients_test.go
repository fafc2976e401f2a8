package sim

import (
	"context"
	"errors"
	"fmt"
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
	defer c.w.waits(c.id)()
	time.Sleep(submit.at)
	c.w.happened(submit)
	steps := c.w.plan.of(c.job)
	_, two := c.w.plan.has(c.job, twoBodies)
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
	if !slices.Contains([]string{again, cancels, revives, ties, reads}, s.kind) {
		return
	}
	c.dice = c.w.plan.dice(s)
	time.Sleep(s.at)
	c.w.happened(s)
	switch s.kind {
	case again:
		if !c.create(nil, c.oracle.hash(c.id)) {
			c.w.violated("%s is refused when it is submitted again", c.id)
		}
	case cancels:
		c.cancel()
	case ties:
		time.Sleep(s.lasts)
		c.cancel() // as the carrier does when the client has left
	case revives:
		c.retry()
	case reads:
		go c.read(s.lasts)
	}
}

// read reads the events of the job to the end, with a pause after each, at one daemon and when that dies at another.
func (c client) read(pause time.Duration) {
	c.oracle.reads(c.id, 1)
	next, ended := uint64(0), false
	for c.w.life.Err() == nil {
		table, life := c.nodes[c.dice.IntN(len(c.nodes))].alive()
		if table == nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		cur, err := table.Follow(life, c.id, next, false)
		if err != nil { // it has not heard of the job yet
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for err == nil {
			var it jobs.Item
			if it, err = cur.Next(life); err == nil {
				next, ended = it.Event.Seq+1, message.Terminal(it.Event.Type)
				c.w.note("read of %s: %d %s", c.id, it.Event.Seq, it.Event.Type)
				time.Sleep(pause)
			}
		}
		cur.Close()
		if errors.Is(err, jobs.ErrEnd) {
			if !ended && !c.w.lossy() { // events may be lost
				c.w.violated("a reader of %s is told that it has ended, without its end", c.id)
			}
			c.oracle.reads(c.id, -1)
			return
		}
	}
}

// cancel cancels the job, as often as it takes.
func (c client) cancel() {
	defer c.oracle.asks(c.id)()
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
	end := c.oracle.revives(c.id)
	rec, err := c.any().Retry(context.Background(), c.id)
	end(err == nil)
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

// request returns the job with a body.
func (c client) request(hash string) *message.RunRequest {
	req := &message.RunRequest{
		ID: c.id, Workflow: messagetest.Graph("Step 1"), Inputs: map[string][]byte{"x": []byte(bodyOf(c.id, hash))},
		From: c.w.plan.from(c.job),
	}
	for _, s := range c.w.plan.of(c.job) {
		switch s.kind {
		case large:
			req.Inputs["y"] = make([]byte, 600<<10)
		case ties:
			req.Tied = true
		case hurry:
			req.QueueTTLMS = int(s.lasts.Milliseconds())
		case first:
			req.Front = true
		case urgent:
			req.Priority = "high"
		case lowly:
			req.Priority = "low"
		case later:
			req.NotBefore = c.oracle.notBefore(c.job).UnixMilli()
		case oneOnly:
			req.ID, req.UniqueKey, req.UniqueMS = "", fmt.Sprint("key", s.n), int(c.w.plan.window(s.n).Milliseconds())
			req.Inputs["x"], req.From = []byte(bodyOf(req.UniqueKey, hash)), c.w.plan.from(-1)
		}
	}
	return req
}

// create submits the job until a daemon takes it, first at a certain one, or refuses it because it has another body.
func (c client) create(first *node, hash string) bool {
	req := c.request(hash)
	if req.Tied {
		c.oracle.asks(c.id)
	}
	var table *jobs.Table
	if first != nil {
		table = first.up()
	}
	var last error
	began := time.Now()
	for pause := 400 * time.Millisecond; time.Since(began) < acceptance; pause += 20 * time.Millisecond {
		if table == nil {
			table = c.any()
		}
		full := c.full(table, req.From)
		ctx, cancel := context.WithTimeout(context.Background(), jobs.AskTime)
		rec, created, err := table.Create(ctx, req, hash)
		cancel()
		switch {
		case err == nil:
			c.w.note("receipt for %s, body %s, key %q", rec.Job, hash, req.UniqueKey)
			c.oracle.receipt(rec.Job, hash)
			if created && full != "" {
				c.w.violated("%s is accepted beyond a limit: %s", c.id, full)
			}
			return true
		case errors.Is(err, jobs.ErrHash):
			return false
		}
		table, last = nil, err
		time.Sleep(between(c.dice, 10*time.Millisecond, pause))
	}
	c.w.violated("%s is never accepted: %v", c.id, last)
	return false
}

// acceptance is how long clients try to submit a job: a store that was full takes new jobs ten minutes later at the
// latest.
const acceptance = 15 * time.Minute

// full returns which limit of a table allows no new job.
func (c client) full(table *jobs.Table, from string) string {
	if waiting, _ := table.Busy(); c.w.plan.queue > 0 && waiting >= c.w.plan.queue {
		return fmt.Sprintf("%d of %d jobs wait", waiting, c.w.plan.queue)
	}
	open := 0
	list, _ := table.List("", every)
	for _, rec := range list {
		if rec.From == from && !rec.State.Final() {
			open++
		}
	}
	if c.w.plan.perClient > 0 && open >= c.w.plan.perClient {
		return fmt.Sprintf("%d of %d jobs of the client have not ended", open, c.w.plan.perClient)
	}
	return ""
}
