// Package stream is the transport of ranks in several processes. What they exchange travels as frames over one
// connection between any two processes (mesh.go): a unix socket on one machine, TCP between machines. A group
// (group.go) keeps what has arrived until it is taken, an end (end.go) is one rank's Comm. Tensors of ranks on GPUs
// pass through host memory (stage.go). Sums are made in rank order, so that all transports give the same bits.
package stream

import (
	"encoding/binary"
	"fmt"
	"io"

	"patchbay/engine"
)

// kind distinguishes the frames of a group.
type kind uint8

const (
	collective kind = iota // one rank's part of a collective for another rank
	plain                  // SendRecv
	offered                // Offer
	abort                  // the payload is the cause
	alive                  // heartbeat of a process, in no group
)

// frame is what one rank sends to another in one call.
type frame struct {
	group    string // key of the group
	kind     kind
	from, to uint16       // numbers in the group
	op       string       // method of Comm
	dtype    engine.DType // of the payload
	site     string       // place of the call, for errors
	payload  []byte
}

// Limits of what a peer may announce: texts are short, a tensor has at most 64 GiB.
const (
	maxText    = 1 << 12
	maxPayload = 1 << 36
	maxAhead   = 1 << 26 // bytes allocated because they are announced; more only as so many have arrived
)

// headLength is the fixed part of a frame: lengths of group, op, site (2 bytes each), kind, dtype (1 each), from, to (2
// each), length of the payload (8). All integers are little-endian.
const headLength = 20

// inlineBytes is the size up to which a payload is written together with the head of its frame.
const inlineBytes = 4096

// write sends a frame. A short payload is sent in one piece with the head, a longer one from where it is.
func (f *frame) write(w io.Writer) error {
	head, short := f.head(), len(f.payload) <= inlineBytes
	if short {
		head = append(head, f.payload...)
	}
	if _, err := w.Write(head); err != nil || short {
		return err
	}
	_, err := w.Write(f.payload)
	return err
}

// head returns a frame without its payload.
func (f *frame) head() []byte {
	head := make([]byte, headLength, headLength+len(f.group)+len(f.op)+len(f.site)+min(len(f.payload), inlineBytes))
	binary.LittleEndian.PutUint16(head[0:], uint16(len(f.group)))
	binary.LittleEndian.PutUint16(head[2:], uint16(len(f.op)))
	binary.LittleEndian.PutUint16(head[4:], uint16(len(f.site)))
	head[6], head[7] = byte(f.kind), byte(f.dtype)
	binary.LittleEndian.PutUint16(head[8:], f.from)
	binary.LittleEndian.PutUint16(head[10:], f.to)
	binary.LittleEndian.PutUint64(head[12:], uint64(len(f.payload)))
	return append(append(append(head, f.group...), f.op...), f.site...)
}

// readFrame reads the next frame. A peer that violates the format is an error.
func readFrame(r io.Reader) (*frame, error) {
	var head [headLength]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	length := func(at int) int { return int(binary.LittleEndian.Uint16(head[at:])) }
	group, op, site, payload := length(0), length(2), length(4), binary.LittleEndian.Uint64(head[12:])
	if group > maxText || op > maxText || site > maxText || payload > maxPayload || head[6] > byte(alive) {
		return nil, fmt.Errorf("a frame of kind %d with texts of %d, %d and %d and a payload of %d bytes: not this protocol",
			head[6], group, op, site, payload)
	}
	b := make([]byte, group+op+site)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	text := string(b)
	f := &frame{
		group: text[:group], op: text[group : group+op], site: text[group+op:],
		kind: kind(head[6]), dtype: engine.DType(head[7]),
		from: binary.LittleEndian.Uint16(head[8:]), to: binary.LittleEndian.Uint16(head[10:]),
	}
	for n := uint64(0); n < payload; n = uint64(len(f.payload)) {
		f.payload = append(f.payload, make([]byte, min(payload-n, max(n, maxAhead)))...)
		if _, err := io.ReadFull(r, f.payload[n:]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// String returns the call of a frame as errors name it.
func (f *frame) String() string {
	return fmt.Sprintf("%s %s[%d] at %s", f.op, f.dtype, len(f.payload)/f.dtype.Size(), f.site)
}
