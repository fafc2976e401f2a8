package wire_test

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

	"patchbay/array"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/hammer"
)

// guardTarget checks that what is decoded is what the reference decoder reads, and can be encoded again. The flag means
// msgpack.
func guardTarget(tb testing.TB) *hammer.Target[*pyjson.Object] {
	t := &hammer.Target[*pyjson.Object]{
		Name: "FuzzGuard", Flag: true,
		Parse: func(in hammer.Input) (*pyjson.Object, error) {
			return wire.Decode(in.Data, wiretest.EncodingFor(in.Flag), wire.DefaultLimits())
		},
		Check: checkDecoded,
		Bound: func(in hammer.Input) int64 { return wiretest.DecodedBound(in.Data, wiretest.EncodingFor(in.Flag)) },
	}
	for _, b := range wiretest.Bombs() {
		if len(b) < 1000 {
			t.Seeds = append(t.Seeds, hammer.Input{Data: b, Flag: true}, hammer.Input{Data: b})
		}
	}
	long := strings.Repeat("\x01", 2000)
	for _, v := range []any{
		map[string]any{"a": []any{1, "b", []byte("c"), &array.Tensor{DType: "u8", Shape: []int{2}, Data: []byte{1, 2}}}},
		map[string]any{long: map[string]any{long: long}},
		map[string]any{"a": []any{-1, 1 << 40, 1.5, nil, true, map[string]any{}, &array.Tensor{DType: long, Shape: []int{}}}},
	} {
		t.Seeds = append(t.Seeds, hammer.Input{Data: wiretest.Packed(tb, v), Flag: true})
	}
	for _, s := range []string{
		`{"a":[1,2.5,"x"],"b":{"c":null}}`,
		`{"a":{"$tensor":{"dtype":"f32","shape":[1,2],"data":"AAAAAAAAAAA="}},"b":[true,false,NaN,-Infinity,1e400,` +
			`"\ud83e\udd8a\n"]}`,
		`{"a":{"$tensor":{"dtype":"u8","shape":[4],"ref":{"kind":"stream","bytes":4,"subject":"_INBOX.x.get","id":"a"}}},` +
			`"n":123456789012345678901234567890}`,
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
	if in.Flag { // the reference decoder accepts what we accept
		var v map[string]any
		if err := msgpack.NewDecoder(bytes.NewReader(body)).Decode(&v); err != nil && !strings.Contains(err.Error(), "ext") {
			return fmt.Errorf("accepted, but the msgpack package says: %w", err)
		}
	} else if !json.Valid(body) && !bytes.ContainsAny(body, "NI") { // Python's NaN and Infinity are read too
		return fmt.Errorf("accepted, but is not JSON: %q", body)
	}
	again, err := wire.Encode(o, wire.Msgpack)
	if err != nil {
		return fmt.Errorf("encode what was decoded: %w", err)
	}
	if _, err := wire.Decode(again, wire.Msgpack, wire.Limits{Bytes: 1 << 30, Depth: 80, Items: 1 << 20}); err != nil {
		return fmt.Errorf("decode what was encoded: %w", err)
	}
	return nil
}

// peekTarget checks that the envelope found at the front is that of the whole body.
func peekTarget(tb testing.TB) *hammer.Target[wire.Envelope] {
	deep := map[string]any{"op": "run", "tag": 1, "a": wiretest.Deep(70)}
	return &hammer.Target[wire.Envelope]{
		Name: "FuzzPeek",
		Seeds: []hammer.Input{
			{Data: []byte(`{"op":"run","tag":7,"a":1}`)},
			{Data: []byte(`{"op":{"op":"run","tag":7},"a":1}`)},
			{Data: []byte("\x82\xa2op\xa3run\xa3tag\x07")},
			{Data: []byte("\xdf\x00\x00\x00\x02\xa2op\xa3run\xa3tag\xcf\xff\xff\xff\xff\xff\xff\xff\xff")},
			{Data: []byte(`{"tag":"x","op":"run","a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`)},
			{Data: wiretest.Packed(tb, deep)},
		},
		Parse: func(in hammer.Input) (wire.Envelope, error) {
			enc, ok := wire.Sniff(in.Data)
			if !ok {
				return wire.Envelope{}, io.EOF
			}
			return wire.PeekEnvelope(in.Data, enc), nil
		},
		Check: func(in hammer.Input, env wire.Envelope, _ error) error {
			enc, ok := wire.Sniff(in.Data)
			if !ok {
				return nil
			}
			o, err := wire.Decode(in.Data, enc, wire.DefaultLimits())
			if err != nil {
				return nil
			}
			op, _ := o.Get("op")
			tag, _ := o.Get("tag")
			wrong := env.Op != "" && op != env.Op || env.Tag != nil && tag != env.Tag
			// of a JSON key that occurs twice the last one counts, which may not be at the front
			if wrong && !(enc == wire.JSON && repeats(in.Data)) {
				return fmt.Errorf("op %q and tag %v, the body has %v and %v", env.Op, env.Tag, op, tag)
			}
			return nil
		},
		Bound: func(in hammer.Input) int64 {
			return wiretest.FixedBytes + 4*int64(len(in.Data)) + wiretest.TextBound(in.Data[:min(len(in.Data), 1024)])
		},
	}
}

// repeats reports whether op or tag occur more than once in a JSON object.
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

// framesTarget checks that frames read add up to what was written, and that every body that decodes can be given an
// envelope.
func framesTarget(tb testing.TB) *hammer.Target[[]byte] {
	many := append(wiretest.FrameOf([]byte(`{"op":"run","tag":1}`)),
		wiretest.FrameOf(wiretest.Packed(tb, map[string]any{
			"op": "exec", "tag": "x", "accept": []string{"shm"},
			"inputs": map[string]any{},
		}))...)
	return &hammer.Target[[]byte]{
		Name: "FuzzFrames",
		Seeds: []hammer.Input{
			{Data: wiretest.FrameOf([]byte{0x81, 0xa2, 'o', 'p', 0xa4, 'p', 'i', 'n', 'g'})},
			{Data: wiretest.FrameOf([]byte(`{"op":"run","tag":1}`))},
			{Data: append(wiretest.FrameOf(nil), 0xff, 0xff, 0xff, 0xff)},
			{Data: []byte{0, 0, 0, 9, 1}},
			{Data: many},
		},
		Parse: func(in hammer.Input) ([]byte, error) {
			r := bytes.NewReader(in.Data)
			again := make([]byte, 0, len(in.Data))
			for {
				body, err := wire.ReadFrame(r)
				if errors.Is(err, io.EOF) {
					return again, nil
				}
				if err != nil {
					return again, err
				}
				again = append(again, wiretest.FrameOf(body)...)
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
			n := int64(wiretest.FixedBytes) + 4*int64(len(in.Data))
			for rest := in.Data; len(rest) >= 4; {
				size := binary.BigEndian.Uint32(rest)
				if rest = rest[4:]; int64(size) > int64(len(rest)) {
					break
				}
				body := rest[:size]
				rest = rest[size:]
				n += 512 // per frame
				if enc, ok := wire.Sniff(body); ok {
					n += 3 * wiretest.DecodedBound(body, enc) // each pass makes a new map without op, tag and end
				}
			}
			return n
		},
	}
}

// framed takes the body of a frame apart and puts it together again. It returns an error only for what must not happen.
func framed(body []byte) error {
	enc, ok := wire.Sniff(body)
	if !ok {
		return nil
	}
	o, err := wire.Decode(body, enc, wire.DefaultLimits())
	if err != nil {
		return nil
	}
	if _, _, err := wire.Unwrap(o); err != nil {
		return nil
	}
	if _, err := wire.Splice(wire.Envelope{Op: "x"}, [][]byte{body}, enc); err != nil {
		return fmt.Errorf("splice a body that decodes: %w", err)
	}
	return nil
}

// FuzzPeek checks that peeking never panics, and that what it finds is what the whole body says.
func FuzzPeek(f *testing.F) { peekTarget(f).Fuzz(f) }

func FuzzGuard(f *testing.F) { guardTarget(f).Fuzz(f) }

func FuzzFrames(f *testing.F) { framesTarget(f).Fuzz(f) }

// TestRefusedFramesKeepTheirTag checks that a frame that is refused before it is decoded is answered under its own tag,
// if that is at the front.
func TestRefusedFramesKeepTheirTag(t *testing.T) {
	bomb := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, row := range []struct {
		body string
		want wire.Envelope
	}{
		{`{"op":"run","tag":7,"a":` + bomb + `}`, wire.Envelope{Op: "run", Tag: int64(7)}},
		{`{"tag":"x","op":"run","a":` + bomb + `}`, wire.Envelope{Op: "run", Tag: "x"}},
		{`{"a":` + bomb + `,"op":"run","tag":7}`, wire.Envelope{}},
		{`{"tag":{"a":` + bomb + `}}`, wire.Envelope{}},
		{`{"op":7,"tag":1.5}`, wire.Envelope{}},
		{`{"op":{"op":"run","tag":7},"a":` + bomb + `}`, wire.Envelope{}},
		{"\x83\xa2op\xa3run\xa3tag\x07\xa1a" + strings.Repeat("\x91", 100) + "\x01", wire.Envelope{Op: "run", Tag: int64(7)}},
		{"\x82\xa3tag" + strings.Repeat("\x91", 100) + "\x01\xa1a\x01", wire.Envelope{}},
		{"\x82\xa2op\xdb\xff\xff\xff\xff", wire.Envelope{}},
		{"\xdf\xff\xff\xff\xff", wire.Envelope{}},
	} {
		enc, ok := wire.Sniff([]byte(row.body))
		if got := wire.PeekEnvelope([]byte(row.body), enc); !ok || got.Op != row.want.Op || got.Tag != row.want.Tag {
			t.Errorf("%.60q: got %+v, want %+v", row.body, got, row.want)
		}
	}
}

// TestParsersUnderTheHammer runs every parser of untrusted bytes on mutated inputs: 20,000 each, 10,000,000 in `make
// soak`. The fuzz targets of the same names have the same bodies.
func TestParsersUnderTheHammer(t *testing.T) {
	t.Run("Guard", func(t *testing.T) { guardTarget(t).Run(t, hammer.Runs) })
	t.Run("Peek", func(t *testing.T) { peekTarget(t).Run(t, hammer.Runs) })
	t.Run("Frames", func(t *testing.T) { framesTarget(t).Run(t, hammer.Runs) })
}
