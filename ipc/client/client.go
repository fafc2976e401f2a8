package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/ipc/bulk"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Client sends requests to a daemon or a worker, over NATS or frames. It is safe for concurrent use.
type Client interface {
	// Ask sends a request. body is a struct of package message, a map, or nil; job is the ID for verbs about a job.
	Ask(ctx context.Context, verb, job string, body any) (*Replies, error)
	// Close ends the connection; runs tied to it are cancelled.
	Close() error
}

// Replies are the answers to one request, in order.
type Replies struct {
	mu     sync.Mutex
	queue  []Reply
	err    error // why nothing follows; io.EOF after the last reply
	closed bool
	begun  bool // within was called
	wake   chan struct{}
	cancel func()
	// fetches what replies refer to; nil: they hold no references to fetch
	pull func(ctx context.Context, ref *wire.Ref) (*bulk.Region, error)
	// arriving returns when the last byte came of a message that is on its way, for which others have to wait; zero: there
	// is none. nil: not known.
	arriving func() time.Time
}

// fetch replaces the references in a reply with the bytes they stand for.
func (m *Reply) fetch(ctx context.Context, pull func(context.Context, *wire.Ref) (*bulk.Region, error)) error {
	_, err := wire.ReplaceRefs(m.Fields, func(ref *wire.Ref) ([]byte, error) {
		g, err := pull(ctx, ref)
		if err != nil {
			return nil, err
		}
		m.Hold = m.Hold.Join(bulk.Holding(g))
		return g.Bytes(), nil
	})
	return err
}

// Reply is one reply, with the shared memory in which its data lies.
type Reply struct {
	Fields *pyjson.Object
	Hold   *bulk.Hold
}

func newReplies(cancel func()) *Replies {
	return &Replies{wake: make(chan struct{}, 1), cancel: cancel}
}

// Next returns the next reply, or io.EOF after the last one. An error reply is returned as a *fault.Error. The event of
// a failed job is no error reply: it has a type.
func (r *Replies) Next(ctx context.Context) (*pyjson.Object, error) {
	m, err := r.next(ctx)
	return m.own(), err
}

// next is Next for callers that release the shared memory themselves.
func (r *Replies) next(ctx context.Context) (Reply, error) {
	if err := r.await(ctx); err != nil {
		return Reply{}, err
	}
	return r.take(ctx)
}

// await waits until a reply or the end of them is there. A reply at the last moment of ctx is there.
func (r *Replies) await(ctx context.Context) error {
	for !r.waits() {
		select {
		case <-ctx.Done():
			if !r.waits() {
				return ctx.Err()
			}
		case <-r.wake:
		}
	}
	return nil
}

// waits reports whether there is something for take to return.
func (r *Replies) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue) > 0 || r.err != nil
}

// take returns the reply that is there, with the bytes that it refers to, or the end.
func (r *Replies) take(ctx context.Context) (Reply, error) {
	r.mu.Lock()
	if len(r.queue) == 0 {
		defer r.mu.Unlock()
		return Reply{}, r.err
	}
	m := r.queue[0]
	r.queue = r.queue[1:]
	r.mu.Unlock()
	err := wire.ReplyError(m.Fields)
	if err == nil && r.pull != nil {
		err = m.fetch(ctx, r.pull)
	}
	if err != nil {
		m.Hold.Release()
		m.Hold = nil
	}
	return m, err
}

// within is next but returns ErrSilent after silence (<= 0: no limit). The first reply may take receiptTime. The bytes
// of a long message that arrives are signs of life. Those that a reply refers to are pulled after the wait for it: who
// pulls them notices by itself that nothing comes.
func (r *Replies) within(ctx context.Context, silence time.Duration) (Reply, error) {
	if silence <= 0 {
		return r.next(ctx)
	}
	if !r.begun {
		silence = max(silence, receiptTime)
	}
	r.begun = true
	for {
		wait, stop := context.WithTimeout(ctx, silence)
		err := r.await(wait)
		stop()
		switch {
		case err == nil:
			return r.take(ctx)
		case ctx.Err() != nil:
			return Reply{}, ctx.Err()
		case r.arriving == nil || time.Since(r.arriving()) >= silence:
			return Reply{}, fmt.Errorf("%w for %s", ErrSilent, silence)
		}
	}
}

// own copies the data that lies in shared memory out of it and releases the memory.
func (m Reply) own() *pyjson.Object {
	if m.Hold != nil {
		bulk.Disown(m.Fields, m.Hold)
		m.Hold.Release()
	}
	return m.Fields
}

// One returns the only reply and closes r.
func (r *Replies) One(ctx context.Context) (*pyjson.Object, error) {
	m, err := r.OneHeld(ctx)
	return m.own(), err
}

// OneHeld is One for callers that release the shared memory themselves.
func (r *Replies) OneHeld(ctx context.Context) (Reply, error) {
	defer r.Close()
	m, err := r.next(ctx)
	if errors.Is(err, io.EOF) {
		err = errors.New("the request was answered with nothing")
	}
	return m, err
}

