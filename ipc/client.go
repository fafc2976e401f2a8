package ipc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"patchbay/node/pyjson"
)

// Client asks a daemon or a worker, over NATS or frames. Safe for concurrent use.
type Client interface {
	// Ask sends a request. body is a struct or map of message.go, or nil; job is the job of status and cancel.
	Ask(ctx context.Context, verb, job string, body any) (*Replies, error)
	// Close ends the connection; runs tied to it are cancelled.
	Close() error
}

// Replies are the answers to one request, in order.
type Replies struct {
	mu     sync.Mutex
	queue  []reply
	err    error // why nothing follows; io.EOF after the last reply
	closed bool
	wake   chan struct{}
	cancel func()
	pull   func(ctx context.Context, ref *Ref) (*Region, error) // fetches what replies refer to; nil: they refer to nothing else
}

// fetch replaces references of a reply by what they mean.
func (m *reply) fetch(ctx context.Context, pull func(context.Context, *Ref) (*Region, error)) error {
	_, err := replaced(m.fields, func(ref *Ref) ([]byte, error) {
		g, err := pull(ctx, ref)
		if err != nil {
			return nil, err
		}
		m.hold = m.hold.join(holding(g))
		return g.Bytes(), nil
	})
	return err
}

// reply is one reply, with the shared memory that it lies in.
type reply struct {
	fields *pyjson.Object
	hold   *hold
}

func newReplies(cancel func()) *Replies {
	return &Replies{wake: make(chan struct{}, 1), cancel: cancel}
}

// Next returns the next reply; io.EOF after the last one. A reply that is an error is returned as *Error. An event of a job that failed is no
// error reply: it has a type.
func (r *Replies) Next(ctx context.Context) (*pyjson.Object, error) {
	m, err := r.next(ctx)
	return m.own(), err
}

// next is Next for those who release the shared memory themselves.
func (r *Replies) next(ctx context.Context) (reply, error) {
	for {
		r.mu.Lock()
		if len(r.queue) > 0 {
			m := r.queue[0]
			r.queue = r.queue[1:]
			r.mu.Unlock()
			err := replyError(m.fields)
			if err == nil && r.pull != nil {
				err = m.fetch(ctx, r.pull)
			}
			if err != nil {
				m.hold.release()
				m.hold = nil
			}
			return m, err
		}
		err := r.err
		r.mu.Unlock()
		if err != nil {
			return reply{}, err
		}
		select {
		case <-ctx.Done():
			return reply{}, ctx.Err()
		case <-r.wake:
		}
	}
}

// own copies what lies in shared memory, and releases that.
func (m reply) own() *pyjson.Object {
	if m.hold != nil {
		disown(m.fields, m.hold)
		m.hold.release()
	}
	return m.fields
}

// disown replaces tensors and bytes that lie in h by copies, in place.
func disown(v any, h *hold) any {
	switch x := v.(type) {
	case []byte:
		if h.has(x) {
			return bytes.Clone(x)
		}
	case *Tensor:
		if x != nil && h.has(x.Data) {
			x.Data = bytes.Clone(x.Data)
		}
	case []any:
		for i := range x {
			x[i] = disown(x[i], h)
		}
	case *pyjson.Object:
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			x.Set(k, disown(e, h))
		}
	}
	return v
}

// One returns the only reply.
func (r *Replies) One(ctx context.Context) (*pyjson.Object, error) {
	m, err := r.one(ctx)
	return m.own(), err
}

func (r *Replies) one(ctx context.Context) (reply, error) {
	defer r.Close()
	m, err := r.next(ctx)
	if errors.Is(err, io.EOF) {
		err = errors.New("the request was answered with nothing")
	}
	return m, err
}

