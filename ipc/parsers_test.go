package ipc

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// TestParsersUnderTheHammer runs every parser of bytes from outside on mutated inputs: 20,000 each, 10,000,000 in `make soak`. The fuzz targets of the same
// names have the same bodies.
func TestParsersUnderTheHammer(t *testing.T) {
	for _, p := range []struct {
		name string
		run  func(*testing.T, int)
	}{
		{"Guard", guardTarget(t).Run},
		{"Messages", messagesTarget().Run},
		{"Peek", peekTarget(t).Run},
		{"Frames", framesTarget(t).Run},
		{"Requests", requestsTarget(t).Run},
		{"Refs", refsTarget(t).Run},
		{"Chunks", chunksTarget().Run},
		{"Pulls", pullsTarget(t).Run},
		{"Headers", headersTarget().Run},
		{"Replies", repliesTarget(t).Run},
	} {
		t.Run(p.name, func(t *testing.T) { p.run(t, hammer.Runs) })
	}
	t.Run("Conn", func(t *testing.T) { connTarget(t).Run(t, hammer.Runs/10) }) // each makes a service and waits for its goroutines
}

// What a decoder may allocate: four times the message, and so much for each of its values, of which a message has at most Limits.Items. The fixed part is
// that of a message of nothing: errors, the envelope.
const (
	fixedBytes = 8 << 10
	valueBytes = 400
)

// decodedBound is the bound for a message in an encoding.
func decodedBound(body []byte, enc Encoding) int64 {
	return fixedBytes + 4*int64(len(body)) + valueBytes*int64(valuesIn(body, enc))
}

// valuesIn counts the values of a message that the guard lets through; the others are never decoded.
func valuesIn(body []byte, enc Encoding) int {
	if Guard(body, enc, DefaultLimits()) != nil {
		return 0
	}
	n := 0
	if enc == JSON {
		for _, c := range body {
			if strings.IndexByte(",:[{", c) >= 0 {
				n++
			}
		}
		return n + 1
	}
	for i := 0; i < len(body); n++ {
		h, err := msgpackHead(body, i)
		if err != nil {
			return n
		}
		i = h.end
		if h.kind >= 0xd4 && h.kind <= 0xd8 || h.kind >= 0xc7 && h.kind <= 0xc9 { // the map of a tensor has at most 48
			n += min(48, h.end-h.body)
		}
	}
	return n
}

// encodingFor is the encoding that the flag of an input means.
func encodingFor(msgpack bool) Encoding {
	if msgpack {
		return Msgpack
	}
	return JSON
}

