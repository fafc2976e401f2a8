package wire

import (
	"fmt"
	"unicode/utf8"
)

// Limits are those of one message. They are checked on the raw bytes, so that a decoder never allocates for a length
// that the bytes do not back.
type Limits struct {
	Bytes int // length of the body
	Depth int // nested lists and maps
	Items int // values in all, keys included
}

// DefaultLimits returns the limits on NATS and for files: 64 MiB, 64 levels, 262144 values (a workflow of 10000 nodes
// has about 150000).
func DefaultLimits() Limits { return Limits{Bytes: 64 << 20, Depth: 64, Items: 1 << 18} }

// FrameLimits returns the limits on socket and stdio, where the frame has been read already.
func FrameLimits() Limits {
	lim := DefaultLimits()
	lim.Bytes = MaxFrame
	return lim
}

// Encoding is that of a body. Replies are encoded as the request was.
type Encoding uint8

// The encodings.
const (
	Msgpack Encoding = iota
	JSON
)

// ContentType returns the media type of the encoding, as used in the Content-Type header.
func (e Encoding) ContentType() string {
	if e == JSON {
		return "application/json"
	}
	return "application/msgpack"
}

// Sniff tells the encoding of a body by its first byte: 0x80-0x8f, 0xde and 0xdf are a msgpack map; '{', which white
// space may precede, is JSON. It returns false for anything else, including an empty body.
func Sniff(body []byte) (Encoding, bool) {
	if len(body) > 0 {
		if c := body[0]; c >= 0x80 && c <= 0x8f || c == 0xde || c == 0xdf {
			return Msgpack, true
		}
	}
	for _, c := range body {
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '{':
			return JSON, true
		}
		return 0, false
	}
	return 0, false
}

// Guard checks that body is one value of the encoding within the limits and nothing after it, without allocating. Every
// declared length must fit into the remaining bytes. Its errors are mistakes of the client.
func Guard(body []byte, enc Encoding, lim Limits) error {
	if len(body) > lim.Bytes {
		return &LongBody{len(body), lim.Bytes}
	}
	if enc == JSON {
		return guardJSON(body, lim)
	}
	n, err := guardMsgpack(body, lim)
	if err != nil {
		return err
	}
	if n != len(body) {
		return fmt.Errorf("msgpack value ends at byte %d, but the body has %d", n, len(body))
	}
	return nil
}

// guardMsgpack walks one msgpack value with an explicit stack and returns its length in bytes. Format: msgpack spec,
// "Formats".
func guardMsgpack(b []byte, lim Limits) (int, error) {
	var open [256]int // values still to come on every level
	depth, items, i := 0, 0, 0
	maxDepth := min(lim.Depth, len(open)-1)
	for {
		h, err := msgpackHead(b, i)
		if err != nil {
			return 0, err
		}
		if items++; items > lim.Items {
			return 0, fmt.Errorf("more than %d values", lim.Items)
		}
		i = h.end
		if h.children > 0 {
			if h.children > len(b)-i {
				return 0, fmt.Errorf("byte %d declares %d values, but only %d bytes are left", i, h.children, len(b)-i)
			}
			if depth++; depth > maxDepth {
				return 0, fmt.Errorf("nested deeper than %d levels", maxDepth)
			}
			open[depth] = h.children
			continue
		}
		for depth > 0 {
			if open[depth]--; open[depth] > 0 {
				break
			}
			depth--
		}
		if depth == 0 {
			return i, nil
		}
	}
}

// head is the header of one msgpack value.
type head struct {
	kind     byte // first byte of the value
	body     int  // where the payload of str, bin, ext or a number starts
	end      int  // end of the payload; of a list or map, the end of its header
	children int  // values inside: n of a list, 2n of a map
}

// msgpackHead reads the header of the value at b[i:]. It returns an error if the payload does not fit into b.
func msgpackHead(b []byte, i int) (head, error) {
	if i >= len(b) {
		return head{}, fmt.Errorf("msgpack value is cut off at byte %d", i)
	}
	c := b[i]
	h := head{kind: c, body: i + 1}
	size, length := 0, 0 // payload bytes, bytes of the length field
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
	case c <= 0x8f:
		h.children = 2 * int(c&0x0f)
	case c <= 0x9f:
		h.children = int(c & 0x0f)
	case c <= 0xbf:
		size = int(c & 0x1f)
	case c == 0xc0, c == 0xc2, c == 0xc3: // nil, false, true
	case c == 0xc1:
		return head{}, fmt.Errorf("byte 0xc1 at %d is not msgpack", i)
	case c >= 0xca && c <= 0xd3: // float32, float64, uint8..uint64, int8..int64
		size = [...]int{4, 8, 1, 2, 4, 8, 1, 2, 4, 8}[c-0xca]
	case c >= 0xd4 && c <= 0xd8: // fixext 1, 2, 4, 8, 16
		size = 1 + 1<<(c-0xd4)
	default: // bin, ext, str, array, map with a length field
		length = [...]int{
			0xc4: 1, 0xc5: 2, 0xc6: 4, 0xc7: 1, 0xc8: 2, 0xc9: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4,
			0xde: 2, 0xdf: 4,
		}[c]
	}
	if length > 0 {
		if length > len(b)-h.body {
			return head{}, fmt.Errorf("msgpack value is cut off at byte %d", i)
		}
		n := int(bigEndian(b[h.body : h.body+length]))
		h.body += length
		switch {
		case c >= 0xde:
			h.children = 2 * n
		case c >= 0xdc:
			h.children = n
		case c >= 0xc7 && c <= 0xc9:
			size = n + 1 // the type byte of an ext
		default:
			size = n
		}
	}
	if size > len(b)-h.body {
		return head{}, fmt.Errorf("byte %d declares %d bytes, but only %d are left", i, size, len(b)-h.body)
	}
	h.end = h.body + size
	return h, nil
}

// bigEndian reads a number of at most eight bytes.
func bigEndian(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// guardJSON checks depth, the number of values and UTF-8. The grammar is left to the decoder, which cannot nest deeper
// than what was counted here.
func guardJSON(b []byte, lim Limits) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("JSON is not valid UTF-8")
	}
	depth, items, inString := 0, 1, false
	for i := 0; i < len(b); i++ {
		c := b[i]
		if inString {
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
			continue
		}
		switch c {
		case '"':
			inString = true
		case '{', '[':
			if depth++; depth > lim.Depth {
				return fmt.Errorf("nested deeper than %d levels", lim.Depth)
			}
		case '}', ']':
			depth--
		case ',', ':':
			if items++; items > lim.Items {
				return fmt.Errorf("more than %d values", lim.Items)
			}
		}
	}
	return nil
}

// LongBody is the error of a body over the limit.
type LongBody struct{ bytes, Limit int }

// Error names both lengths.
func (e *LongBody) Error() string {
	return fmt.Sprintf("body has %d bytes, the limit is %d", e.bytes, e.Limit)
}
