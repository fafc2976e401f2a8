package message

import (
	"errors"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// RefsOf returns the references in a request.
func RefsOf(verb string, o *pyjson.Object) ([]*wire.Ref, error) {
	var all []*wire.Ref
	err := ReplaceRefs(verb, o, func(r *wire.Ref) ([]byte, error) {
		all = append(all, r)
		return nil, nil
	})
	return all, err
}

// ReplaceRefs calls f for every reference in the fields of a request that may hold some (Verb.Refs), and replaces it in
// place by the bytes that f returns; nil keeps the reference.
func ReplaceRefs(verb string, o *pyjson.Object, f func(*wire.Ref) ([]byte, error)) error {
	fields := VerbOf(verb).Refs
	if o == nil {
		return nil
	}
	if slices.Contains(fields, AnyField) {
		fields = o.Keys()
	}
	for _, k := range fields {
		v, ok := o.Get(k)
		if !ok {
			continue
		}
		v, err := wire.ReplaceRefs(v, f)
		if _, ok := errors.AsType[*fault.Error](err); ok {
			return err
		}
		if err != nil {
			return wire.BadField(k, "%v", err)
		}
		o.Set(k, v)
	}
	return nil
}
