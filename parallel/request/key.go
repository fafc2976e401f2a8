package request

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"patchbay/parallel/resume"
)

// ResumeKey returns what tells apart runs whose evaluations give other outputs: a hash of the request, models by their
// keys, and of what else is given. A field of Request counts unless it is left out here.
func (r *Request) ResumeKey(also ...string) resume.Key {
	plain := *r
	plain.Plan, plain.Preview, plain.Profile, plain.Resume = "", false, false, nil // the plan that was chosen is given
	k := keyHash{sha256.New()}
	k.add(reflect.ValueOf(also))
	k.add(reflect.ValueOf(plain))
	return resume.Key(k.Sum(nil))
}

// keyHash hashes values by their contents, floats by their bits.
type keyHash struct{ hash.Hash }

func (k keyHash) number(n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	_, _ = k.Write(b[:])
}

func (k keyHash) text(s string) {
	k.number(uint64(len(s)))
	_, _ = k.Write([]byte(s))
}

func (k keyHash) add(v reflect.Value) {
	if v.Kind() != reflect.Invalid && v.Type() == reflect.TypeFor[Model]() {
		k.text(v.FieldByName("Key").String())
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		k.number(map[bool]uint64{true: 1}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		k.number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		k.number(v.Uint())
	case reflect.Float32, reflect.Float64:
		k.number(math.Float64bits(v.Float()))
	case reflect.String:
		k.text(v.String())
	case reflect.Slice:
		k.number(uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Float32 { // latents and texts are large
			_, _ = k.Write(unsafe.Slice((*byte)(v.UnsafePointer()), 4*v.Len()))
			return
		}
		for i := range v.Len() {
			k.add(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			k.add(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			k.add(v.Field(i))
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			k.number(0)
			return
		}
		k.number(1)
		k.text(v.Elem().Type().String())
		k.add(v.Elem())
	case reflect.Map:
		keys := map[string]reflect.Value{}
		for _, key := range v.MapKeys() {
			keys[key.String()] = key
		}
		k.number(uint64(len(keys)))
		for _, name := range slices.Sorted(maps.Keys(keys)) {
			k.text(name)
			k.add(v.MapIndex(keys[name]))
		}
	case reflect.Func: // it says how to compute, which the keys of models tell apart
	default:
		panic(fmt.Sprintf("request: a %s in a request has no place in its key", v.Type()))
	}
}
