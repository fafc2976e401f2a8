package serve

import (
	"context"
	"sync"

	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Carrier brings requests from clients to a Service and its replies back: NATS, a unix socket, or stdio.
type Carrier interface {
	// Name is how logs call it, with its address.
	Name() string
	// Serve takes requests until ctx ends or the far side is gone; then it takes no new ones, lets streams under way
	// finish for as long as drain lasts, and returns.
	Serve(ctx, drain context.Context, s *Service) error
}

// Request is one request, decoded.
type Request struct {
	Verb   string
	From   string         // user that sends it, where the carrier knows
	Job    string         // of the subject, for status, cancel and retry
	MsgID  string         // of the header Nats-Msg-Id: the job id of a run or submit whose body has none
	Fields *pyjson.Object // nil: the body was empty
	Reply  *Reply
	Tied   bool            // run ends with the connection
	Gone   <-chan struct{} // closed when the client is gone; nil where nobody can tell

	// shared memory that Fields lies in, until the last reply is sent
	hold *bulk.Hold
	// fetches what Fields refers to; nil: nothing can be
	pull func(ctx context.Context, ref *wire.Ref) (*bulk.Region, error)
}

// Reply is the way back to one client. Messages are encoded as the request was. It is used by one goroutine at a time.
type Reply struct {
	Enc    wire.Encoding
	Limit  int  // bytes of the largest message
	Stream bool // the verb answers with several messages: the carrier marks their end
	// Send writes one encoded message, the parts after each other, with descriptors beside it; fault is set when it is an
	// error, end when nothing follows. No parts only mark the end.
	Send func(parts [][]byte, fds []int, fault *wire.Error, end bool) error
	// Beside makes the place for what goes beside one message; nil: everything goes inside.
	Beside func(known *bulk.Hold) bulk.Cargo
	// Alive asks whether the client still listens, where that can be asked; nil: it cannot.
	Alive func() bool
	// Detach is called before a reply is continued on another goroutine; nil: nothing to do.
	Detach func()
	// Done is called once, when the last message was sent or the reply was given up; nil: nothing to do.
	Done func()

	once sync.Once
}

// Message sends one message of a stream.
func (r *Reply) Message(v any) error { return r.put(v, nil, false) }

// Last sends the only or the last message.
func (r *Reply) Last(v any) error { return r.put(v, nil, true) }

// End marks the end of a stream.
func (r *Reply) End() error {
	var err error
	r.once.Do(func() { err = r.last(nil, nil, nil) })
	return err
}

// Abandon gives up a reply whose client is gone. After the last message it does nothing.
func (r *Reply) Abandon() {
	r.once.Do(func() {
		if r.Done != nil {
			r.Done()
		}
	})
}

func (r *Reply) last(body [][]byte, fds []int, fault *wire.Error) error {
	if r.Done != nil {
		defer r.Done()
	}
	return r.Send(body, fds, fault, true)
}

// Fail sends an error as the last message.
func (r *Reply) Fail(err error) error {
	e := message.ErrorOf(err)
	return r.put(e.Body(), e, true)
}

// long is a message that has a short form, for where it has no room.
type long interface{ Short() any }

func (r *Reply) put(v any, fault *wire.Error, end bool) error {
	var beside bulk.Cargo
	var place wire.Carry
	sent := false
	if r.Beside != nil && r.Enc == wire.Msgpack {
		beside = r.Beside(bulk.HoldOf(v))
		place = beside.Put
		defer func() { beside.Done(sent) }()
	}
	b, err := wire.EncodeBeside(v, r.Enc, place, wire.BulkBytes)
	if beside != nil && err == nil && wire.LengthOf(b) > r.Limit { // many that are small: those go too
		beside.Done(false)
		beside = r.Beside(bulk.HoldOf(v))
		b, err = wire.EncodeBeside(v, r.Enc, beside.Put, wire.SmallBytes)
	}
	if l, ok := v.(long); ok && err == nil && wire.LengthOf(b) > r.Limit {
		b, err = wire.EncodeBeside(l.Short(), r.Enc, nil, wire.BulkBytes)
	}
	if n := wire.LengthOf(b); err == nil && n > r.Limit {
		err = wire.Errorf(wire.ErrTooLarge, "the reply has %d bytes, a message may have %d; accept references to get "+
			"it beside the message", n, r.Limit)
	}
	var fds []int
	switch {
	case err != nil:
		fault = message.ErrorOf(err)
		whole, err := wire.Encode(fault.Body(), r.Enc)
		if err != nil {
			return err
		}
		b = [][]byte{whole}
	case beside != nil:
		fds = beside.FDs()
	}
	if !end {
		err = r.Send(b, fds, fault, false)
	} else {
		r.once.Do(func() { err = r.last(b, fds, fault) })
	}
	sent = err == nil
	return err
}

// inlineLimit is the largest file that travels inside one message: 512 KiB, or half of what a message may have; text
// encodings need a third more.
func (r *Reply) inlineLimit() int {
	n := min(512<<10, r.Limit/2)
	if r.Enc == wire.JSON {
		n = n / 4 * 3
	}
	return n
}
