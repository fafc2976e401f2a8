package graph

import (
	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// Bounds are the largest picture and the longest run that an operator lets others ask for. They apply in addition to
// the limits of classes, which are ComfyUI's: to the literals of a workflow, to what its nodes produce, and to the
// requests of clients.
type Bounds struct {
	Pixels int64 // of one IMAGE or LATENT value: items x height x width in pixels; 0: any
	Steps  int   // of one sampling run; 0: any
	Room   int64 // bytes for the values of a run and the working memory of its nodes; 0: not known
	held   int64 // bytes of Room that values take already
	// Reserve, if not nil, is called with the bytes that a picture may take before a node works on it, and frees what
	// caches hold.
	Reserve func(bytes int64)
}

// pixelBytes is the most that one pixel of a picture takes while a node makes it and a file is written: three floats,
// a copy of them, and the bytes of the file. ownBytes is what it takes afterwards.
const (
	pixelBytes = 3*4*2 + 4
	ownBytes   = 3 * 4
)

// latentScale is the number of pixels per latent pixel along a side.
const latentScale = 8

// Workflow refuses a workflow with literals beyond the bounds, before anything runs. What comes over links is checked
// when it arrives at a node.
func (b Bounds) Workflow(w *Workflow) *fault.Error {
	for _, id := range w.IDs() {
		in := map[string]any{}
		for _, name := range []string{"width", "height", "batch_size", "layers", "steps"} {
			if v, ok := w.Input(id, name); ok {
				in[name] = v
			}
		}
		if err := b.inputs(in); err != nil {
			f := fault.From(err)
			f.Node, f.Class = id, w.Class(id)
			return f
		}
	}
	return nil
}

// Client checks a request of a client: the shape of its latent, [B, C, ...], and the number of its sigmas. Field
// of the failure names the part of the message.
func (b Bounds) Client(latent []int, sigmas int) error {
	if len(latent) > 2 {
		n := float64(latent[0]) * latentScale * latentScale
		for _, side := range latent[2:] {
			n *= float64(side)
		}
		if err := b.pixels("latent", n); err != nil {
			return err
		}
	}
	return b.steps("sigmas", float64(sigmas-1))
}

// inputs checks the inputs of a node before it runs.
func (b Bounds) inputs(in map[string]any) error {
	if n, ok := wholeOf(in["steps"]); ok {
		if err := b.steps("steps", n); err != nil {
			return err
		}
	}
	width, ok := wholeOf(in["width"])
	height, ok2 := wholeOf(in["height"])
	if ok && ok2 {
		items := 1.0
		if n, ok := wholeOf(in["batch_size"]); ok {
			items = n
		}
		if n, ok := wholeOf(in["layers"]); ok { // in addition to the whole picture
			items *= n + 1
		}
		if err := b.pixels("width", items*width*height); err != nil {
			return err
		}
	}
	for name, v := range in {
		if err := b.value(name, v); err != nil {
			return err
		}
	}
	return nil
}

// outputs checks what a node has produced.
func (b Bounds) outputs(k *Class, values []any) error {
	b.Reserve = nil // the memory is taken already
	for i, v := range values {
		if err := b.value(k.Outputs[i].Type, v); err != nil {
			return err
		}
	}
	return nil
}

func (b Bounds) value(name string, v any) error {
	switch v := v.(type) {
	case *picture.Image:
		n := float64(v.B) * float64(v.Y) * float64(v.X)
		b.held -= int64(n * ownBytes) // it is counted in held
		return b.pixels(name, n)
	case *value.Latent:
		s := v.Samples
		return b.pixels(name, float64(s.B)*float64(s.Y)*float64(s.X)*latentScale*latentScale)
	case value.Sigmas:
		return b.steps(name, float64(len(v)-1))
	}
	return nil
}

func (b Bounds) pixels(field string, n float64) error {
	switch {
	case b.Pixels > 0 && n > float64(b.Pixels):
		return fault.Named(fault.WorkflowTooLarge, field, "%.0f pixels, at most %d are allowed here", n, b.Pixels)
	case b.Room > 0 && n*pixelBytes > float64(b.Room-b.held): // no number: it differs per start
		return fault.Named(fault.WorkflowTooLarge, field, "%.0f pixels are more than the memory of this worker (--memory) "+
			"holds", n)
	}
	if b.Reserve != nil {
		b.Reserve(int64(n * pixelBytes))
	}
	return nil
}

func (b Bounds) steps(field string, n float64) error {
	if b.Steps == 0 || n <= float64(b.Steps) {
		return nil
	}
	return fault.Named(fault.WorkflowTooLarge, field, "%.0f steps, at most %d are allowed here", n, b.Steps)
}

// wholeOf returns the value of an INT as a float64, so that products of sides cannot overflow.
func wholeOf(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64: // ComfyUI truncates a float for an INT
		return n, true
	}
	return 0, false
}
