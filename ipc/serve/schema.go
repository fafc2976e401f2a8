package serve

import (
	"reflect"
	"strings"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Schema returns the JSON Schema (draft 2020-12) of the messages in their JSON form, derived from the structs that are
// encoded and decoded: $defs has one entry for every request ("run.request") and reply ("sample.reply"). In it bytes
// are base64 text, tensors {"$tensor": {...}}.
func Schema() map[string]any {
	messages := map[string]any{
		"receipt": message.Receipt{}, "event": message.Event{}, "output": message.Output{},
		"preview":   message.Preview{},
		"heartbeat": message.Heartbeat{}, "ref": wire.Ref{}, "limits": message.LimitsReply{},
		"ping.reply":  message.PongReply{},
		"error.reply": wire.ErrorBody{}, "frame": wire.Envelope{},
	}
	strict := map[string]bool{}
	for _, v := range message.Verbs() {
		if v.Request != nil {
			messages[v.Name+".request"], strict[v.Name+".request"] = v.Request, !v.Lenient
		}
		if _, ok := v.Reply.(message.Receipt); !ok { // which has an entry of its own
			messages[v.Name+".reply"] = v.Reply
		}
	}
	// The keys of tensors and bytes are patterns, because a map with only such a key would be read as a tensor, or as
	// bytes.
	text := map[string]any{"type": "string", "contentEncoding": "base64"}
	defs := map[string]any{
		"tensor": map[string]any{
			"type": "object", "required": []string{array.Key},
			"patternProperties": map[string]any{`^\` + array.Key + "$": map[string]any{
				"type": "object", "required": []string{"dtype", "shape"}, "properties": map[string]any{
					"dtype": map[string]any{"enum": []string{"f32", "f16", "bf16", "i64", "u8"}},
					"shape": map[string]any{"type": "array", "maxItems": 8, "items": map[string]any{"type": "integer", "minimum": 0}},
					"data":  text, "ref": map[string]any{"$ref": "#/$defs/ref"},
				},
			}},
		},
		"bytes": map[string]any{"anyOf": []any{text, map[string]any{
			"type": "object", "required": []string{wire.RefKey},
			"patternProperties": map[string]any{`^\` + wire.RefKey + "$": map[string]any{"$ref": "#/$defs/ref"}},
		}}},
	}
	for name, v := range messages {
		defs[name] = schemaOf(reflect.TypeOf(v), strict[name])
	}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Patchbay protocol, version 1", "$defs": defs,
	}
}

// schemaOf returns the schema of a Go type. strict allows no other fields, at any depth.
func schemaOf(t reflect.Type, strict bool) map[string]any {
	switch t {
	case reflect.TypeFor[*wire.Tensor]():
		return map[string]any{"$ref": "#/$defs/tensor"}
	case reflect.TypeFor[*fault.Error]():
		return schemaOfStruct(reflect.TypeFor[fault.Form](), strict)
	case reflect.TypeFor[*pyjson.Object](), reflect.TypeFor[map[string]any]():
		return map[string]any{"type": "object"}
	case reflect.TypeFor[map[string][]byte]():
		return map[string]any{"type": "object", "additionalProperties": map[string]any{"$ref": "#/$defs/bytes"}}
	case reflect.TypeFor[[]byte]():
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), strict)
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), strict)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), strict)}
	case reflect.Struct:
		return schemaOfStruct(t, strict)
	}
	return map[string]any{} // any value
}

func schemaOfStruct(t reflect.Type, strict bool) map[string]any {
	fields, required := map[string]any{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "" || name == "-" {
			continue
		}
		fields[name] = schemaOf(f.Type, strict)
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	out := map[string]any{"type": "object", "properties": fields}
	if len(required) > 0 {
		out["required"] = required
	}
	if strict {
		out["additionalProperties"] = false
	}
	return out
}
