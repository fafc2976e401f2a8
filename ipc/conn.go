package ipc

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"

	"patchbay/node/pyjson"
)

// conn serves one byte stream: frames in, frames out. Runs are tied to it.
type conn struct {
	r    io.Reader
	w    *FrameWriter
	s    *Service
	gone chan struct{}
	wg   sync.WaitGroup // requests whose last reply is not sent
}

// serveConn answers the requests of one byte stream until it ends or ctx ends; then no new ones are taken, and streams under way may finish until drain
// ends. closing is called when the stream is not to be read any more. A clean end of the stream is nil.
func serveConn(ctx, drain context.Context, r io.Reader, w io.Writer, closing func(), s *Service) error {
	c := &conn{r: r, w: NewFrameWriter(w), s: s, gone: make(chan struct{})}
	read := make(chan error, 1)
	go func() {
		err := c.read()
		close(c.gone)
		read <- err
	}()
	select {
	case err := <-read:
		closing()
		return err
	case <-ctx.Done():
	}
	idle := make(chan struct{})
	go func() { c.wg.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-drain.Done():
	case <-c.gone:
	}
	closing()
	return nil
}

// read takes frames until the stream ends. A frame that is too large ends it, because nothing behind it can be found.
func (c *conn) read() error {
	for {
		body, err := ReadFrame(c.r)
		fds, many := takeFDs(c.r)
		if err != nil {
			closeFDs(fds) // of a frame that was cut off
		}
		switch {
		case err == nil && many != nil:
			c.reply(Msgpack, envelope{}).send(Errorf(ErrBadRequest, "%v", many))
		case err == nil:
			c.frame(body, fds)
		case errors.Is(err, ErrFrameTooLarge):
			c.reply(Msgpack, envelope{}).send(Errorf(ErrTooLarge, "%v", err))
			return err
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// frame answers one request, whose descriptors become its own.
func (c *conn) frame(body []byte, fds []int) {
	defer func() { closeFDs(fds) }()
	enc, ok := Sniff(body)
	if !ok {
		c.reply(Msgpack, envelope{}).send(Errorf(ErrUnsupported, "a frame holds one msgpack map (or one JSON object), this one of %d bytes does not", len(body)))
		return
	}
	o, err := Decode(body, enc, c.s.cfg.Bounds.frame())
	if err != nil {
		c.reply(enc, peek(body, enc)).send(undecodable(err))
		return
	}
	var head struct {
		Op     string   `json:"op"`
		Tag    any      `json:"tag"`
		Accept []string `json:"accept"`
	}
	if err := Bind(o, &head); err != nil {
		env := envelope{}
		for _, key := range []string{"op", "tag"} {
			v, _ := o.Get(key)
			env.take(key, v)
		}
		c.reply(enc, env).send(Errorf(ErrBadRequest, "%v", err))
		return
	}
	env := envelope{Op: head.Op, Tag: tagOf(head.Tag)}
	fields := without(without(without(o, "op"), "tag"), "accept")
	if fields.Len() == 0 {
		fields = nil
	}
	if head.Op == VerbPing {
		c.reply(enc, env).pong()
		return
	}
	if head.Op == "" {
		c.reply(enc, env).send(Errorf(ErrBadRequest, "field op is missing; it names the verb"))
		return
	}
	memory, err := mapped(fds, func(f func(*Ref) ([]byte, error)) error { return replaceRefs(head.Op, fields, f) })
	fds = nil
	if err != nil {
		c.reply(enc, env).send(badRequest(err))
		return
	}
	c.wg.Add(1)
	var job string
	if fields != nil && (head.Op == VerbStatus || head.Op == VerbCancel || head.Op == VerbRetry) {
		v, _ := fields.Get("job")
		job, _ = v.(string)
	}
	r := &Request{Verb: head.Op, Job: job, Fields: fields, Tied: true, Gone: c.gone, hold: memory}
	r.Reply = c.reply(enc, env).reply(func() {
		r.hold.release()
		c.wg.Done()
	})
	if _, ok := c.w.w.(*fdConn); ok && slices.Contains(head.Accept, RefShm) {
		r.Reply.Beside = func(known *hold) cargo { return newShmCargo(known) }
	}
	c.s.Handle(r)
}

// tagOf lets strings and integers through; other tags are dropped, they could not be compared by a client.
func tagOf(v any) any {
	switch v.(type) {
	case string, int64, uint64:
		return v
	}
	return nil
}

// frameReply writes replies to one request.
type frameReply struct {
	c   *conn
	enc Encoding
	env envelope
}

func (c *conn) reply(enc Encoding, env envelope) frameReply { return frameReply{c, enc, env} }

func (f frameReply) reply(done func()) *Reply {
	return &Reply{Enc: f.enc, Limit: MaxFrame - 1024, Done: done, Send: func(parts [][]byte, fds []int, _ *Error, end bool) error {
		if parts == nil {
			parts = [][]byte{emptyMap(f.enc)}
		}
		env := f.env
		env.End = end
		frame, err := spliceFirst(env, parts, f.enc)
		if err != nil {
			return err
		}
		return f.c.w.send(fds, frame)
	}}
}

// send answers a request that did not reach the service.
func (f frameReply) send(e *Error) {
	f.c.s.fail(f.reply(nil), e)
}

func (f frameReply) pong() {
	f.c.s.sent(f.reply(nil).Last(pongReply{V: ProtocolVersion, PID: os.Getpid()}))
}

func emptyMap(enc Encoding) []byte {
	if enc == JSON {
		return []byte("{}")
	}
	return []byte{0x80}
}

// unwrap splits a reply that came in a frame into its envelope and its fields.
func unwrap(o *pyjson.Object) (env envelope, fields *pyjson.Object, err error) {
	if err := Bind(o, &env); err != nil {
		return env, nil, err
	}
	return env, without(without(without(o, "op"), "tag"), "end"), nil
}
