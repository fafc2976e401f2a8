package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
)

// clients submit jobs to any daemon that is up, some twice, some with two bodies at once; they cancel some and retry
// some of those.
type clients struct {
	w      *world
	oracle *oracle
	nodes  []*node
}

// lanes is the number of clients that submit side by side.
const lanes = 8

// submit submits that many jobs.
func (c *clients) submit(total int) {
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < total; i += lanes {
				c.one(fmt.Sprintf("j%06d", i))
				time.Sleep(c.w.between(0, 1500*time.Millisecond))
			}
		})
	}
	all.Wait()
}

// one is what a client does with one job.
func (c *clients) one(id string) {
	two := c.w.chance(.1)
	var other sync.WaitGroup
	if two {
		other.Go(func() { c.create(id, hashes[1]) })
	}
	accepted := c.create(id, hashes[0])
	other.Wait()
	if !accepted && !two {
		c.w.violated("%s is refused for another body, and there is none", id)
	}
	if c.w.chance(.15) && !c.create(id, c.oracle.hash(id)) {
		c.w.violated("%s is refused when it is submitted again", id)
	}
	if !c.w.chance(.1) {
		return
	}
	time.Sleep(c.w.between(0, 2*time.Second))
	state, cancelled, err := c.any().Cancel(context.Background(), id)
	c.w.note("cancel %s: %s, %v, %v", id, state, cancelled, err)
	if err != nil || !cancelled || state != message.Cancelled {
		return
	}
	c.oracle.told(id, false)
	if c.w.chance(.3) {
		rec, err := c.any().Retry(context.Background(), id)
		c.w.note("retry %s: %s, %v", id, rec.State, err)
		if err == nil && rec.State == message.Queued {
			c.oracle.told(id, true)
		}
	}
}

// any waits for a daemon that is up and returns its table.
func (c *clients) any() *jobs.Table {
	for {
		if t := c.nodes[c.w.below(len(c.nodes))].up(); t != nil {
			return t
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// create submits a job until a daemon takes it, or refuses it because it has another body.
func (c *clients) create(id, hash string) bool {
	req := &message.RunRequest{
		ID: id, Workflow: messagetest.Graph("Step 1"), Inputs: map[string][]byte{"x": []byte(bodyOf(id, hash))},
	}
	for range 400 {
		ctx, cancel := context.WithTimeout(context.Background(), jobs.AskTime)
		_, _, err := c.any().Create(ctx, req, hash)
		cancel()
		switch {
		case err == nil:
			c.w.note("receipt for %s, body %s", id, hash)
			c.oracle.receipt(id, hash)
			return true
		case errors.Is(err, jobs.ErrHash):
			return false
		}
		time.Sleep(c.w.between(10*time.Millisecond, 400*time.Millisecond))
	}
	c.w.violated("%s is never accepted", id)
	return false
}
