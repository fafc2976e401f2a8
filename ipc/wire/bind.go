package wire

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// Bind copies the fields of o into the struct that dst points to, by their json tags. Numbers are checked against the
// range of the field, never converted silently; 3.0 is an integer, 3.5 and "3" are not. A null leaves the field at its
// zero value. Unknown fields are ignored. Fields of type any get the decoded value as it is, []byte takes bytes or
// base64 text. The error names the field.
func Bind(o *pyjson.Object, dst any) error {
	return bindStruct(o, reflect.ValueOf(dst).Elem(), "")
}

// fieldsOf yields the fields of a struct type that are part of messages, with their names there, including those of
// embedded structs.
func fieldsOf(t reflect.Type) iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				for name, in := range fieldsOf(f.Type) {
					in.Index = append(f.Index, in.Index...)
					if !yield(name, in) {
						return
					}
				}
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" && !yield(name, f) {
				return
			}
		}
	}
}

// Fields lists the names of the fields that Bind would fill, sorted.
func Fields(dst any) []string {
	var out []string
	for name := range fieldsOf(reflect.TypeOf(dst).Elem()) {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// fieldError is why a field of a message was refused.
type fieldError struct{ field, text string }

// Error names the field first.
func (e *fieldError) Error() string { return "field " + e.field + ": " + e.text }

// BadField returns the error for a field that is refused. The path of the field is shortened by Shown.
func BadField(field, format string, args ...any) error {
	return &fieldError{Shown(field), fmt.Sprintf(format, args...)}
}

// BadRequest returns the reply to a body that cannot be bound; its Input names the field at fault, if there is one.
func BadRequest(err error) *fault.Error {
	e := fault.New(fault.BadRequest, "%v", err)
	if f, ok := errors.AsType[*fieldError](err); ok {
		e.Field = f.field
	}
	return e
}

// UnknownField returns the path of the first field of v, at any depth, that the struct type t has no place for; "" if
// there is none. Maps and values of type any may hold anything.
func UnknownField(v any, t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch x := v.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return ""
		}
		for i, e := range x {
			if bad := UnknownField(e, t.Elem()); bad != "" {
				return fmt.Sprintf("[%d].%s", i, bad)
			}
		}
	case *pyjson.Object:
		if t.Kind() != reflect.Struct || t == reflect.TypeFor[pyjson.Object]() {
			return ""
		}
		fields := map[string]reflect.Type{}
		for name, f := range fieldsOf(t) {
			fields[name] = f.Type
		}
		for _, k := range x.Keys() {
			if fields[k] == nil {
				return cmp.Or(k, `""`)
			}
			switch bad := UnknownField(x.At(k), fields[k]); {
			case bad == "":
			case bad[0] == '[':
				return k + bad
			default:
				return k + "." + bad
			}
		}
	}
	return ""
}

