package wire

import (
	"bytes"
	"encoding/json"
)

// PeekEnvelope reads op and tag of a frame that Decode refuses, if they stand in front as every client of ours sends
// them: the refusal is then for that request, and not for the whole connection. It looks at nothing behind them.
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
	plain := func() any { // a string or a number: no value with others inside
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
			return // what follows is inside of it
		}
		if n, ok := v.(json.Number); ok {
			if v, err = n.Int64(); err != nil {
				return
			}
		}
		env.Take(key, v)
	}
}

// Take keeps one of the two fields.
func (env *Envelope) Take(key, v any) {
	if op, ok := v.(string); ok && key == "op" {
		env.Op = op
	}
	if key == "tag" {
		env.Tag = TagOf(v)
	}
}