// packed is v as msgpack.
func packed(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := encodeMsgpack(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// guardTarget: what is decoded is what the reference decoder reads, and can be written again. The flag means msgpack.
func guardTarget(tb testing.TB) *hammer.Target[*pyjson.Object] {
	t := &hammer.Target[*pyjson.Object]{
		Name: "FuzzGuard", Flag: true,
		Parse: func(in hammer.Input) (*pyjson.Object, error) {
			return Decode(in.Data, encodingFor(in.Flag), DefaultLimits())
		},
		Check: checkDecoded,
		Bound: func(in hammer.Input) int64 { return decodedBound(in.Data, encodingFor(in.Flag)) },
	}
	for _, b := range bombs() {
		if len(b) < 1000 {
			t.Seeds = append(t.Seeds, hammer.Input{Data: b, Flag: true}, hammer.Input{Data: b})
		}
	}
	long := strings.Repeat("\x01", 2000)
	for _, v := range []any{
		map[string]any{"a": []any{1, "b", []byte("c"), &Tensor{DType: "u8", Shape: []int{2}, Data: []byte{1, 2}}}},
		map[string]any{long: map[string]any{long: long}},
		map[string]any{"a": []any{-1, 1 << 40, 1.5, nil, true, map[string]any{}, &Tensor{DType: long, Shape: []int{}}}},
	} {
		t.Seeds = append(t.Seeds, hammer.Input{Data: packed(tb, v), Flag: true})
	}
	for _, s := range []string{
		`{"a":[1,2.5,"x"],"b":{"c":null}}`,
		`{"a":{"$tensor":{"dtype":"f32","shape":[1,2],"data":"AAAAAAAAAAA="}},"b":[true,false,NaN,-Infinity,1e400,"\ud83e\udd8a\n"]}`,
		`{"a":{"$tensor":{"dtype":"u8","shape":[4],"ref":{"kind":"stream","bytes":4,"subject":"_INBOX.x.get","id":"a"}}},"n":123456789012345678901234567890}`,
	} {
		t.Seeds = append(t.Seeds, hammer.Input{Data: []byte(s)})
	}
	return t
}

func checkDecoded(in hammer.Input, o *pyjson.Object, refused error) error {
	if refused != nil {
		return nil
	}
	body := in.Data
	if in.Flag { // what we accept, the reference decoder accepts
		var v map[string]any
		if err := msgpack.NewDecoder(bytes.NewReader(body)).Decode(&v); err != nil && !strings.Contains(err.Error(), "ext") {
			return fmt.Errorf("accepted, but the msgpack package says: %w", err)
		}
	} else if !json.Valid(body) && !bytes.ContainsAny(body, "NI") { // Python's NaN and Infinity are read too
		return fmt.Errorf("accepted, but is not JSON: %q", body)
	}
	again, err := Encode(o, Msgpack)
	if err != nil {
		return fmt.Errorf("encode what was decoded: %w", err)
	}
	if _, err := Decode(again, Msgpack, Limits{Bytes: 1 << 30, Depth: 80, Items: 1 << 20}); err != nil {
		return fmt.Errorf("decode what was encoded: %w", err)
	}
	return nil
}

// parsedRun is a request for a job that was read.
type parsedRun struct {
	body *pyjson.Object
	req  *RunRequest
	w    *graph.Workflow
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
			o, err := Decode(in.Data, encodingFor(!in.Flag), DefaultLimits())
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
			if !validID(p.req.ID) {
				return fmt.Errorf("id %q was accepted", p.req.ID)
			}
			return sameJob(p, encodingFor(in.Flag))
		},
		// The graph is copied once from a map, parsed twice from a text.
		Bound: func(in hammer.Input) int64 {
			enc := encodingFor(!in.Flag)
			return 2*decodedBound(in.Data, enc) + textBound(in.Data)
		},
	}
}

// textBound is the bound for a workflow that is text inside a message.
func textBound(body []byte) int64 {
	n := 0
	for _, c := range body {
		if strings.IndexByte(",:[{", c) >= 0 {
			n++
		}
	}
	return 2 * valueBytes * int64(n)
}

