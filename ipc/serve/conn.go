package serve

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// conn serves one byte stream: frames in, frames out. Runs are cancelled when it ends.
type conn struct {
	r    io.Reader
	w    *wire.FrameWriter
	a    *Answerer
	gone chan struct{}
	open openRequests
}

// serveConn answers the requests of one byte stream until it or ctx ends. When ctx ends, requests under way, and those
// that still arrive, may finish until drain ends. closing is called when the stream is not read any more. A clean end
// of the stream is nil.
func serveConn(ctx, drain context.Context, r io.Reader, w io.Writer, closing func(), a *Answerer) error {
	c := &conn{r: r, w: wire.NewFrameWriter(w), a: a, gone: make(chan struct{})}
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
	select {
	case <-c.open.idle():
	case <-drain.Done():
	case <-c.gone:
	}
	closing()
	return nil
}

// read takes frames until the stream ends. A frame that is too large ends it, because the next one cannot be found.
func (c *conn) read() error {
	for {
		body, err := wire.ReadFrame(c.r)
		fds, many := wire.TakeFDs(c.r)
		if err != nil {
			wire.CloseFDs(fds) // of a truncated frame
		}
		switch {
		case err == nil && many != nil:
			c.refuse(wire.Msgpack, wire.Envelope{}, fault.New(fault.BadRequest, "%v", many))
		case err == nil:
			c.frame(body, fds)
		case errors.Is(err, wire.ErrFrameTooLarge):
			c.refuse(wire.Msgpack, wire.Envelope{}, fault.New(fault.TooLarge, "%v", err))
			return err
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// frame answers one request, and takes over its descriptors.
func (c *conn) frame(body []byte, fds []int) {
	defer func() { wire.CloseFDs(fds) }()
	enc, ok := wire.Sniff(body)
	if !ok {
		c.refuse(wire.Msgpack, wire.Envelope{}, fault.New(fault.Unsupported,
			"a frame holds one msgpack map (or one JSON object), this one of %d bytes does not", len(body)))
		return
	}
	o, err := wire.Decode(body, enc, c.a.cfg.Limits.frame())
	if err != nil {
		c.refuse(enc, wire.PeekEnvelope(body, enc), undecodable(err))
		return
	}
	var env, head wire.Envelope
	for _, key := range []string{"op", "tag"} {
		env.Take(key, o.At(key))
	}
	if err := wire.Bind(o, &head); err != nil {
		c.refuse(enc, env, fault.New(fault.BadRequest, "%v", err))
		return
	}
	fields := wire.Without(o, "op", "tag", "accept")
	if fields.Len() == 0 {
		fields = nil
	}
	if head.Op == message.VerbPing {
		c.a.Sent(c.reply(enc, env, nil).Last(message.PongReply{V: message.ProtocolVersion, PID: os.Getpid()}))
		return
	}
	if head.Op == "" {
		c.refuse(enc, env, fault.New(fault.BadRequest, "field op is missing; it names the verb"))
		return
	}
	memory, err := bulk.Mapped(fds, func(f func(*wire.Ref) ([]byte, error)) error {
		return message.ReplaceRefs(head.Op, fields, f)
	})
	fds = nil
	if err != nil {
		c.refuse(enc, env, wire.BadRequest(err))
		return
	}
	c.open.begin()
	var job string
	if fields != nil && message.VerbOf(head.Op).PerJob {
		job, _ = fields.At("job").(string)
	}
	r := &Call{Verb: head.Op, Job: job, Fields: fields, Tied: true, Gone: c.gone, hold: memory}
	r.Reply = c.reply(enc, env, func() {
		r.hold.Release()
		c.open.end()
	})
	if c.w.TakesDescriptors() && slices.Contains(head.Accept, wire.RefShm) {
		r.Reply.Beside = func(known *bulk.Hold) bulk.Cargo { return bulk.NewShmCargo(known) }
	}
	c.a.Handle(r)
}

// reply returns the Reply to one request.
func (c *conn) reply(enc wire.Encoding, env wire.Envelope, done func()) *Reply {
	return &Reply{
		Enc: enc, Limit: wire.MaxFrame - 1024, Done: done,
		Send: func(parts [][]byte, fds []int, _ *fault.Error, end bool) error {
			if parts == nil {
				parts = [][]byte{wire.EmptyMap(enc)}
			}
			of := env
			of.End = end
			frame, err := wire.Splice(of, parts, enc)
			if err != nil {
				return err
			}
			return c.w.Send(fds, frame)
		},
	}
}

// refuse answers a request that did not reach the service with an error.
func (c *conn) refuse(enc wire.Encoding, env wire.Envelope, e *fault.Error) {
	c.a.Fail(c.reply(enc, env, nil), e)
}
