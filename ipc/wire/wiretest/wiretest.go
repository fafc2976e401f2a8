// Package wiretest helps tests of several packages make and judge bytes: hostile messages, allocation bounds for
// decoders, frames.
package wiretest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Packed returns v as msgpack.
func Packed(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := wire.EncodeMsgpack(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// DecodedBound returns how many bytes a decoder may allocate for a message in an encoding.
func DecodedBound(body []byte, enc wire.Encoding) int64 {
	return FixedBytes + 4*int64(len(body)) + valueBytes*int64(valuesIn(body, enc))
}

// valuesIn counts the values of a message that passes the guard. Other messages are never decoded.
func valuesIn(body []byte, enc wire.Encoding) int {
	if wire.Guard(body, enc, wire.DefaultLimits()) != nil {
		return 0
	}
	n := 0
	if enc == wire.JSON {
		for _, c := range body {
			if strings.IndexByte(",:[{", c) >= 0 {
				n++
			}
		}
		return n + 1
	}
	d := msgpack.NewDecoder(bytes.NewReader(body))
	for left := 1; left > 0; left-- {
		n++
		c, err := d.PeekCode()
		more := 0
		switch {
		case err != nil:
			return n
		case msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32:
			more, err = d.DecodeMapLen()
			more *= 2
		case msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32:
			more, err = d.DecodeArrayLen()
		case msgpcode.IsExt(c): // the map of a tensor has at most 48 values
			var size int
			if _, size, err = d.DecodeExtHeader(); err == nil {
				n += min(48, size+1)
				err = d.ReadFull(make([]byte, size))
			}
		default:
			err = d.Skip()
		}
		if err != nil {
			return n
		}
		left += more
	}
	return n
}

// What a decoder may allocate: FixedBytes for a message without contents (errors, the envelope), four times the
// message, and valueBytes for each of its values, of which a message has at most Limits.Items.
const (
	FixedBytes = 8 << 10
	valueBytes = 400
)

// TextBound returns how many bytes more a decoder may allocate for a workflow that is text inside a message.
func TextBound(body []byte) int64 {
	n := 0
	for _, c := range body {
		if strings.IndexByte(",:[{", c) >= 0 {
			n++
		}
	}
	return 2 * valueBytes * int64(n)
}

// EncodingFor returns the encoding for the flag of a test input.
func EncodingFor(msgpack bool) wire.Encoding {
	if msgpack {
		return wire.Msgpack
	}
	return wire.JSON
}

// FrameOf returns body as a frame.
func FrameOf(body []byte) []byte {
	var b bytes.Buffer
	b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(body))))
	b.Write(body)
	return b.Bytes()
}

// Deep returns a value inside of n nested lists.
func Deep(n int) any {
	var v any = int64(1)
	for range n {
		v = []any{v}
	}
	return v
}

// Bombs returns bodies that make a naive decoder allocate gigabytes, overflow its stack, or read past the end.
func Bombs() map[string][]byte {
	deep := func(open byte, n int) []byte { return append(bytes.Repeat([]byte{open}, n), 0xc0) }
	u32 := func(kind byte, n uint32, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, n), rest...)
	}
	in := func(v []byte) []byte { return append([]byte{0x81, 0xa1, 'k'}, v...) }
	return map[string][]byte{
		"array32 of 4G":         in(u32(0xdd, math.MaxUint32, 1)),
		"map32 of 4G":           in(u32(0xdf, math.MaxUint32)),
		"bare map32 of 4G":      u32(0xdf, math.MaxUint32),
		"bin32 of 4G":           in(u32(0xc6, math.MaxUint32)),
		"str32 of 4G":           in(u32(0xdb, math.MaxUint32, 'a')),
		"ext32 of 4G":           in(u32(0xc9, math.MaxUint32, 1)),
		"map16 of 65535":        in([]byte{0xde, 0xff, 0xff}),
		"depth 1e7":             in(deep(0x91, 1e7)),
		"depth 65":              in(deep(0x91, 65)),
		"maps in maps":          bytes.Repeat([]byte{0x81, 0xa1, 'k'}, 100),
		"0xc1":                  in([]byte{0xc1}),
		"cut off in a length":   in([]byte{0xdd, 0xff}),
		"cut off in a number":   in([]byte{0xcf, 1, 2}),
		"trailing byte":         {0x80, 0xc0},
		"two maps":              {0x80, 0x80},
		"array as a message":    {0x90},
		"more values than fit":  in(append(u32(0xdd, 300000), bytes.Repeat([]byte{0xc0}, 300000)...)),
		"duplicate key":         {0x82, 0xa1, 'k', 1, 0xa1, 'k', 2},
		"integer key":           {0x81, 1, 1},
		"broken UTF-8":          in([]byte{0xa1, 0xff}),
		"unknown extension":     in([]byte{0xd4, 99, 0}),
		"tensor without fields": in([]byte{0xd4, 1, 0x80}),
		"tensor with a bomb":    in([]byte{0xc7, 5, 1, 0xdd, 0xff, 0xff, 0xff, 0xff}),
	}
}

// Noise returns n bytes in a fixed pattern that does not repeat soon.
func Noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16)
	}
	return b
}

// patience is how long an exchange of a test may take on a slow and busy machine. Only what hangs takes longer.
const patience = 5 * time.Minute

// Context returns a context that ends with the test, or after patience.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// HoldsBytes reports whether a decoded value contains byte strings.
func HoldsBytes(v any) bool { return anyValue(v, func(e any) bool { _, ok := e.([]byte); return ok }) }

// HoldsOddNumber reports whether a decoded value contains something that JSON and msgpack do not represent alike.
func HoldsOddNumber(v any) bool {
	return anyValue(v, func(e any) bool {
		switch e.(type) {
		case float64:
			return true // 3.0 in JSON is written as 3
		case nil, bool, string, int64, uint64, *pyjson.Object, []any:
			return false
		default:
			return true
		}
	})
}

func anyValue(v any, f func(any) bool) bool {
	if f(v) {
		return true
	}
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			if anyValue(e, f) {
				return true
			}
		}
	case *pyjson.Object:
		for _, k := range x.Keys() {
			e, _ := x.Get(k)
			if anyValue(e, f) {
				return true
			}
		}
	}
	return false
}

// Code returns the code that clients see of a *fault.Error, empty for other errors.
func Code(err error) string {
	var e *fault.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Public()
}
