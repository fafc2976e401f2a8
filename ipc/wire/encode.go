package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// Encode encodes a message: a struct with json tags, a map, or a *pyjson.Object. Byte strings are bin in msgpack,
// base64 text in JSON; tensors are the extension or {"$tensor": ...}. A *pyjson.Object keeps the order of its keys.
// Keys of Go maps are sorted in JSON, in msgpack only if the values are of type any, string or bool.
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

// EncodeMsgpack encodes v as msgpack, as Encode does.
func EncodeMsgpack(v any) ([]byte, error) {
	w := &packer{least: math.MaxInt}
	err := w.encode(v)
	return w.buf, err
}