func bindStruct(o *pyjson.Object, dst reflect.Value, path string) error {
	for name, f := range fieldsOf(dst.Type()) {
		if v := o.At(name); v != nil {
			if err := bindValue(v, dst.FieldByIndex(f.Index), join(path, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func bindValue(v any, dst reflect.Value, path string) error {
	wrong := func(want string) error { return BadField(path, "want %s, got %s", want, KindOf(v)) }
	switch dst.Kind() {
	case reflect.Interface:
		dst.Set(reflect.ValueOf(v))
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			return wrong("a string")
		}
		dst.SetString(s)
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return wrong("true or false")
		}
		dst.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, ok := Integer(v)
		switch {
		case !ok:
			return wrong("an integer")
		case dst.CanInt() && n.IsInt64() && !dst.OverflowInt(n.Int64()):
			dst.SetInt(n.Int64())
		case dst.CanUint() && n.IsUint64() && !dst.OverflowUint(n.Uint64()):
			dst.SetUint(n.Uint64())
		default:
			return BadField(path, "%s does not fit %s", n, dst.Kind())
		}
	case reflect.Float64:
		f, ok := float(v)
		if !ok {
			return wrong("a number")
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return BadField(path, "%v is not a finite number", f)
		}
		dst.SetFloat(f)
	case reflect.Slice:
		return bindSlice(v, dst, path)
	case reflect.Map:
		return bindMap(v, dst, path)
	case reflect.Struct:
		o, ok := v.(*pyjson.Object)
		if !ok {
			return wrong("a map")
		}
		return bindStruct(o, dst, path)
	case reflect.Pointer:
		switch dst.Type() {
		case reflect.TypeOf(v): // an object, or a tensor
			dst.Set(reflect.ValueOf(v))
			return nil
		case reflect.TypeFor[*Tensor]():
			return wrong("a tensor")
		case reflect.TypeFor[*fault.Error]():
			var f fault.Form
			if err := bindValue(v, reflect.ValueOf(&f).Elem(), path); err != nil {
				return err
			}
			dst.Set(reflect.ValueOf(f.Fault()))
			return nil
		}
		p := reflect.New(dst.Type().Elem())
		if err := bindValue(v, p.Elem(), path); err != nil {
			return err
		}
		dst.Set(p)
	default:
		panic("ipc: message field of kind " + dst.Kind().String())
	}
	return nil
}

func bindSlice(v any, dst reflect.Value, path string) error {
	if dst.Type().Elem().Kind() == reflect.Uint8 {
		switch x := v.(type) {
		case []byte:
			dst.SetBytes(x)
		case string:
			b, err := decodeBase64(x)
			if err != nil {
				return BadField(path, "not base64: %v", err)
			}
			dst.SetBytes(b)
		default:
			return BadField(path, "want bytes or base64 text, got %s", KindOf(v))
		}
		return nil
	}
	l, ok := v.([]any)
	if !ok {
		return BadField(path, "want a list, got %s", KindOf(v))
	}
	out := reflect.MakeSlice(dst.Type(), len(l), len(l))
	for i, e := range l {
		if e == nil {
			continue
		}
		if err := bindValue(e, out.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	dst.Set(out)
	return nil
}

func bindMap(v any, dst reflect.Value, path string) error {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return BadField(path, "want a map, got %s", KindOf(v))
	}
	out := reflect.MakeMapWithSize(dst.Type(), o.Len())
	for _, k := range o.Keys() {
		e, _ := o.Get(k)
		slot := reflect.New(dst.Type().Elem()).Elem()
		if e != nil {
			if err := bindValue(e, slot, join(path, k)); err != nil {
				return err
			}
		}
		out.SetMapIndex(reflect.ValueOf(k).Convert(dst.Type().Key()), slot)
	}
	dst.Set(out)
	return nil
}

// Integer returns the exact integer value of a decoded number.
func Integer(v any) (*big.Int, bool) {
	switch n := v.(type) {
	case int: // of an event that was made in this process
		return big.NewInt(int64(n)), true
	case int64:
		return big.NewInt(n), true
	case uint64:
		return new(big.Int).SetUint64(n), true
	case *big.Int:
		return n, true
	case float64:
		if n != math.Trunc(n) || math.Abs(n) > 1<<63 {
			return nil, false
		}
		i, _ := big.NewFloat(n).Int(nil)
		return i, true
	}
	return nil, false
}

func float(v any) (float64, bool) {
	if f, ok := v.(float64); ok {
		return f, true
	}
	n, ok := Integer(v)
	if !ok {
		return 0, false
	}
	f, _ := new(big.Float).SetInt(n).Float64()
	return f, true
}

// Without returns a copy of o that lacks some fields; the values are shared.
func Without(o *pyjson.Object, names ...string) *pyjson.Object {
	out := pyjson.NewObject()
	for _, k := range o.Keys() {
		if !slices.Contains(names, k) {
			out.Set(k, o.At(k))
		}
	}
	return out
}

// Read is Decode and Bind.
func Read(body []byte, enc Encoding, lim Limits, dst any) error {
	o, err := Decode(body, enc, lim)
	if err != nil {
		return err
	}
	return Bind(o, dst)
}

// BindReply is Bind for a reply; its errors say so.
func BindReply(o *pyjson.Object, dst any) error {
	if err := Bind(o, dst); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}
