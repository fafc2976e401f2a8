package message_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// requestsTarget checks that a request that was bound can be encoded and bound again.
func requestsTarget(tb testing.TB) *hammer.Target[request] {
	return &hammer.Target[request]{
		Name: "FuzzRequests", Seeds: messagetest.Frames(tb),
		Parse: func(in hammer.Input) (request, error) { return readRequest(in.Data) },
		Check: func(_ hammer.Input, q request, refused error) error {
			if refused != nil {
				return nil
			}
			if s, ok := q.body.(*message.SampleRequest); ok {
				if err := checkSample(s); err != nil {
					return err
				}
			}
			b, err := wire.Encode(q.body, wire.Msgpack)
			if err != nil {
				return fmt.Errorf("encode what was bound: %w", err)
			}
			o, err := wire.Decode(b, wire.Msgpack, wire.Limits{Bytes: 1 << 30, Depth: 80, Items: 1 << 20})
			if err != nil {
				return fmt.Errorf("decode what was bound and encoded: %w", err)
			}
			parts, err := wire.Splice(wire.Envelope{Op: q.verb}, [][]byte{b}, wire.Msgpack)
			if err != nil {
				return err
			}
			again, err := readRequest(bytes.Join(parts, nil))
			if err != nil && !wiretest.HoldsOddNumber(o) { // 1e300 is a float in one encoding, an integer in the other
				return fmt.Errorf("a %s that was bound is refused when it is sent on: %w", q.verb, err)
			}
			if err == nil && again.verb != q.verb {
				return fmt.Errorf("%s became %s", q.verb, again.verb)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			enc, ok := wire.Sniff(in.Data)
			if !ok {
				return wiretest.FixedBytes
			}
			return wiretest.FixedBytes + 2*wiretest.DecodedBound(in.Data, enc) + wiretest.TextBound(in.Data)
		},
	}
}

// request is a request that was read from a frame.
type request struct {
	verb   string
	fields *pyjson.Object
	body   any
}

// readRequest takes a frame apart as a connection does, and binds the body as the service does.
func readRequest(data []byte) (request, error) {
	enc, ok := wire.Sniff(data)
	if !ok {
		return request{}, errors.New("no map")
	}
	o, err := wire.Decode(data, enc, wire.DefaultLimits())
	if err != nil {
		return request{}, err
	}
	var head wire.Envelope
	if err := wire.Bind(o, &head); err != nil {
		return request{}, err
	}
	q := request{verb: head.Op, fields: wire.Without(o, "op", "tag", "accept")}
	if _, err := message.RefsOf(q.verb, q.fields); err != nil {
		return q, err
	}
	switch q.verb {
	case message.VerbRun, message.VerbSubmit:
		req, _, fault := message.ParseRun(q.fields)
		if fault != nil {
			return q, fault
		}
		_ = message.ClientName("", req)
		q.body = req
	case message.VerbSample:
		req, fault := message.ParseSample(q.fields, false)
		if fault != nil {
			return q, fault
		}
		q.body = req
	case message.VerbExec:
		req := &message.ExecRequest{}
		if err := wire.Bind(q.fields, req); err != nil {
			return q, err
		}
		message.EachHandle(req.Inputs, func(string, *pyjson.Object) {})
		q.body = req
	case message.VerbLoad:
		q.body = &message.LoadRequest{}
		return q, message.BindStrict(q.fields, q.body)
	case message.VerbFree:
		q.body = &message.FreeRequest{}
	case message.VerbJobs:
		q.body = &message.JobsRequest{}
	case message.VerbDescribe:
		q.body = &message.DescribeRequest{}
	case message.VerbStatus, message.VerbCancel, message.VerbRetry:
		q.body = &message.JobRequest{}
	default:
		return q, errors.New("no verb")
	}
	if q.verb == message.VerbExec || q.verb == message.VerbRun || q.verb == message.VerbSubmit ||
		q.verb == message.VerbSample {
		return q, nil
	}
	return q, wire.Bind(q.fields, q.body)
}

// checkSample checks that the numbers of an accepted request fit their shapes.
func checkSample(q *message.SampleRequest) error {
	l := q.Built.Request.Latent
	if l.B < 1 || l.C < 1 || l.Y < 1 || l.X < 1 || len(l.Data) != l.B*l.C*l.Y*l.X {
		return fmt.Errorf("a latent [%d, %d, %d, %d] of %d values was taken", l.B, l.C, l.Y, l.X, len(l.Data))
	}
	for _, b := range q.Built.Request.Branches {
		for i := range b.Entries {
			if c := b.Entries[i].Entry.Context; len(c.Data) != c.Rows*c.Cols {
				return fmt.Errorf("a context [%d, %d] of %d values was taken", c.Rows, c.Cols, len(c.Data))
			}
		}
	}
	return nil
}

// FuzzRequests reads the bodies of all verbs as the service does.
func FuzzRequests(f *testing.F) { requestsTarget(f).Fuzz(f) }

// messagesTarget checks that a request for a job is the same job in the other encoding. The flag means JSON.
func messagesTarget() *hammer.Target[parsedRun] {
	return &hammer.Target[parsedRun]{
		Name: "FuzzMessages", Flag: true,
		Seeds: []hammer.Input{
			{Data: []byte(`{"workflow":{"1":{"class_type":"Wait","inputs":{"n":1}}},"id":"a","plan":"ulysses=2",` +
				`"inputs":{"x.png":"AAAA"}}`), Flag: true},
			{Data: []byte(`{"prompt":{"1":{"class_type":"Wait","inputs":{"n":[1]}}},"prompt_id":17,` +
				`"extra_data":{"extra_pnginfo":{}}}`), Flag: true},
			{Data: []byte(`{"1":{"class_type":"Wait"}}`), Flag: true},
			{Data: []byte(`{"nodes":[],"links":[]}`), Flag: true},
			{Data: []byte(`{"workflow":"{\"1\":{\"class_type\":\"Wait\"}}","priority":"high","queue_ttl_ms":5,` +
				`"targets":["1"],"client":{"id":"me"},"strict":true}`), Flag: true},
			{Data: []byte("\x81\xa8workflow\x80")},
			{Data: []byte("\x82\xa8workflow\x81\xa11\x82\xaaclass_type\xa4Wait" +
				"\xa6inputs\x81\xa1n\x01\xa6inputs\x81\xa1x\xc4\x03abc")},
		},
		Parse: func(in hammer.Input) (parsedRun, error) {
			o, err := wire.Decode(in.Data, wiretest.EncodingFor(!in.Flag), wire.DefaultLimits())
			if err != nil {
				return parsedRun{}, err
			}
			req, w, fault := message.ParseRun(o)
			if fault != nil {
				return parsedRun{}, fault
			}
			return parsedRun{o, req, w}, nil
		},
		Check: func(in hammer.Input, p parsedRun, refused error) error {
			if refused != nil {
				return nil
			}
			if !wire.ValidID(p.req.ID) {
				return fmt.Errorf("id %q was accepted", p.req.ID)
			}
			return sameJob(p, wiretest.EncodingFor(in.Flag))
		},
		// The graph is copied once from a map, and parsed twice from text.
		Bound: func(in hammer.Input) int64 {
			enc := wiretest.EncodingFor(!in.Flag)
			return 2*wiretest.DecodedBound(in.Data, enc) + wiretest.TextBound(in.Data)
		},
	}
}

// parsedRun is a request for a job that was read.
type parsedRun struct {
	body *pyjson.Object
	req  *message.RunRequest
	w    *graph.Workflow
}

// sameJob checks that a request in the other encoding is the same job.
func sameJob(p parsedRun, other wire.Encoding) error {
	h := message.Hash(p.req, string(p.w.JSON()))
	// in JSON bytes become text and NaN becomes null, which is not the same request
	if wiretest.HoldsBytes(p.body) || wiretest.HoldsOddNumber(p.body) {
		return nil
	}
	b, err := wire.Encode(p.body, other)
	if err != nil {
		return err
	}
	o, err := wire.Decode(b, other, wire.DefaultLimits())
	if err != nil {
		return fmt.Errorf("re-encoded request: %w", err)
	}
	req, w, fault := message.ParseRun(o)
	if fault != nil {
		return fmt.Errorf("re-encoded request is refused: %w", fault)
	}
	if again := message.Hash(req, string(w.JSON())); again != h {
		return fmt.Errorf("hash %s became %s in the other encoding", h, again)
	}
	return nil
}

func FuzzMessages(f *testing.F) { messagesTarget().Fuzz(f) }

// TestParsersUnderTheHammer runs every parser of untrusted bytes on mutated inputs: 20,000 each, 10,000,000 in `make
// soak`.
func TestParsersUnderTheHammer(t *testing.T) {
	t.Run("Messages", func(t *testing.T) { messagesTarget().Run(t, hammer.Runs) })
	t.Run("Requests", func(t *testing.T) { requestsTarget(t).Run(t, hammer.Runs) })
}