// Close gives up the rest.
func (r *Replies) Close() {
	if r.cancel != nil {
		r.cancel()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.queue {
		m.hold.release()
	}
	r.queue, r.closed = nil, true
}

func (r *Replies) put(o *pyjson.Object, end error) { r.putHeld(reply{fields: o}, end) }

func (r *Replies) putHeld(m reply, end error) {
	r.mu.Lock()
	switch {
	case r.closed:
		m.hold.release()
	case m.fields != nil:
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

// replyError returns the error that a reply is, or nil.
func replyError(o *pyjson.Object) error {
	if _, ok := o.Get("type"); ok {
		return nil
	}
	v, ok := o.Get("error")
	if !ok {
		return nil
	}
	return errorFrom(v, o)
}

// errorFrom reads the value of "error"; body is the message around it.
func errorFrom(v any, body *pyjson.Object) *Error {
	e := &Error{}
	o, ok := v.(*pyjson.Object)
	if !ok {
		return Errorf(ErrInternal, "an error that is %s", kindOf(v))
	}
	if err := Bind(o, e); err != nil {
		return Errorf(ErrInternal, "an error that cannot be read: %v", err)
	}
	if n, _ := body.Get("node_errors"); n != nil {
		if no, ok := n.(*pyjson.Object); ok {
			e.NodeErrors = map[string]any{}
			for _, k := range no.Keys() {
				e.NodeErrors[k], _ = no.Get(k)
			}
		}
	}
	return e
}

// FrameClient is a Client on a byte stream: a unix socket, or the pipes of a worker.
type FrameClient struct {
	enc   Encoding
	w     *FrameWriter
	close func() error
	gone  chan struct{}

	mu      sync.Mutex
	next    int64
	pending map[int64]*Replies
	shared  []*Region
	err     error
}

// Share makes tensors and bytes that lie in the region go without a copy from now on. The region must stay until every request that it is in is answered.
func (c *FrameClient) Share(r *Region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shared = append(c.shared, r)
}

// DialSocket connects to the unix socket of a daemon.
func DialSocket(path string) (*FrameClient, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to daemon: %w", err)
	}
	fc := fdConnOf(c)
	return NewFrameClient(fc, fc, fc.Close), nil
}

// NewFrameClient reads replies from r until it ends and writes requests to w. closing must make r end.
func NewFrameClient(r io.Reader, w io.Writer, closing func() error) *FrameClient {
	c := &FrameClient{w: NewFrameWriter(w), close: closing, gone: make(chan struct{}), pending: map[int64]*Replies{}}
	go c.read(r)
	return c
}

// Gone is closed when the stream has ended.
func (c *FrameClient) Gone() <-chan struct{} { return c.gone }

// Ask implements Client.
func (c *FrameClient) Ask(_ context.Context, verb, job string, body any) (*Replies, error) {
	b := [][]byte{emptyMap(c.enc)}
	beside, place := (*shmCargo)(nil), carrierOf(nil)
	var accept []string
	if _, ok := c.w.w.(*fdConn); ok && c.enc == Msgpack {
		c.mu.Lock()
		beside = newShmCargo(holdOf(body), c.shared...)
		c.mu.Unlock()
		place, accept = beside.put, []string{RefShm}
		defer beside.done(true)
	}
	if body != nil {
		var err error
		if b, err = encodeBeside(body, c.enc, place, bulkBytes); err != nil {
			return nil, err
		}
	}
	if job != "" && body == nil { // a body names its job itself
		extra, err := Encode(map[string]string{"job": job}, c.enc)
		if err != nil {
			return nil, err
		}
		if b, err = spliceParts(extra, b[0], c.enc); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	tag := c.next
	r := newReplies(func() { c.drop(tag) })
	c.pending[tag] = r
	c.mu.Unlock()
	frame, err := spliceFirst(envelope{Op: verb, Tag: tag, Accept: accept}, b, c.enc)
	if err == nil {
		var fds []int
		if beside != nil {
			fds = beside.fds()
		}
		err = c.w.send(fds, frame)
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

// Close implements Client.
func (c *FrameClient) Close() error {
	err := c.close()
	<-c.gone
	return err
}

// errHungUp is what open requests get when the stream ends under them.
var errHungUp = errors.New("the connection was closed by the other side")

func (c *FrameClient) read(r io.Reader) {
	var err error
	for err == nil {
		var body []byte
		body, err = ReadFrame(r)
		fds, many := takeFDs(r)
		switch {
		case err != nil:
			closeFDs(fds)
		case many != nil:
			err = many
		default:
			err = c.frame(body, fds)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = errHungUp
	}
	c.mu.Lock()
	c.err = err
	for _, p := range c.pending {
		p.put(nil, err)
	}
	clear(c.pending)
	c.mu.Unlock()
	close(c.gone)
}

func (c *FrameClient) frame(body []byte, fds []int) error {
	defer func() { closeFDs(fds) }()
	enc, ok := Sniff(body)
	if !ok {
		return fmt.Errorf("a reply of %d bytes is no msgpack map; does the other side print to its stdout?", len(body))
	}
	o, err := Decode(body, enc, frameLimits())
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	env, fields, err := unwrap(o)
	if err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	tag, ok := env.Tag.(int64)
	if !ok {
		if e := replyError(fields); e != nil {
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
		return nil // given up
	}
	memory, err := mappedReply(fields, fds)
	fds = nil
	if err != nil {
		r.put(nil, fmt.Errorf("read reply: %w", err))
		return nil
	}
	var end error
	if env.End {
		end = io.EOF
	}
	if fields.Len() == 0 {
		fields = nil
	}
	r.putHeld(reply{fields, memory}, end)
	return nil
}
