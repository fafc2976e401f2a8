package message

import (
	"bytes"

	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/classes"
	"patchbay/node/editor"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// convert replaces a graph in the format of ComfyUI's editor by the same graph in API format. As with the editor, saved
// images then contain the original, unless the request has an extra_pnginfo of its own.
func convert(req *RunRequest, lim wire.Limits) *fault.Error {
	info := req.ObjectInfo
	req.ObjectInfo = nil // only the conversion needs it
	given := req.Workflow
	if text, ok := given.(string); ok {
		if !bytes.Contains([]byte(text), []byte(`"links"`)) || wire.Guard([]byte(text), wire.JSON, lim) != nil {
			return nil // parseWorkflowWithin refuses the text, if need be
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
		return &fault.Error{Code: fault.WorkflowTooLarge, Text: "workflow cannot be read", Details: err.Error(), Cause: err}
	}
	var cat *graph.Catalogue
	seen := map[string]*pyjson.Object{}
	api, failure := editor.Convert(plain.(*pyjson.Object), func(class string) *pyjson.Object {
		entry, known := seen[class]
		if !known {
			if cat == nil {
				cat = classes.All()
			}
			if entry = cat.WithoutFiles(class); entry == nil && info != nil {
				entry, _ = info.At(class).(*pyjson.Object)
			}
			seen[class] = entry
		}
		return entry
	})
	if failure != nil {
		return failure
	}
	if text := pyjson.Dump(plain); bytes.Contains(text, []byte("%date:")) {
		req.Undated = string(text)
	}
	if req.Workflow = api; req.ExtraPNG == nil {
		req.ExtraPNG = pyjson.NewObject("workflow", o)
	}
	return nil
}
