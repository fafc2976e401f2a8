package pyjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// Object is a JSON object that remembers the order of its keys, as Python's dict does: pictures carry their workflow
// with the keys in the order in which they were sent. A key that comes twice keeps its first place and its last value.
type Object struct {
	keys   []string
	values map[string]any
}

// NewObject returns an object of alternating keys and values. It panics if a key is not a string.
func NewObject(pairs ...any) *Object {
	o := &Object{values: make(map[string]any, len(pairs)/2)}
	o.SetAll(pairs...)
	return o
}

// Joined returns an object with the keys of all parts, which may be nil, in order. Of a key that occurs twice the last
// value counts.
func Joined(parts ...*Object) *Object {
	out := NewObject()
	for _, o := range parts {
		for _, k := range o.Keys() {
			out.Set(k, o.values[k])
		}
	}
	return out
}

// Get returns the value of a key; a nil object has none.
func (o *Object) Get(key string) (any, bool) {
	if o == nil {
		return nil, false
	}
	v, ok := o.values[key]
	return v, ok
}

func (o *Object) Has(key string) bool {
	_, ok := o.Get(key)
	return ok
}

// At returns the value of a key, nil if it is not there.
func (o *Object) At(key string) any {
	v, _ := o.Get(key)
	return v
}

// In returns the object that is the value of a key, nil if there is none.
func (o *Object) In(key string) *Object {
	in, _ := o.At(key).(*Object)
	return in
}

// Text returns the text that is the value of a key, "" if there is none.
func (o *Object) Text(key string) string {
	text, _ := o.At(key).(string)
	return text
}

// Set adds a key at the end, or replaces the value of an existing key.
func (o *Object) Set(key string, value any) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

// SetAll sets alternating keys and values.
func (o *Object) SetAll(pairs ...any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		o.Set(pairs[i].(string), pairs[i+1])
	}
}

func (o *Object) Len() int { return len(o.Keys()) }

// Keys returns the keys in order, none of a nil object; the slice is the object's own and must not be changed.
func (o *Object) Keys() []string {
	if o == nil {
		return nil
	}
	return o.keys
}

// MarshalJSON writes the object in the order of its keys, as encoding/json would write the values (NaN and infinities
// as null).
func (o *Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, k := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		v := o.values[k]
		if f, ok := v.(float64); ok {
			v = json.RawMessage(FormatFloat(f)) // 1.0 stays 1.0
			if math.IsNaN(f) || math.IsInf(f, 0) {
				v = nil
			}
		}
		val, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(val)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// EncodeMsgpack writes the object as a msgpack map in the order of its keys; integers above 64 bits become strings.
func (o *Object) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := enc.EncodeMapLen(len(o.keys)); err != nil {
		return err
	}
	for _, k := range o.keys {
		if err := enc.EncodeString(k); err != nil {
			return err
		}
		v := o.values[k]
		if n, ok := v.(*big.Int); ok {
			v = n.String()
		}
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// Normalize copies a decoded value into the types that a Workflow holds: nil, bool, string, int64, uint64 (above
// int64), *big.Int (above uint64), float64, []any, *Object. It returns an error if a value is nested too deeply, holds
// too many values or is of another type.
func Normalize(v any) (any, error) {
	left := maxValues
	return normalizeAt(v, 0, &left)
}

// normalizeAt is Normalize for a value inside another; left counts down over all values.
func normalizeAt(v any, depth int, left *int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	if *left--; *left < 0 {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	switch x := v.(type) {
	case nil, bool, string, float64, int64, *big.Int:
		return v, nil
	case uint64:
		if x <= math.MaxInt64 {
			return int64(x), nil
		}
		return x, nil
	case float32:
		return float64(x), nil
	case json.Number:
		return parseNumber(string(x))
	case json.RawMessage:
		return Decode(x)
	case []byte:
		return string(x), nil
	case *Object:
		o := &Object{keys: make([]string, 0, len(x.keys)), values: make(map[string]any, len(x.keys))}
		for _, k := range x.keys {
			n, err := normalizeAt(x.values[k], depth+1, left)
			if err != nil {
				return nil, err
			}
			o.Set(k, n)
		}
		return o, nil
	}
	return normalizeKind(reflect.ValueOf(v), depth, left)
}

// normalizeKind is normalizeAt for everything that has to be looked at by kind: small integers, slices and maps of any
// type.
func normalizeKind(r reflect.Value, depth int, left *int) (any, error) {
	switch r.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return r.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return normalizeAt(r.Uint(), depth, left)
	case reflect.Slice, reflect.Array:
		out := make([]any, r.Len())
		for i := range out {
			n, err := normalizeAt(r.Index(i).Interface(), depth+1, left)
			if err != nil {
				return nil, err
			}
			out[i] = n
		}
		return out, nil
	case reflect.Map:
		o := &Object{values: make(map[string]any, r.Len())}
		for it := r.MapRange(); it.Next(); {
			k := it.Key()
			if k.Kind() == reflect.Interface {
				k = k.Elem()
			}
			if k.Kind() != reflect.String {
				return nil, fmt.Errorf("keys of objects must be strings, got %v", k)
			}
			n, err := normalizeAt(it.Value().Interface(), depth+1, left)
			if err != nil {
				return nil, err
			}
			o.Set(k.String(), n)
		}
		SortKeys(o.keys)
		return o, nil
	}
	return nil, fmt.Errorf("cannot use a value of type %s in a workflow", r.Type())
}

// SortKeys gives keys of an unordered map a stable order: whole numbers by value first, then the others by bytes.
func SortKeys(keys []string) {
	number := func(key string) uint64 {
		if n, err := strconv.ParseUint(key, 10, 63); err == nil {
			return n
		}
		return math.MaxUint64
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a, b)) })
}

// parseNumber reads a JSON number without losing digits of integers.
func parseNumber(s string) (any, error) {
	if !strings.ContainsAny(s, ".eE") {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(s, 10, 64); err == nil {
			return n, nil
		}
		if n := digits(s); n > maxDigits {
			return nil, tooLong(n)
		}
		n, ok := new(big.Int).SetString(s, 10)
		if !ok {
			return nil, fmt.Errorf("bad number %q", Excerpt(s))
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, fmt.Errorf("bad number %q", Excerpt(s))
	}
	return f, nil
}

// Plain converts Objects to maps, recursively.
func Plain(v any) any {
	o, ok := v.(*Object)
	if !ok {
		return Mapped(v, Plain)
	}
	m := make(map[string]any, len(o.keys))
	for k, e := range o.values {
		m[k] = Plain(e)
	}
	return m
}

// Clone copies Objects and lists, recursively.
func Clone(v any) any { return Mapped(v, Clone) }

// Mapped returns a new Object or list with f applied to every element of v; any other v is returned as it is.
func Mapped(v any, f func(any) any) any {
	switch x := v.(type) {
	case *Object:
		o := &Object{keys: slices.Clone(x.keys), values: make(map[string]any, len(x.keys))}
		for k, e := range x.values {
			o.values[k] = f(e)
		}
		return o
	case []any:
		l := make([]any, len(x))
		for i := range x {
			l[i] = f(x[i])
		}
		return l
	}
	return v
}

// Replace applies f to every element of an Object or a list in place, up to the first error. It returns v.
func Replace(v any, f func(any) (any, error)) (any, error) {
	var err error
	switch x := v.(type) {
	case *Object:
		for _, k := range x.keys {
			if x.values[k], err = f(x.values[k]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range x {
			if x[i], err = f(x[i]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
