package serve

import (
	"context"
	"sync"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Carrier brings requests from clients to a Service and its replies back: NATS or a unix socket.
type Carrier interface {
	// Name is what logs call the carrier, with its address.
	Name() string
	// Serve takes requests until ctx ends or the far side is gone. When ctx ends, requests under way may finish until
	// drain ends; then it returns.
	Serve(ctx, drain context.Context, s *Service) error
}

// Call is one request, decoded.
type Call struct {
	Verb  string
	From  string // user who sent it, if the carrier knows
	Job   string // of the subject or frame, for status, cancel and retry
	MsgID string // of the header Nats-Msg-Id: the job id of a run or submit whose body has none
	// of the header traceparent, for a run or submit whose body has none; see message.CarriedTraceParent
	TraceParent string
	Fields      *pyjson.Object // nil: the body was empty
	Reply       *Reply
	Tied        bool            // run ends with the connection
	Gone        <-chan struct{} // closed when the client is gone; nil: not known

	// shared memory that Fields lies in, until the last reply is sent
	hold *bulk.Hold
	// fetches the bytes of a reference in Fields; nil: references are refused
	pull func(ctx context.Context, ref *wire.Ref) (*bulk.Region, error)
}

// Reply sends replies to one client, encoded as its request was. It is used by one goroutine at a time.
type Reply struct {
	Enc    wire.Encoding
	Limit  int  // bytes of the largest message
	Stream bool // the verb answers with several messages: the carrier marks their end
	// Send writes one encoded message, the concatenation of parts, with descriptors beside it. fault is set if the
	// message is an error, end if nothing follows. Without parts it only marks the end.
	Send func(parts [][]byte, fds []int, failure *fault.Error, end bool) error
	// Beside returns the Cargo for one message that lies in known; nil: everything goes inside the message.
	Beside func(known *bulk.Hold) bulk.Cargo
	// Offer offers bytes that are in no shared memory as a stream; nil: the carrier has none.
	Offer func(data []byte) *wire.Ref
	// Alive reports whether the client still listens; nil: there is no way to ask.
	Alive func() bool
	// Detach is called before a reply is continued on another goroutine; nil: nothing to do.
	Detach func()
	// Done is called once, after the last message or when the reply is given up; nil: nothing to do.
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

func (r *Reply) last(body [][]byte, fds []int, failure *fault.Error) error {
	if r.Done != nil {
		defer r.Done()
	}
	return r.Send(body, fds, failure, true)
}

// Fail sends an error as the last message.
func (r *Reply) Fail(err error) error {
	e := fault.From(err)
	return r.put(wire.BodyOf(e), e, true)
}

// long is a message with a short form, which is sent if the message does not fit.
type long interface{ Short() any }

func (r *Reply) put(v any, failure *fault.Error, end bool) error {
	b, cargo, err := r.encode(v)
	if err != nil {
		failure = fault.From(err)
		whole, err := wire.Encode(wire.BodyOf(failure), r.Enc)
		if err != nil {
			return err
		}
		b = [][]byte{whole}
	}
	var fds []int
	if cargo != nil {
		fds = cargo.FDs()
	}
	var failed error
	if end {
		r.once.Do(func() { failed = r.last(b, fds, failure) })
	} else {
		failed = r.Send(b, fds, failure, false)
	}
	if cargo != nil {
		cargo.Done(failed == nil)
	}
	return failed
}

// encode returns the parts of a message and the cargo beside it, if any. Large bytes go beside; if the message is still
// too long, small ones do too. If that does not help, the message is replaced by its short form, if it has one, with
// nothing beside.
func (r *Reply) encode(v any) (b [][]byte, cargo bulk.Cargo, err error) {
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
			cargo = r.Beside(bulk.HoldOf(v))
			if done(v, cargo.Put, least) && err == nil {
				return b, cargo, nil
			}
			if cargo.Done(false); err != nil {
				return nil, nil, err
			}
		}
	}
	if l, ok := v.(long); ok && done(l.Short(), nil, wire.BulkBytes) {
		return b, nil, err
	}
	return nil, nil, fault.New(fault.TooLarge, "the reply has %d bytes, a message may have %d; accept references "+
		"to get it beside the message", n, r.Limit)
}

// inlineLimit returns the size of the largest file that goes inside one message: what the limit leaves beside 32 KiB
// for the other fields, in JSON three quarters of that, because base64 needs a third more.
func (r *Reply) inlineLimit() int {
	n := r.Limit - 32<<10
	if r.Enc == wire.JSON {
		n = n / 4 * 3
	}
	return n
}
