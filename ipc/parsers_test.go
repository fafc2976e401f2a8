package ipc

import (
	"fmt"
	"testing"

	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node"
	"patchbay/tests/hammer"
)

// TestParsersUnderTheHammer runs every parser of bytes from outside on mutated inputs: 20,000 each, 10,000,000 in `make soak`. The fuzz targets of the same
// names have the same bodies.
func TestParsersOfRequestsUnderTheHammer(t *testing.T) {
	for _, p := range []struct {
		name string
		run  func(*testing.T, int)
	}{
		{"Messages", messagesTarget().Run},
		{"Requests", requestsTarget(t).Run},
		{"Headers", headersTarget().Run},
		{"Replies", repliesTarget(t).Run},
	} {
		t.Run(p.name, func(t *testing.T) { p.run(t, hammer.Runs) })
	}
	t.Run("Conn", func(t *testing.T) { connTarget(t).Run(t, hammer.Runs/10) }) // each makes a service and waits for its goroutines
}

// parsedRun is a request for a job that was read.
type parsedRun struct {
	body *node.Object
	req  *RunRequest
	w    *node.Workflow
}

// messagesTarget: a request for a job is the same job in the other encoding. The flag means JSON.
func messagesTarget() *hammer.Target[parsedRun] {
	return &hammer.Target[parsedRun]{
		Name: "FuzzMessages", Flag: true,
		Seeds: []hammer.Input{
			{Data: []byte(`{"workflow":{"1":{"class_type":"Wait","inputs":{"n":1}}},"id":"a","plan":"ulysses=2","inputs":{"x.png":"AAAA"}}`), Flag: true},
			{Data: []byte(`{"prompt":{"1":{"class_type":"Wait","inputs":{"n":[1]}}},"prompt_id":17,"extra_data":{"extra_pnginfo":{}}}`), Flag: true},
			{Data: []byte(`{"1":{"class_type":"Wait"}}`), Flag: true},
			{Data: []byte(`{"nodes":[],"links":[]}`), Flag: true},
			{Data: []byte(`{"workflow":"{\"1\":{\"class_type\":\"Wait\"}}","priority":"high","queue_ttl_ms":5,"targets":["1"],"client":{"id":"me"},"strict":true}`), Flag: true},
			{Data: []byte("\x81\xa8workflow\x80")},
			{Data: []byte("\x82\xa8workflow\x81\xa11\x82\xaaclass_type\xa4Wait\xa6inputs\x81\xa1n\x01\xa6inputs\x81\xa1x\xc4\x03abc")},
		},
		Parse: func(in hammer.Input) (parsedRun, error) {
			o, err := wire.Decode(in.Data, wiretest.EncodingFor(!in.Flag), wire.DefaultLimits())
			if err != nil {
				return parsedRun{}, err
			}
			req, w, fault := ParseRun(o)
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
		// The graph is copied once from a map, parsed twice from a text.
		Bound: func(in hammer.Input) int64 {
			enc := wiretest.EncodingFor(!in.Flag)
			return 2*wiretest.DecodedBound(in.Data, enc) + wiretest.TextBound(in.Data)
		},
	}
}

// sameJob encodes a request in the other encoding: that must be the same job.
func sameJob(p parsedRun, other wire.Encoding) error {
	h := hashOf(p.req, p.w)
	if wiretest.HoldsBytes(p.body) || wiretest.HoldsOddNumber(p.body) { // bytes become text and NaN null in JSON; that is not the same request
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
	req, w, fault := ParseRun(o)
	if fault != nil {
		return fmt.Errorf("re-encoded request is refused: %w", fault)
	}
	if again := hashOf(req, w); again != h {
		return fmt.Errorf("hash %s became %s in the other encoding", h, again)
	}
	return nil
}
