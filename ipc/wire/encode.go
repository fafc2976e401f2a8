package wire

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
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
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.SetCustomStructTag("json")
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode msgpack: %w", err)
	}
	return b.Bytes(), nil
}
