package message

import (
	"errors"

	"patchbay/ipc/wire"
	"patchbay/node"
)

// payloadsOf lists the fields of a request that may hold references; nil: all of them.
func payloadsOf(verb string) (fields []string, ok bool) {
	switch verb {
	case VerbRun, VerbSubmit:
		return []string{"inputs"}, true
	case VerbExec, VerbSample:
		return nil, true
	}
	return nil, false
}

// RefsOf lists the references in a request.
func RefsOf(verb string, o *node.Object) ([]*wire.Ref, error) {
	var all []*wire.Ref
	err := ReplaceRefs(verb, o, func(r *wire.Ref) ([]byte, error) {
		all = append(all, r)
		return nil, nil
	})
	return all, err
}

// ReplaceRefs calls f with every reference in the fields of a request. Bytes that it returns take the reference's place; nil leaves it.
func ReplaceRefs(verb string, o *node.Object, f func(*wire.Ref) ([]byte, error)) error {
	fields, ok := payloadsOf(verb)
	if !ok || o == nil {
		return nil
	}
	if fields == nil {
		fields = o.Keys()
	}
	for _, k := range fields {
		v, ok := o.Get(k)
		if !ok {
			continue
		}
		v, err := wire.ReplaceRefs(v, f)
		var known *wire.Error
		if errors.As(err, &known) {
			return err
		}
		if err != nil {
			return wire.BadField(k, "%v", err)
		}
		o.Set(k, v)
	}
	return nil
}
