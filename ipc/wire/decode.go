package wire

import (
	"fmt"
	"math"
	"unicode/utf8"

	"patchbay/node/pyjson"
)

// Decode turns a body into a tree of nil, bool, int64, uint64 (only above MaxInt64), float64, string, []byte, []any,
// *Tensor and *pyjson.Object, which keeps the order of keys. It calls Guard first. Byte strings alias body. Duplicate
// keys, keys that are not strings, broken UTF-8 and unknown extension types are refused; nothing is converted silently.
func Decode(body []byte, enc Encoding, lim Limits) (*pyjson.Object, error) {
	if err := Guard(body, enc, lim); err != nil {
		return nil, err
	}
	v, err := decodeAny(body, enc)
	if err != nil {
		return nil, err
	}
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil, fmt.Errorf("a message is one map, got %s", KindOf(v))
	}
	return o, nil
}

// decodeAny decodes a guarded body.
func decodeAny(body []byte, enc Encoding) (any, error) {
	if enc == JSON {
		v, err := pyjson.Decode(body)
		if err != nil {
			return nil, err
		}
		return tensorsOfJSON(v)
	}
	d := mpReader{b: body}
	return d.value()
}

// mpReader reads guarded msgpack. The guard has proved that every header is complete and that the depth is bounded, so
// it may recurse.
type mpReader struct {
	b []byte
	i int
}

func (d *mpReader) value() (any, error) {
	h, err := msgpackHead(d.b, d.i)
	if err != nil {
		return nil, err
	}
	at := d.i
	d.i = h.end
	p := d.b[h.body:h.end]
	c := h.kind
	switch {
	case c <= 0x7f:
		return int64(c), nil
	case c >= 0xe0:
		return int64(int8(c)), nil
	case c <= 0x8f || c == 0xde || c == 0xdf:
		return d.object(at, h.children/2)
	case c <= 0x9f || c == 0xdc || c == 0xdd:
		l := make([]any, h.children)
		for k := range l {
			if l[k], err = d.value(); err != nil {
				return nil, err
			}
		}
		return l, nil
	case c <= 0xbf || c >= 0xd9 && c <= 0xdb:
		if !utf8.Valid(p) {
			return nil, fmt.Errorf("string at byte %d is not valid UTF-8", at)
		}
		return string(p), nil
	case c >= 0xc4 && c <= 0xc6:
		return p, nil
	case c == 0xc0:
		return nil, nil
	case c == 0xc2, c == 0xc3:
		return c == 0xc3, nil
	case c >= 0xca && c <= 0xd3:
		return number(c, p), nil
	}
	return decodeExt(c, p, at)
}

func (d *mpReader) object(at, n int) (any, error) {
	o := pyjson.NewObject()
	for range n {
		k, err := d.value()
		if err != nil {
			return nil, err
		}
		name, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("map at byte %d has a key that is %s; keys are strings", at, KindOf(k))
		}
		if _, ok := o.Get(name); ok {
			return nil, fmt.Errorf("map at byte %d has the key %q twice", at, Shown(name))
		}
		v, err := d.value()
		if err != nil {
			return nil, err
		}
		o.Set(name, v)
	}
	return o, nil
}

// number widens the msgpack number of kind c to int64, uint64 or float64 without loss.
func number(c byte, p []byte) any {
	u := bigEndian(p)
	switch unused := 64 - 8*len(p); {
	case c == 0xca:
		return float64(math.Float32frombits(uint32(u)))
	case c == 0xcb:
		return math.Float64frombits(u)
	case c >= 0xd0: // signed
		return int64(u<<unused) >> unused
	case u > math.MaxInt64:
		return u
	}
	return int64(u)
}

// KindOf names the kind of a decoded value for error texts.
func KindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case int64, uint64:
		return "an integer"
	case float64:
		return "a number"
	case string:
		return "a string"
	case []byte:
		return "bytes"
	case []any:
		return "a list"
	case *Tensor:
		return "a tensor"
	case *pyjson.Object:
		return "a map"
	}
	return fmt.Sprintf("%T", v)
}