// Close gives up the remaining replies.
func (r *Replies) Close() {
	if r.cancel != nil {
		r.cancel()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.queue {
		m.Hold.Release()
	}
	r.queue, r.closed = nil, true
}

func (r *Replies) put(m Reply, end error) {
	r.mu.Lock()
	switch {
	case r.closed:
		m.Hold.Release()
	case m.Fields != nil:
		r.queue = append(r.queue, m)
	}
	if end != nil && r.err == nil {
		r.err = end
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// FrameClient is a Client on a byte stream: a unix socket, or the pipes of a worker.
type FrameClient struct {
	Enc   wire.Encoding // of requests and so of their replies; set before the first Ask
	w     *wire.FrameWriter
	close func() error
	gone  chan struct{}
	last  atomic.Int64 // when the last byte came of a frame that is arriving, in Unix nanoseconds; 0: none is

	mu      sync.Mutex
	next    int64
	pending map[int64]*Replies
	err     error
}

// DialSocket connects to the unix socket of a daemon.
func DialSocket(path string) (*FrameClient, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to daemon: %w", err)
	}
	fc := wire.ConnOf(c)
	return NewFrameClient(fc, fc, fc.Close), nil
}

// NewFrameClient reads replies from r until it ends and writes requests to w. closing must make r end.
func NewFrameClient(r io.Reader, w io.Writer, closing func() error) *FrameClient {
	c := &FrameClient{w: wire.NewFrameWriter(w), close: closing, gone: make(chan struct{}), pending: map[int64]*Replies{}}
	go c.read(r)
	return c
}

// Gone is closed when the stream has ended.
func (c *FrameClient) Gone() <-chan struct{} { return c.gone }

func (c *FrameClient) Ask(_ context.Context, verb, job string, body any) (*Replies, error) {
	if body == nil { // any other body names its job itself
		of := map[string]string{}
		if job != "" {
			of["job"] = job
		}
		body = of
	}
	cargo := bulk.NewShmCargo(bulk.HoldOf(body))
	defer cargo.Done(true)
	var place wire.Carry
	var accept []string
	if c.w.TakesDescriptors() && c.Enc == wire.Msgpack {
		place, accept = cargo.Put, []string{wire.RefShm}
	}
	b, err := wire.EncodeBeside(body, c.Enc, place, wire.BulkBytes)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	tag := c.next
	r := newReplies(func() { c.drop(tag) })
	r.arriving = c.arriving
	c.pending[tag] = r
	c.mu.Unlock()
	frame, err := wire.Splice(wire.Envelope{Op: verb, Tag: tag, Accept: accept}, b, c.Enc)
	if err == nil {
		err = c.w.Send(cargo.FDs(), frame)
	}
	if err != nil {
		c.drop(tag)
		return nil, fmt.Errorf("send request: %w", err)
	}
	return r, nil
}

func (c *FrameClient) drop(tag int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, tag)
}

func (c *FrameClient) Close() error {
	err := c.close()
	<-c.gone
	return err
}

// errHungUp ends open requests when the stream ends.
var errHungUp = errors.New("the connection was closed by the other side")

// arriving implements Replies.arriving.
func (c *FrameClient) arriving() time.Time {
	if at := c.last.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// noting notes when bytes arrive.
type noting struct {
	io.Reader
	last *atomic.Int64
}

func (n noting) Read(b []byte) (int, error) {
	read, err := n.Reader.Read(b)
	n.last.Store(time.Now().UnixNano())
	return read, err
}

func (c *FrameClient) read(r io.Reader) {
	var err error
	for err == nil {
		var body []byte
		body, err = wire.ReadFrame(noting{r, &c.last})
		fds, many := wire.TakeFDs(r)
		switch {
		case err != nil:
			wire.CloseFDs(fds)
		case many != nil:
			err = many
		default:
			err = c.frame(body, fds)
		}
		c.last.Store(0)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = errHungUp
	}
	c.mu.Lock()
	c.err = err
	for _, p := range c.pending {
		p.put(Reply{}, err)
	}
	clear(c.pending)
	c.mu.Unlock()
	close(c.gone)
}

func (c *FrameClient) frame(body []byte, fds []int) error {
	defer func() { wire.CloseFDs(fds) }()
	enc, ok := wire.Sniff(body)
	if !ok {
		return fmt.Errorf("a reply of %d bytes is no msgpack map; does the other side print to its stdout?", len(body))
	}
	o, err := wire.Decode(body, enc, wire.FrameLimits())
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	env, fields, err := wire.Unwrap(o)
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	tag, ok := env.Tag.(int64)
	if !ok {
		if e := wire.ReplyError(fields); e != nil {
			return e
		}
		return fmt.Errorf("a reply without a tag")
	}
	c.mu.Lock()
	r := c.pending[tag]
	if env.End {
		delete(c.pending, tag)
	}
	c.mu.Unlock()
	if r == nil {
		return nil // its request was closed
	}
	memory, err := bulk.MappedReply(fields, fds)
	fds = nil
	if err != nil {
		r.put(Reply{}, fmt.Errorf("read reply: %w", err))
		return nil
	}
	var end error
	if env.End {
		end = io.EOF
	}
	if fields.Len() == 0 {
		fields = nil
	}
	r.put(Reply{fields, memory}, end)
	return nil
}
