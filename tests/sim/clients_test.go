package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"patchbay/fault"
	ipcclient "patchbay/ipc/client"
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
	if !slices.Contains([]string{again, cancels, revives, reads, moves, drops}, s.kind) {
		return
	}
	c.dice = c.w.plan.dice(s)
	time.Sleep(s.at)
	c.w.happened(s)
	switch s.kind {
	case again:
		if !c.create(nil, c.oracle.hash(c.id)) && !c.oracle.isTorn(c.id) {
			c.w.violated("%s is refused when it is submitted again", c.id)
		}
	case cancels:
		c.cancel()
	case revives:
		c.retry()
	case moves:
		c.move()
	case drops:
		c.drop()
	case reads:
		c.oracle.reads(c.id, 1)
		c.w.readers.Go(func() { c.follow(c.id, s.lasts) })
	}
}

// dial opens a connection to a daemon: to the socket of a certain one, or if that is nil, to that of any, or over NATS,
// where the daemon is not known.
func (c client) dial(n *node) (ipcclient.Client, *node, error) {
	if n == nil && c.dice.IntN(2) == 0 {
		conn, err := ipcclient.DialInside(way{c.w, nil})
		if err != nil {
			return nil, nil, err
		}
		return conn, nil, nil
	}
	if n == nil {
		n = c.nodes[c.dice.IntN(len(c.nodes))]
	}
	conn, err := n.dial()
	if err != nil {
		return nil, n, err
	}
	return ipcclient.NewFrameClient(conn, conn, conn.Close), n, nil
}

// answered is how long a client waits for the answer to a request, which is longer than daemons work on one.
const answered = 3 * jobs.AskTime

// ask sends a request to some daemon.
func (c client) ask(f func(context.Context, ipcclient.Client) error) error {
	conn, _, err := c.dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answered)
	defer cancel()
	return f(ctx, conn)
}

// lasting returns a client that follows a job to its end, whatever becomes of its connection.
func (c client) lasting() *ipcclient.Lasting {
	return &ipcclient.Lasting{Patience: acceptance, Say: c.w.note, Dial: func() (ipcclient.Client, error) {
		conn, _, err := c.dial(nil)
		return conn, err
	}}
}

// follow reads the events of a job and its files to the end, with a pause after each event.
func (c client) follow(id string, pause time.Duration) {
	c.dice = c.w.plan.dice("follow", id, pause)
	for from := c.lasting(); c.w.life.Err() == nil; time.Sleep(time.Second) {
		var last message.Event
		col := &ipcclient.Collector{Event: func(ev message.Event) {
			c.w.note("read of %s: %d %s", id, ev.Seq, ev.Type)
			if last.TS == ev.TS && last.Seq == ev.Seq && last.Type == ev.Type {
				c.w.violated("a reader of %s gets event %d, %s, twice", id, ev.Seq, ev.Type)
			}
			last = ev
			time.Sleep(pause)
		}}
		end, err := ipcclient.Follow(c.w.life, from, id, 1, true, col)
		_ = from.Close()
		switch {
		case err == nil:
			c.oracle.hears(id, *end, col.Files)
			c.oracle.reads(id, -1)
			return
		case c.w.life.Err() == nil: // it has not heard of the job yet, or cannot fetch its files now
			c.w.note("read of %s: %v", id, err)
			if gone, ok := errors.AsType[*fault.Error](err); ok && gone.Code == fault.Expired &&
				(c.oracle.dropping(id) || c.oracle.elsewhere(id)) {
				c.oracle.reads(id, -1)
				return
			}
		}
	}
}

