package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

func TestFramesReadBack(t *testing.T) {
	var b bytes.Buffer
	w := wire.NewFrameWriter(&b)
	bodies := [][]byte{{}, {0x80}, bytes.Repeat([]byte("ab"), 100<<10)}
	for _, body := range bodies {
		if err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range bodies {
		got, err := wire.ReadFrame(&b)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("frame %d: got %d bytes and %v, want %d bytes", i, len(got), err, len(want))
		}
	}
	if _, err := wire.ReadFrame(&b); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want io.EOF", err)
	}
}

func TestBrokenFrames(t *testing.T) {
	long := binary.BigEndian.AppendUint32(nil, wire.MaxFrame+1)
	if _, err := wire.ReadFrame(bytes.NewReader(long)); !errors.Is(err, wire.ErrFrameTooLarge) {
		t.Errorf("a length over the limit: got %v", err)
	}
	for _, n := range []uint32{10, 1 << 20, wire.MaxFrame} {
		b := append(binary.BigEndian.AppendUint32(nil, n), "abc"...)
		if _, err := wire.ReadFrame(bytes.NewReader(b)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes declared, 3 there: got %v, want %v", n, err, io.ErrUnexpectedEOF)
		}
	}
	if _, err := wire.ReadFrame(strings.NewReader("\x00\x00")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a length that is cut off: got %v", err)
	}
}

func TestSplice(t *testing.T) {
	for _, enc := range []wire.Encoding{wire.Msgpack, wire.JSON} {
		for _, n := range []int{0, 1, 13, 14, 40} {
			in := pyjson.NewObject()
			for i := range n {
				in.Set(strings.Repeat("k", i+1), int64(i))
			}
			body, err := wire.Encode(in, enc)
			if err != nil {
				t.Fatal(err)
			}
			parts, err := wire.Splice(wire.Envelope{Op: "run", Tag: "t", End: true}, [][]byte{body}, enc)
			whole := bytes.Join(parts, nil)
			if err != nil {
				t.Fatal(err)
			}
			o, err := wire.Decode(whole, enc, wire.DefaultLimits())
			if err != nil {
				t.Fatalf("encoding %d, %d fields: %v", enc, n, err)
			}
			env, rest, err := wire.Unwrap(o)
			if err != nil || env.Op != "run" || env.Tag != "t" || !env.End || rest.Len() != n {
				t.Errorf("encoding %d, %d fields: got %+v, %d fields, %v", enc, n, env, rest.Len(), err)
			}
			for _, tag := range []any{int64(0), ""} { // zero values are tags too
				parts, err = wire.Splice(wire.Envelope{Tag: tag}, [][]byte{body}, enc)
				if err != nil {
					t.Fatal(err)
				}
				if o, err = wire.Decode(bytes.Join(parts, nil), enc, wire.DefaultLimits()); err != nil {
					t.Fatal(err)
				}
				if got, ok := o.Get("tag"); !ok || got != tag {
					t.Errorf("encoding %d, %d fields: the tag %#v came out as %#v", enc, n, tag, got)
				}
			}
			parts, err = wire.Splice(wire.Envelope{}, [][]byte{body}, enc)
			same := bytes.Join(parts, nil)
			if err != nil || !bytes.Equal(same, body) {
				t.Errorf("encoding %d, %d fields: an empty envelope changed the body (%v)", enc, n, err)
			}
		}
	}
}
