package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"patchbay/node/pyjson"
)

// MaxFrame is the largest body of a frame in bytes. It is above the limit of messages on NATS because tensors of hosts
// travel in frames.
const MaxFrame = 256 << 20

// ErrFrameTooLarge is returned by ReadFrame for a declared length over MaxFrame, after which the stream cannot be read
// any further, and by FrameWriter for a body over MaxFrame, of which nothing is sent.
var ErrFrameTooLarge = errors.New("frame is larger than 256 MiB")

// ReadFrame reads one frame: u32 big-endian length, then that many bytes. The buffer grows as bytes arrive, so a false
// length costs nothing. A clean end of the stream between frames is io.EOF, one inside a frame io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > MaxFrame {
		return nil, fmt.Errorf("%w: it declares %d bytes", ErrFrameTooLarge, n)
	}
	b := make([]byte, min(n, 4<<10))
	for have := 0; ; {
		if _, err := io.ReadFull(r, b[have:]); err != nil {
			return nil, noEOF(err)
		}
		if have = len(b); int64(have) == n {
			return b, nil
		}
		more := make([]byte, min(n, int64(4*have)))
		copy(more, b)
		b = more
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// FrameWriter writes frames to one stream, each as a whole. It is safe for concurrent use.
type FrameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// NewFrameWriter returns a FrameWriter on w.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{w: w} }

// Write sends one frame whose body is the concatenation of parts.
func (f *FrameWriter) Write(parts ...[]byte) error { return f.Send(nil, parts) }

// TakesDescriptors reports whether the stream is a unix socket made by ConnOf, so that frames can carry file
// descriptors.
func (f *FrameWriter) TakesDescriptors() bool {
	_, ok := f.w.(*Conn)
	return ok
}

// Send is Write with file descriptors beside the body, which remain open. It returns an error if there are any and the
// stream does not take descriptors.
func (f *FrameWriter) Send(fds []int, parts [][]byte) error {
	n := LengthOf(parts)
	if n > MaxFrame {
		return fmt.Errorf("%w: %d bytes", ErrFrameTooLarge, n)
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+min(n, 64<<10)), uint32(n))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(fds) > 0 {
		c, ok := f.w.(*Conn)
		if !ok {
			return fmt.Errorf("%d descriptors for a stream that takes none", len(fds))
		}
		if _, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil { // four bytes go whole or not at all
			return err
		}
		b = b[:0]
	}
	for _, p := range parts {
		if len(b)+len(p) <= cap(b) {
			b = append(b, p...)
			continue
		}
		for _, w := range [][]byte{b, p} { // two writes cost less than copying a large part
			if _, err := f.w.Write(w); err != nil {
				return err
			}
		}
		b = b[:0]
	}
	if len(b) == 0 {
		return nil
	}
	_, err := f.w.Write(b)
	return err
}

// Envelope is what a frame adds to the body of a message.
type Envelope struct {
	Op  string `json:"op,omitempty"`  // verb
	Tag any    `json:"tag,omitempty"` // chosen by the client (string or integer), echoed in every reply
	End bool   `json:"end,omitempty"` // last reply to the request

	Accept []string `json:"accept,omitempty"` // of a request: the kinds of Ref that its replies may hold
}

// object returns the envelope as a map. A tag of 0 or "" is valid, but the msgpack package would leave it out of a
// struct as empty.
func (env Envelope) object() *pyjson.Object {
	o := pyjson.NewObject()
	if env.Op != "" {
		o.Set("op", env.Op)
	}
	if env.Tag != nil {
		o.Set("tag", env.Tag)
	}
	if env.End {
		o.Set("end", true)
	}
	if len(env.Accept) > 0 {
		o.Set("accept", env.Accept)
	}
	return o
}

// Splice puts the fields of the envelope in front of those of an encoded map, without decoding or copying the map. The
// map is the concatenation of parts, the first of which has its header; the result is in parts too.
func Splice(env Envelope, parts [][]byte, enc Encoding) ([][]byte, error) {
	front, err := Encode(env.object(), enc)
	if err != nil {
		return nil, err
	}
	head, err := spliced(front, parts[0], enc)
	return append(head, parts[1:]...), err
}

// spliced merges two encoded maps, which have no key in common, into one, in parts.
func spliced(front, body []byte, enc Encoding) ([][]byte, error) {
	if enc == JSON {
		switch {
		case len(body) <= 2:
			return [][]byte{front}, nil
		case len(front) <= 2:
			return [][]byte{body}, nil
		}
		front[len(front)-1] = ','
		return [][]byte{front, body[1:]}, nil
	}
	h, err := msgpackHead(body, 0)
	if err != nil {
		return nil, err
	}
	e, err := msgpackHead(front, 0)
	if err != nil {
		return nil, err
	}
	if e.children == 0 {
		return [][]byte{body}, nil
	}
	n := (h.children + e.children) / 2
	out := make([]byte, 0, len(front)+4)
	if n < 16 {
		out = append(out, 0x80|byte(n))
	} else {
		out = append(out, 0xdf)
		out = binary.BigEndian.AppendUint32(out, uint32(n))
	}
	return [][]byte{append(out, front[e.end:]...), body[h.end:]}, nil
}

// TagOf returns v if it may be a tag, which is a string or an integer, and nil otherwise: a client could not compare
// other values.
func TagOf(v any) any {
	switch v.(type) {
	case string, int64, uint64:
		return v
	}
	return nil
}

// EmptyMap returns the encoded map without fields.
func EmptyMap(enc Encoding) []byte {
	if enc == JSON {
		return []byte("{}")
	}
	return []byte{0x80}
}

// Unwrap splits a reply that came in a frame into its envelope and its fields.
func Unwrap(o *pyjson.Object) (env Envelope, fields *pyjson.Object, err error) {
	if err := Bind(o, &env); err != nil {
		return env, nil, err
	}
	return env, Without(o, "op", "tag", "end"), nil
}