// sameJob encodes a request in the other encoding: that must be the same job.
func sameJob(p parsedRun, other Encoding) error {
	h := hashOf(p.req, p.w)
	if holdsBytes(p.body) || holdsOddNumber(p.body) { // bytes become text and NaN null in JSON; that is not the same request
		return nil
	}
	b, err := Encode(p.body, other)
	if err != nil {
		return err
	}
	o, err := Decode(b, other, DefaultLimits())
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

// peekTarget: what is found in front is what the whole body says.
func peekTarget(tb testing.TB) *hammer.Target[envelope] {
	deep := map[string]any{"op": VerbRun, "tag": 1, "a": deep(70)}
	return &hammer.Target[envelope]{
		Name: "FuzzPeek",
		Seeds: []hammer.Input{
			{Data: []byte(`{"op":"run","tag":7,"a":1}`)},
			{Data: []byte(`{"op":{"op":"run","tag":7},"a":1}`)},
			{Data: []byte("\x82\xa2op\xa3run\xa3tag\x07")},
			{Data: []byte("\xdf\x00\x00\x00\x02\xa2op\xa3run\xa3tag\xcf\xff\xff\xff\xff\xff\xff\xff\xff")},
			{Data: []byte(`{"tag":"x","op":"run","a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`)},
			{Data: packed(tb, deep)},
		},
		Parse: func(in hammer.Input) (envelope, error) {
			enc, ok := Sniff(in.Data)
			if !ok {
				return envelope{}, io.EOF
			}
			return peek(in.Data, enc), nil
		},
		Check: func(in hammer.Input, env envelope, _ error) error {
			enc, ok := Sniff(in.Data)
			if !ok {
				return nil
			}
			o, err := Decode(in.Data, enc, DefaultLimits())
			if err != nil {
				return nil
			}
			op, _ := o.Get("op")
			tag, _ := o.Get("tag")
			wrong := env.Op != "" && op != env.Op || env.Tag != nil && tag != env.Tag
			if wrong && !(enc == JSON && repeats(in.Data)) { // of a key that comes twice in JSON the last one holds; it may not stand in front
				return fmt.Errorf("op %q and tag %v, the body has %v and %v", env.Op, env.Tag, op, tag)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			return fixedBytes + 4*int64(len(in.Data)) + textBound(in.Data[:min(len(in.Data), 1024)])
		},
	}
}

// repeats tells whether op or tag come more than once in a JSON object.
func repeats(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	count := map[json.Token]int{}
	_, err := d.Token()
	for err == nil && d.More() {
		var key json.Token
		if key, err = d.Token(); err == nil {
			count[key]++
			var skip json.RawMessage
			err = d.Decode(&skip)
		}
	}
	return count["op"] > 1 || count["tag"] > 1
}

// framesTarget: frames that are read add up to what was written, and every body that decodes can be given an envelope.
func framesTarget(tb testing.TB) *hammer.Target[[]byte] {
	many := append(frameOf([]byte(`{"op":"run","tag":1}`)), frameOf(packed(tb, map[string]any{"op": "exec", "tag": "x", "accept": []string{"shm"}, "inputs": map[string]any{}}))...)
	return &hammer.Target[[]byte]{
		Name: "FuzzFrames",
		Seeds: []hammer.Input{
			{Data: frameOf([]byte{0x81, 0xa2, 'o', 'p', 0xa4, 'p', 'i', 'n', 'g'})},
			{Data: frameOf([]byte(`{"op":"run","tag":1}`))},
			{Data: append(frameOf(nil), 0xff, 0xff, 0xff, 0xff)},
			{Data: []byte{0, 0, 0, 9, 1}},
			{Data: many},
		},
		Parse: func(in hammer.Input) ([]byte, error) {
			r := bytes.NewReader(in.Data)
			again := make([]byte, 0, len(in.Data))
			for {
				body, err := ReadFrame(r)
				if errors.Is(err, io.EOF) {
					return again, nil
				}
				if err != nil {
					return again, err
				}
				again = append(again, frameOf(body)...)
				if fault := framed(body); fault != nil {
					return nil, fault
				}
			}
		},
		Check: func(in hammer.Input, again []byte, refused error) error {
			if again == nil {
				return refused
			}
			if !bytes.HasPrefix(in.Data, again) {
				return fmt.Errorf("frames read do not add up to what was written")
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			n := int64(fixedBytes) + 4*int64(len(in.Data))
			for rest := in.Data; len(rest) >= 4; {
				size := binary.BigEndian.Uint32(rest)
				if rest = rest[4:]; int64(size) > int64(len(rest)) {
					break
				}
				body := rest[:size]
				rest = rest[size:]
				n += 512 // of a frame
				if enc, ok := Sniff(body); ok {
					n += 3 * decodedBound(body, enc) // without op, tag and end it is a map anew each time
				}
			}
			return n
		},
	}
}

// framed takes one body of a frame apart and puts it together again. Only what must not be is an error.
func framed(body []byte) error {
	enc, ok := Sniff(body)
	if !ok {
		return nil
	}
	o, err := Decode(body, enc, DefaultLimits())
	if err != nil {
		return nil
	}
	if _, _, err := unwrap(o); err != nil {
		return nil
	}
	if _, err := splice(envelope{Op: "x"}, body, enc); err != nil {
		return fmt.Errorf("splice a body that decodes: %w", err)
	}
	return nil
}
