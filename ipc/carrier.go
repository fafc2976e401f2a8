package ipc

import (
	"context"
	"sync"

	"patchbay/node"
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
	Job    string       // of the subject, for status, cancel and retry
	MsgID  string       // of the header Nats-Msg-Id: the job id of a run or submit whose body has none
	Fields *node.Object // nil: the body was empty
	Reply  *Reply
	Tied   bool            // run ends with the connection
	Gone   <-chan struct{} // closed when the client is gone; nil where nobody can tell
}

// Reply is the way back to one client. Messages are encoded as the request was. It is used by one goroutine at a time.
type Reply struct {
	Enc    Encoding
	Limit  int  // bytes of the largest message
	Stream bool // the verb answers with several messages: the carrier marks their end
	// Send writes one encoded message; fault is set when it is an error, end when nothing follows. An empty body only marks the end.
	Send func(body []byte, fault *Error, end bool) error
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
	r.once.Do(func() { err = r.last(nil, nil) })
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

func (r *Reply) last(body []byte, fault *Error) error {
	if r.Done != nil {
		defer r.Done()
	}
	return r.Send(body, fault, true)
}

// Fail sends an error as the last message.
func (r *Reply) Fail(err error) error {
	e := errorOf(err)
	return r.put(e.body(), e, true)
}

func (r *Reply) put(v any, fault *Error, end bool) error {
	b, err := Encode(v, r.Enc)
	if err != nil {
		fault = Errorf(ErrInternal, "%v", err)
	} else if r.Limit > 0 && len(b) > r.Limit {
		fault = Errorf(ErrTooLarge, "the reply has %d bytes, a message may have %d", len(b), r.Limit)
		err = fault
	}
	if err != nil {
		if b, err = Encode(fault.body(), r.Enc); err != nil {
			return err
		}
	}
	if !end {
		return r.Send(b, fault, false)
	}
	r.once.Do(func() { err = r.last(b, fault) })
	return err
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