// cancel cancels the job, as often as it takes, every other time while it runs.
func (c client) cancel() {
	for wait := c.dice.IntN(2) * 300; wait > 0 && !c.oracle.running(c.id); wait-- {
		time.Sleep(100 * time.Millisecond)
	}
	defer c.oracle.asks(c.id)()
	for {
		var cancelled bool
		var state message.State
		if c.dice.IntN(4) == 0 { // what is cancelled over HTTP does not say where it was
			err := c.cancelPosted()
			c.w.note("cancel %s over HTTP: %v", c.id, err)
		}
		err := c.ask(func(ctx context.Context, conn ipcclient.Client) (err error) {
			cancelled, state, err = ipcclient.Cancel(ctx, conn, c.id)
			return err
		})
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

// move moves the job to the front or to a priority, unless it waits no more.
func (c client) move() {
	to := message.MoveRequest{Front: true}
	if n := c.dice.IntN(2 * len(message.Priorities())); n < len(message.Priorities()) {
		to = message.MoveRequest{Priority: message.Priorities()[n]}
	}
	c.oracle.moves(c.id)
	for range 3 {
		err := c.ask(func(ctx context.Context, conn ipcclient.Client) error {
			_, err := ipcclient.Move(ctx, conn, c.id, to)
			return err
		})
		c.w.note("move %s to %+v: %v", c.id, to, err)
		if err == nil {
			return
		}
		time.Sleep(between(c.dice, 10*time.Millisecond, time.Second))
	}
}

// drop deletes the files of the job once it has ended.
func (c client) drop() {
	c.oracle.drops(c.id, false)
	for range 60 {
		var reply message.DeleteReply
		err := c.ask(func(ctx context.Context, conn ipcclient.Client) (err error) {
			reply, err = ipcclient.Delete(ctx, conn, c.id)
			return err
		})
		c.w.note("delete the files of %s: %d, %v", c.id, reply.Files, err)
		if err == nil {
			if reply.State == message.Done {
				c.oracle.drops(c.id, true)
			}
			return
		}
		time.Sleep(time.Second)
	}
}

// retry waits until the job has ended without a result, and retries it.
func (c client) retry() {
	var rec message.Record
	for ; !rec.State.Final(); time.Sleep(time.Second) {
		err := c.ask(func(ctx context.Context, conn ipcclient.Client) (err error) {
			rec, err = ipcclient.Status(ctx, conn, c.id)
			return err
		})
		if err == nil && rec.State == message.Done {
			return
		}
	}
	end := c.oracle.revives(c.id)
	err := c.ask(func(ctx context.Context, conn ipcclient.Client) error { return ipcclient.Retry(ctx, conn, c.id) })
	c.w.note("retry %s: %v", c.id, err)
	if err != nil { // a daemon may be at it still
		time.Sleep(answered)
	}
	end(err == nil)
}

// request returns the job with a body.
func (c client) request(hash string) *message.RunRequest {
	req := &message.RunRequest{
		ID: c.id, Workflow: messagetest.Graph("Step 1"), Inputs: map[string][]byte{"x": []byte(bodyOf(c.id, hash))},
		Client: c.w.plan.from(c.job),
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
			req.Inputs["x"], req.Client = []byte(bodyOf(req.UniqueKey, hash)), c.w.plan.from(-1)
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
	var last error
	from, _ := req.Client.(string)
	began := time.Now()
	for pause := 400 * time.Millisecond; time.Since(began) < acceptance; pause += 20 * time.Millisecond {
		conn, n, err := c.dial(first)
		first = nil
		if err == nil {
			full := c.full(n, from, 0)
			hand := c.hand
			if n != nil && !req.Tied && c.dice.IntN(3) == 0 {
				hand = c.post(n)
			}
			var receipt message.Receipt
			if receipt, err = hand(conn, req); err == nil {
				c.w.note("receipt for %s, body %s, key %q", receipt.Job, hash, req.UniqueKey)
				c.oracle.receipt(receipt.Job, hash)
				if still := c.full(n, from, 1); !receipt.Duplicate && full != "" && still != "" {
					c.w.violated("%s is accepted beyond a limit: %s", receipt.Job, still)
				}
				return true
			}
		}
		if refused, ok := errors.AsType[*fault.Error](err); ok && refused.Code == fault.Duplicate {
			return false
		}
		last = err
		time.Sleep(between(c.dice, 10*time.Millisecond, pause))
	}
	c.w.violated("%s is never accepted: %v", c.id, last)
	return false
}

// hand hands the job in and returns its receipt. A client of a tied job follows it
// on that connection, until it leaves if the plan says so. One of three others follows it whatever happens.
func (c client) hand(conn ipcclient.Client, req *message.RunRequest) (message.Receipt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answered)
	if !req.Tied {
		defer cancel()
		defer conn.Close()
		receipt, err := ipcclient.Submit(ctx, conn, req)
		if err == nil && c.dice.IntN(3) == 0 {
			c.oracle.reads(receipt.Job, 1)
			c.w.readers.Go(func() { c.follow(receipt.Job, 0) })
		}
		return receipt, err
	}
	cancel()
	ctx, leave := context.WithCancel(c.w.life)
	accepted, failed, began := make(chan message.Receipt, 1), make(chan error, 1), time.Now()
	c.w.readers.Go(func() {
		defer leave()
		col := &ipcclient.Collector{Accepted: func(r message.Receipt) { accepted <- r }}
		end, err := ipcclient.Run(ctx, conn, req, col)
		_ = conn.Close()
		if err == nil && end != nil {
			c.oracle.hears(req.ID, *end, col.Files)
		}
		c.w.note("the client of %s leaves: %v", req.ID, err)
		failed <- err
	})
	select {
	case r := <-accepted:
		if s, is := c.w.plan.has(c.job, ties); is && !r.Duplicate {
			time.AfterFunc(s.lasts, func() {
				c.oracle.leaves(req.ID, began)
				leave()
			})
		}
		return r, nil
	case err := <-failed:
		return message.Receipt{}, cmp.Or(err, errors.New("no receipt"))
	case <-time.After(answered):
		leave()
		return message.Receipt{}, errors.New("no receipt for long")
	}
}

// acceptance is how long clients try to submit a job: a store that was full takes new jobs ten minutes later at the
// latest.
const acceptance = 15 * time.Minute

// full returns which limit of a daemon allows no new job, besides some that it has taken just now. On NATS, the limits
// of all must.
func (c client) full(n *node, from string, taken int) (why string) {
	if n == nil {
		for _, n := range c.nodes {
			if why = c.full(n, from, taken); why == "" && n.up() != nil {
				return ""
			}
		}
		return why
	}
	table := n.up()
	if table == nil {
		return ""
	}
	if waiting, _ := table.Busy(); c.w.plan.queue > 0 && waiting >= c.w.plan.queue+taken {
		return fmt.Sprintf("%d of %d jobs wait", waiting, c.w.plan.queue)
	}
	open := 0
	list, _ := table.List("", every)
	for _, rec := range list {
		if rec.From == from && !rec.State.Final() {
			open++
		}
	}
	if c.w.plan.perClient > 0 && open >= c.w.plan.perClient+taken {
		return fmt.Sprintf("%d of %d jobs of the client have not ended", open, c.w.plan.perClient)
	}
	return ""
}
