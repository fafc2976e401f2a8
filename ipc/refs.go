package ipc

import (
	"errors"

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

// refsOf lists the references in a request.
func refsOf(verb string, o *node.Object) ([]*Ref, error) {
	var all []*Ref
	err := replaceRefs(verb, o, func(r *Ref) ([]byte, error) {
		all = append(all, r)
		return nil, nil
	})
	return all, err
}

// replaceRefs calls f with every reference in the fields of a request. Bytes that it returns take the reference's place; nil leaves it.
func replaceRefs(verb string, o *node.Object, f func(*Ref) ([]byte, error)) error {
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
		v, err := replaced(v, f)
		var known *Error
		if errors.As(err, &known) {
			return err
		}
		if err != nil {
			return badField(k, "%v", err)
		}
		o.Set(k, v)
	}
	return nil
}
