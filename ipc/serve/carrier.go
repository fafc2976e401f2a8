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
	b, beside, err := r.encode(v)
	if err != nil {
		fault = message.ErrorOf(err)
		whole, err := wire.Encode(fault.Body(), r.Enc)
		if err != nil {
			return err
		}
		b = [][]byte{whole}
	}
	var fds []int
	if beside != nil {
		fds = beside.FDs()
	}
	var failed error
	if end {
		r.once.Do(func() { failed = r.last(b, fds, fault) })
	} else {
		failed = r.Send(b, fds, fault, false)
	}
	if beside != nil {
		beside.Done(failed == nil)
	}
	return failed
}

// encode returns a message in its parts and what goes beside them, nil if nothing does: first what is large, where that
// leaves too much what is small too. What fits neither way goes in its short form, if it has one, with nothing beside.
func (r *Reply) encode(v any) (b [][]byte, beside bulk.Cargo, err error) {
	n := 0
	done := func(v any, place wire.Carry, least int) bool {
		b, err = wire.EncodeBeside(v, r.Enc, place, least)
		n = wire.LengthOf(b)
		return err != nil || n <= r.Limit
	}
	if r.Beside == nil || r.Enc != wire.Msgpack {
		if done(v, nil, wire.BulkBytes) {
			return b, nil, err
		}
	} else {
		for _, least := range []int{wire.BulkBytes, wire.SmallBytes} {
			beside = r.Beside(bulk.HoldOf(v))
			if done(v, beside.Put, least) && err == nil {
				return b, beside, nil
			}
			if beside.Done(false); err != nil {
				return nil, nil, err
			}
		}
	}
	if l, ok := v.(long); ok && done(l.Short(), nil, wire.BulkBytes) {
		return b, nil, err
	}
	return nil, nil, wire.Errorf(wire.ErrTooLarge, "the reply has %d bytes, a message may have %d; accept references "+
		"to get it beside the message", n, r.Limit)
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
