package ipc

import (
	"context"
	"sync"

	"patchbay/node/pyjson"
)

// Carrier brings requests from clients to a Service and its replies back: NATS, a unix socket, or stdio.
type Carrier interface {
	// Name is how logs call it, with its address.
	Name() string
	// Serve takes requests until ctx ends or the far side is gone; then it takes no new ones, lets streams under way finish for as long as drain
	// lasts, and returns.
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

	hold *hold                                                // shared memory that Fields lies in, until the last reply is sent
	pull func(ctx context.Context, ref *Ref) (*Region, error) // fetches what Fields refers to; nil: nothing can be
}

// Reply is the way back to one client. Messages are encoded as the request was. It is used by one goroutine at a time.
type Reply struct {
	Enc    Encoding
	Limit  int  // bytes of the largest message
	Stream bool // the verb answers with several messages: the carrier marks their end
	// Send writes one encoded message, the parts after each other, with descriptors beside it; fault is set when it is an error, end when nothing follows. No
	// parts only mark the end.
	Send func(parts [][]byte, fds []int, fault *Error, end bool) error
	// Beside makes the place for what goes beside one message; nil: everything goes inside.
	Beside func(known *hold) cargo
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

func (r *Reply) last(body [][]byte, fds []int, fault *Error) error {
	if r.Done != nil {
		defer r.Done()
	}
	return r.Send(body, fds, fault, true)
}

// Fail sends an error as the last message.
func (r *Reply) Fail(err error) error {
	e := errorOf(err)
	return r.put(e.body(), e, true)
}

func (r *Reply) put(v any, fault *Error, end bool) error {
	var beside cargo
	var place carrierOf
	sent := false
	if r.Beside != nil && r.Enc == Msgpack {
		beside = r.Beside(holdOf(v))
		place = beside.put
		defer func() { beside.done(sent) }()
	}
	b, err := encodeBeside(v, r.Enc, place, bulkBytes)
	if beside != nil && err == nil && r.Limit > 0 && lengthOf(b) > r.Limit { // many that are small: those go too
		beside.done(false)
		beside = r.Beside(holdOf(v))
		b, err = encodeBeside(v, r.Enc, beside.put, smallBytes)
	}
	if n := lengthOf(b); err != nil {
		fault = errorOf(err)
	} else if r.Limit > 0 && n > r.Limit {
		fault = Errorf(ErrTooLarge, "the reply has %d bytes, a message may have %d; accept references to get it beside the message", n, r.Limit)
		err = fault
	}
	var fds []int
	if err != nil {
		whole, err := Encode(fault.body(), r.Enc)
		if err != nil {
			return err
		}
		b = [][]byte{whole}
	} else if beside != nil {
		fds = beside.fds()
	}
	if !end {
		err = r.Send(b, fds, fault, false)
	} else {
		r.once.Do(func() { err = r.last(b, fds, fault) })
	}
	sent = err == nil
	return err
}

func lengthOf(parts [][]byte) int {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return n
}

// inlineLimit is the largest file that travels inside one message: 512 KiB, or half of what a message may have; text encodings need a third more.
func (r *Reply) inlineLimit() int {
	n := 512 << 10
	if r.Limit > 0 {
		n = min(n, r.Limit/2)
	}
	if r.Enc == JSON {
		n = n / 4 * 3
	}
	return n
}
