package message

import (
	"bytes"

	"patchbay/ipc/wire"
	"patchbay/node/classes"
	"patchbay/node/editor"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// convert puts a graph in API format into the place of one in the format of ComfyUI's editor. The old one goes into
// saved pictures, as the editor has it, if the request brings no texts of its own.
func convert(req *RunRequest, lim wire.Limits) *fault.Failure {
	info := req.ObjectInfo
	req.ObjectInfo = nil // what is left of the request does not need it
	given := req.Workflow
	if text, ok := given.(string); ok {
		if !bytes.Contains([]byte(text), []byte(`"links"`)) || wire.Guard([]byte(text), wire.JSON, lim) != nil {
			return nil // refused, if it has to be, with the words for a text
		}
		if v, err := pyjson.Decode([]byte(text)); err == nil {
			given = v
		}
	}
	o, ok := given.(*pyjson.Object)
	if !ok || !editor.Is(o) {
		return nil
	}
	plain, err := pyjson.Normalize(o)
	if err != nil {
		return &fault.Failure{Code: fault.CodeTooLarge, Message: "workflow cannot be read", Details: err.Error(), Cause: err}
	}
	var cat *graph.Catalogue
	seen := map[string]*pyjson.Object{}
	api, failure := editor.Convert(plain.(*pyjson.Object), func(class string) *pyjson.Object {
		entry, known := seen[class]
		if !known {
			if cat == nil {
				cat = classes.All()
			}
			if entry, _ = cat.ObjectInfo(files.Roots{}, class)[class].(*pyjson.Object); entry == nil && info != nil {
				entry, _ = info.At(class).(*pyjson.Object)
			}
			seen[class] = entry
		}
		return entry
	})
	if failure != nil {
		return failure
	}
	if req.Workflow = api; req.ExtraPNG == nil {
		req.ExtraPNG = pyjson.NewObject("workflow", o)
	}
	return nil
}
