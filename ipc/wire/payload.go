package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/node/pyjson"
)

// BulkBytes is the size from which tensors and files travel beside their message, where the other side takes that.
const BulkBytes = 512 << 10

// SmallBytes is that size in a message that would be too large with them inside.
const SmallBytes = 16 << 10

// The ways of bytes beside a message. They are the values of Ref.Kind, of "accept" in frames and of the header
// Patchbay-Accept.
const (
	RefShm    = "shm"    // in shared memory, whose descriptor came with the frame
	RefStream = "stream" // pulled in chunks over NATS
	RefObject = "object" // in the NATS object store
)

// Ref says where bytes are that travel beside their message. It stands in place of the data of a tensor, or as
// {"$bytes": {...}} in place of bytes.
type Ref struct {
	Kind    string `json:"kind"`
	Bytes   int    `json:"bytes"`             // how many
	FD      int    `json:"fd,omitempty"`      // shm: which of the descriptors of the frame
	Offset  int    `json:"offset,omitempty"`  // shm: where in its memory
	Subject string `json:"subject,omitempty"` // stream: who is asked for it
	ID      string `json:"id,omitempty"`      // stream: what is asked for
	Name    string `json:"name,omitempty"`    // object: its name in the bucket patchbay-blobs
	SHA256  string `json:"sha256,omitempty"`  // object: of the bytes, in hex; checked if given
}

// RefKey marks a reference to bytes.
const RefKey = "$bytes"

// check refuses what cannot be, before anything is fetched.
func (r *Ref) check() error {
	switch {
	case r.Kind != RefShm && r.Kind != RefStream && r.Kind != RefObject:
		return fmt.Errorf("reference of kind %q: the kinds are shm, stream, object", Shown(r.Kind))
	case r.Bytes <= 0 || r.Bytes > MaxRegion:
		return fmt.Errorf("reference to %d bytes: want 1 to %d", r.Bytes, MaxRegion)
	case r.FD < 0 || r.Offset < 0:
		return fmt.Errorf("reference with fd %d and offset %d: neither is negative", r.FD, r.Offset)
	}
	return nil
}

// Carry puts bytes beside a message and returns the reference to them.
type Carry func(data []byte) (*Ref, error)

// EncodeBeside is Encode where large tensors and bytes may go beside the message, with put, from least bytes on. What
// does not is a part of its own, without a copy: the parts after each other are the message. put nil: nothing goes
// beside. JSON has no references.
func EncodeBeside(v any, enc Encoding, put Carry, least int) ([][]byte, error) {
	if enc == JSON {
		b, err := Encode(v, enc)
		return [][]byte{b}, err
	}
	w := &packer{put: put, least: least}
	err := w.encode(v)
	return append(w.parts, w.buf), err
}

// packer is the writer of an encoder. It sees large byte strings pass.
type packer struct {
	parts [][]byte
	buf   []byte
	put   Carry
	least int // bytes that put is asked for, and that are a part of their own
}

// encode writes v as msgpack: struct fields by their json tags, keys of Go maps sorted.
func (p *packer) encode(v any) error {
	e := msgpack.NewEncoder(p)
	e.SetCustomStructTag("json")
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode msgpack: %w", err)
	}
	return nil
}

// WriteByte implements the writer of msgpack.
func (p *packer) WriteByte(c byte) error {
	p.buf = append(p.buf, c)
	return nil
}

// Write implements io.Writer.
func (p *packer) Write(b []byte) (int, error) {
	// the header of a byte string; that of a text differs
	if at := len(p.buf) - 5; len(b) >= p.least && p.put != nil && at >= 0 && p.buf[at] == 0xc6 {
		ref, err := p.put(b)
		if err != nil {
			return 0, err
		}
		if ref != nil {
			m, err := EncodeMsgpack(map[string]*Ref{RefKey: ref})
			p.buf = append(p.buf[:at], m...)
			return len(b), err
		}
	}
	p.add(b)
	return len(b), nil
}

// add takes bytes that stay inside the message.
func (p *packer) add(b []byte) {
	if len(b) < p.least {
		p.buf = append(p.buf, b...)
		return
	}
	p.parts = append(p.parts, p.buf, b)
	p.buf = nil
}

// EncodeMsgpack writes the extension, with an encoder of this package.
func (t *Tensor) EncodeMsgpack(enc *msgpack.Encoder) error {
	p, ref, data := enc.Writer().(*packer), t.Ref, t.Data
	if p.put != nil && len(data) >= p.least {
		beside, err := p.put(data)
		if err != nil {
			return err
		}
		if beside != nil {
			ref, data = beside, nil
		}
	}
	head, err := EncodeMsgpack(struct {
		DType string `json:"dtype"`
		Shape []int  `json:"shape"`
		Hash  string `json:"hash,omitempty"`
		Ref   *Ref   `json:"ref,omitempty"`
	}{t.DType, t.Shape, t.Hash, ref})
	if err != nil {
		return err
	}
	if ref == nil && (t.Hash == "" || data != nil) {
		head[0]++ // one field more: data follows, written without a copy of its own
		head = append(head, "\xa4data\xc6"...)
		head = binary.BigEndian.AppendUint32(head, uint32(len(data)))
	}
	if err := enc.EncodeExtHeader(extTensor, len(head)+len(data)); err != nil {
		return err
	}
	p.add(head)
	p.add(data)
	return nil
}

// ReplaceRefs calls f with every reference in a decoded value. Bytes that it returns take the reference's place, in
// place; nil leaves it.
func ReplaceRefs(v any, f func(*Ref) ([]byte, error)) (any, error) {
	switch x := v.(type) {
	case *Tensor:
		if x.Ref == nil {
			return v, nil
		}
		data, err := f(x.Ref)
		if err == nil && data != nil {
			x.Data, x.Ref = data, nil
		}
		return v, err
	case *pyjson.Object:
		if r, ok := x.Get(RefKey); ok && x.Len() == 1 {
			ref := &Ref{}
			o, ok := r.(*pyjson.Object)
			if !ok {
				return nil, fmt.Errorf("a reference is a map, got %s", KindOf(r))
			}
			if err := Bind(o, ref); err != nil {
				return nil, fmt.Errorf("reference: %w", err)
			}
			if err := ref.check(); err != nil {
				return nil, err
			}
			data, err := f(ref)
			if err == nil && data != nil {
				return data, nil
			}
			return v, err
		}
	}
	return pyjson.Replace(v, func(e any) (any, error) { return ReplaceRefs(e, f) })
}

// MaxRegion bounds one region, and with it every tensor and file that travels beside its message.
const MaxRegion = 1 << 30

// LengthOf is the number of bytes in all parts.
func LengthOf(parts [][]byte) int {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return n
}
