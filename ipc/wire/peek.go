package wire

import (
	"bytes"
	"encoding/json"
)

// PeekEnvelope reads op and tag of a frame that Decode has refused, if they come first, as all our clients send them:
// the error can then answer that request instead of the whole connection. It reads nothing behind them.
func PeekEnvelope(body []byte, enc Encoding) Envelope {
	var env Envelope
	if enc == JSON {
		peekJSON(&env, body)
		return env
	}
	h, err := msgpackHead(body, 0)
	if err != nil {
		return env
	}
	d := mpReader{b: body, i: h.end}
	plain := func() any { // only scalars: no lists and maps
		if h, err := msgpackHead(body, d.i); err != nil || h.children > 0 {
			return nil
		}
		v, err := d.value()
		if err != nil {
			return nil
		}
		return v
	}
	for range h.children / 2 {
		key := plain()
		if key != "op" && key != "tag" {
			break
		}
		env.Take(key, plain())
	}
	return env
}

func peekJSON(env *Envelope, body []byte) {
	d := json.NewDecoder(bytes.NewReader(body[:min(len(body), 1024)]))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return
	}
	for d.More() {
		key, err := d.Token()
		if err != nil || key != "op" && key != "tag" {
			return
		}
		v, err := d.Token()
		if err != nil {
			return
		}
		if _, ok := v.(json.Delim); ok {
			return // the next token would be inside it
		}
		if n, ok := v.(json.Number); ok {
			if v, err = n.Int64(); err != nil {
				return
			}
		}
		env.Take(key, v)
	}
}

// Take sets the field that key names, op or tag, if v has the right type.
func (env *Envelope) Take(key, v any) {
	if op, ok := v.(string); ok && key == "op" {
		env.Op = op
	}
	if key == "tag" {
		env.Tag = TagOf(v)
	}
}
