package ipc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxFrame is the largest body of a frame in bytes.
const MaxFrame = 64 << 20

// ErrFrameTooLarge is returned by ReadFrame for a declared length over MaxFrame. The stream cannot be read on from there.
var ErrFrameTooLarge = errors.New("frame is larger than 64 MiB")

// ReadFrame reads one frame: u32 big-endian length, then that many bytes. The buffer grows as bytes arrive, so a lying length costs
// nothing. A clean end of the stream between frames is io.EOF, one inside a frame io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > MaxFrame {
		return nil, fmt.Errorf("%w: it declares %d bytes", ErrFrameTooLarge, n)
	}
	if n <= 64<<10 {
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, noEOF(err)
		}
		return b, nil
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, n); err != nil {
		return nil, noEOF(err)
	}
	return b.Bytes(), nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// FrameWriter writes frames to one stream from several goroutines, one whole frame at a time.
type FrameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// NewFrameWriter returns a writer of frames on w.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{w: w} }

// Write sends one frame.
func (f *FrameWriter) Write(body []byte) error {
	if len(body) > MaxFrame {
		return fmt.Errorf("%w: %d bytes", ErrFrameTooLarge, len(body))
	}
	b := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(b, uint32(len(body)))
	b = append(b, body...)
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(b)
	return err
}

// envelope is what a frame adds to the body of a message.
type envelope struct {
	Op  string `json:"op,omitempty"`  // verb
	Tag any    `json:"tag,omitempty"` // chosen by the client (string or integer), echoed in every reply
	End bool   `json:"end,omitempty"` // last reply to the request
}

// splice puts the fields of the envelope in front of those of an encoded map, without decoding it.
func splice(env envelope, body []byte, enc Encoding) ([]byte, error) {
	front, err := Encode(env, enc)
	if err != nil {
		return nil, err
	}
	return spliceMaps(front, body, enc)
}

// spliceMaps returns one encoded map with the fields of two, which have no key in common.
func spliceMaps(front, body []byte, enc Encoding) ([]byte, error) {
	if enc == JSON {
		switch {
		case len(body) <= 2:
			return front, nil
		case len(front) <= 2:
			return body, nil
		}
		front[len(front)-1] = ','
		return append(front, body[1:]...), nil
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
		return body, nil
	}
	n := (h.children + e.children) / 2
	out := make([]byte, 0, len(front)+len(body)+4)
	if n < 16 {
		out = append(out, 0x80|byte(n))
	} else {
		out = append(out, 0xdf)
		out = binary.BigEndian.AppendUint32(out, uint32(n))
	}
	out = append(out, front[e.end:]...)
	return append(out, body[h.end:]...), nil
}
