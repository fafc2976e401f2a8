package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Encode writes a message: a struct with json tags, a map, a *node.Object. Byte strings are bin in msgpack, base64 text
// in JSON; tensors are the extension or {"$tensor": ...}. Map keys of Go maps are sorted; those of a *node.Object keep
// their order.
func Encode(v any, enc Encoding) ([]byte, error) {
	if enc == JSON {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return nil, fmt.Errorf("encode JSON: %w", err)
		}
		return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), nil
	}
	return EncodeMsgpack(v)
}

// EncodeMsgpack writes v as msgpack: struct fields by their json tags, keys of Go maps sorted.
func EncodeMsgpack(v any) ([]byte, error) {
	w := &packer{least: math.MaxInt}
	err := w.encode(v)
	return w.buf, err
}
