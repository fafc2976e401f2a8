package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/array"
	"patchbay/node/pyjson"
)

// BulkBytes is the size from which tensors and files travel beside their message, if the other side accepts that.
const BulkBytes = 512 << 10

// SmallBytes is that size for a message that would otherwise be too large.
const SmallBytes = 16 << 10

// The kinds of references to bytes beside a message: the values of Ref.Kind, of "accept" in frames and of the header
// Patchbay-Accept.
const (
	RefShm    = "shm"    // in shared memory, whose descriptor came with the frame
	RefStream = "stream" // pulled in chunks over NATS
)

// Ref says where bytes are that travel beside their message. It replaces the data of a tensor, and other bytes as
// {"$bytes": {...}}.
type Ref struct {
	Kind    string `json:"kind"`
	Bytes   int    `json:"bytes"`             // how many
	FD      int    `json:"fd,omitempty"`      // shm: index among the descriptors of the frame
	Offset  int    `json:"offset,omitempty"`  // shm: offset in its memory
	Subject string `json:"subject,omitempty"` // stream: subject to pull it from
	ID      string `json:"id,omitempty"`      // stream: what to pull
}

// RefKey marks a reference to bytes.
const RefKey = "$bytes"

// check returns an error for values that cannot be right, before anything is fetched.
func (r *Ref) check() error {
	switch {
	case r.Kind == "object":
		return fmt.Errorf("reference of kind object: objects of JetStream are no longer read; send the bytes in the " +
			"message, or offer them with kind stream")
	case r.Kind != RefShm && r.Kind != RefStream:
		return fmt.Errorf("reference of kind %q: the kinds are shm and stream", Shown(r.Kind))
	case r.Bytes <= 0 || r.Bytes > MaxRegion:
		return fmt.Errorf("reference to %d bytes: want 1 to %d", r.Bytes, MaxRegion)
	case r.FD < 0 || r.Offset < 0:
		return fmt.Errorf("reference with fd %d and offset %d: neither is negative", r.FD, r.Offset)
	}
	return nil
}

// Carry puts bytes beside a message and returns the reference to them.
type Carry func(data []byte) (*Ref, error)

// EncodeBeside is Encode in which tensors and byte strings of at least least bytes are offered to put, which returns a
// reference if it carries them beside the message. Those that it returns nil for, and all if put is nil, become parts
// of their own, without a copy. The message is the concatenation of the parts. JSON has no references and one part.
func EncodeBeside(v any, enc Encoding, put Carry, least int) ([][]byte, error) {
	if enc == JSON {
		b, err := Encode(v, enc)
		return [][]byte{b}, err
	}
	w := &packer{put: put, least: least}
	err := w.encode(v)
	return append(w.parts, w.buf), err
}

// packer is the writer under a msgpack encoder, where large byte strings are diverted.
type packer struct {
	parts [][]byte
	buf   []byte
	put   Carry
	least int // size from which bytes are offered to put, or are a part of their own
}

// encode writes v as msgpack: struct fields by their json tags, keys of Go maps sorted if the package can (see Encode).
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

func (p *packer) WriteByte(c byte) error {
	p.buf = append(p.buf, c)
	return nil
}

func (p *packer) Write(b []byte) (int, error) {
	// 0xc6 is the header of a byte string (bin 32); text has another one
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

// add appends bytes that stay inside the message.
func (p *packer) add(b []byte) {
	if len(b) < p.least {
		p.buf = append(p.buf, b...)
		return
	}
	p.parts = append(p.parts, p.buf, b)
	p.buf = nil
}

// EncodeMsgpack writes the extension. The encoder must be one of this package.
func (t *Tensor) EncodeMsgpack(enc *msgpack.Encoder) error {
	p, ref, data := enc.Writer().(*packer), t.Ref, t.Data
	if p.put != nil && len(data) >= p.least {
		placed, err := p.put(data)
		if err != nil {
			return err
		}
		if placed != nil {
			ref, data = placed, nil
		}
	}
	head, err := EncodeMsgpack(struct {
		DType string `json:"dtype"`
		Shape []int  `json:"shape"`
		Ref   *Ref   `json:"ref,omitempty"`
	}{t.DType, t.Shape, ref})
	if err != nil {
		return err
	}
	if ref == nil {
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

func (p *packer) Tensor(enc *msgpack.Encoder, t *array.Tensor) error {
	return (&Tensor{Tensor: *t}).EncodeMsgpack(enc)
}

// ReplaceRefs calls f for every reference in a decoded value, and replaces it in place by the bytes that f returns; nil
// keeps the reference. The result is v, or the bytes if v itself is a reference.
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
const MaxRegion = array.MaxBytes

// LengthOf returns the number of bytes in all parts.
func LengthOf(parts [][]byte) int {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	return n
}
