package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"patchbay/array"
	"patchbay/node/pyjson"
)

// extTensor is the msgpack extension type of a Tensor. Its payload is one msgpack map with dtype, shape, and data, ref
// or hash.
const extTensor = 1

// Tensor is an array of numbers in a message. In a message that has just been read, the data may still be elsewhere.
type Tensor struct {
	array.Tensor
	Ref *Ref `json:"ref,omitempty"` // where the data is
	// SHA-256 of the data in hex. With data, it names the data for later messages; without, it stands for data that was
	// sent before
	Hash string `json:"hash,omitempty"`
}

// Check returns an error if dtype, shape and length of the data do not match, or if it is said to be in two places.
func (t *Tensor) Check() error {
	have := len(t.Data)
	switch {
	case t.Ref != nil && t.Data != nil:
		return fmt.Errorf("tensor has data and a ref")
	case t.Hash != "" && len(t.Hash) != 64:
		return fmt.Errorf("tensor has hash %q: want SHA-256 in 64 hexadecimal digits", Shown(t.Hash))
	case t.Ref != nil:
		have = t.Ref.Bytes
	case t.Data == nil && t.Hash != "":
		have = t.Bytes()
	}
	return t.CheckLength(have)
}

// MarshalJSON writes {"$tensor": {...}}.
func (t *Tensor) MarshalJSON() ([]byte, error) {
	m := map[string]any{"dtype": t.DType, "shape": t.Shape}
	if t.Hash != "" {
		m["hash"] = t.Hash
	}
	switch {
	case t.Ref != nil:
		m["ref"] = t.Ref
	case t.Hash == "" || t.Data != nil:
		m["data"] = t.Data
	}
	return json.Marshal(map[string]any{array.Key: m})
}

// decodeExt reads an extension value; c is its first byte, p its payload with the type byte in front.
func decodeExt(c byte, p []byte, at int) (any, error) {
	if len(p) == 0 || int8(p[0]) != extTensor {
		return nil, fmt.Errorf("extension 0x%02x at byte %d has a type that is not known; the only one is %d, a tensor",
			c, at, extTensor)
	}
	body := p[1:]
	if err := Guard(body, Msgpack, Limits{Bytes: len(body), Depth: 3, Items: 48}); err != nil {
		return nil, fmt.Errorf("tensor at byte %d: %w", at, err)
	}
	d := mpReader{b: body}
	v, err := d.value()
	if err != nil {
		return nil, fmt.Errorf("tensor at byte %d: %w", at, err)
	}
	return tensorOf(v)
}

func tensorOf(v any) (*Tensor, error) {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil, fmt.Errorf("a tensor is a map {dtype, shape, data}, got %s", KindOf(v))
	}
	t := &Tensor{}
	if err := Bind(o, t); err != nil {
		return nil, fmt.Errorf("tensor: %w", err)
	}
	if t.Ref != nil {
		if err := t.Ref.check(); err != nil {
			return nil, fmt.Errorf("tensor: %w", err)
		}
	}
	return t, t.Check()
}

// tensorsOfJSON replaces every {"$tensor": ...} of a decoded JSON tree, in place.
func tensorsOfJSON(v any) (any, error) {
	if x, ok := v.(*pyjson.Object); ok && x.Len() == 1 {
		if t, ok := x.Get(array.Key); ok {
			return tensorOf(t)
		}
	}
	return pyjson.Replace(v, tensorsOfJSON)
}

// decodeBase64 reads the text form of bytes in JSON.
func decodeBase64(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }

// Sum returns the SHA-256 of the data in hex: Hash, or computed if that is empty.
func (t *Tensor) Sum() string {
	if t.Hash != "" {
		return t.Hash
	}
	sum := sha256.Sum256(t.Data)
	return hex.EncodeToString(sum[:])
}
