package weights

import "patchbay/engine"

// shapes is an Ops for models whose weights have no bytes.
type shapes struct{ *engine.Recorder }

// Shapes returns Ops with which Load makes weights of the right shapes and no bytes: enough to record what a model does
// (engine.Recorder), and made without reading a file.
func Shapes() engine.Ops { return shapes{engine.NewRecorder()} }

// Undefined returns tensors that have shapes and no elements, for Load with Shapes.
func Undefined(list []Declared) *Set {
	tensors := make(map[string]Stored, len(list))
	for _, d := range list {
		tensors[d.Name] = Stored{DType: engine.BF16, Shape: d.Shape}
	}
	return FromMap(tensors)
}
