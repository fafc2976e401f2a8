package graph

import (
	"patchbay/node/fault"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// Bounds are the largest picture and the longest run that somebody lets others ask for. They come before the limits of
// classes, which are ComfyUI's, and hold for what a workflow says, for what its nodes make of it, and for the messages
// of hosts.
type Bounds struct {
	Pixels int64 // of one IMAGE or LATENT value: items x height x width in pixels; 0: any
	Steps  int   // of one sampling run; 0: any
	Room   int64 // bytes of the values of a run, and of what its nodes need besides; 0: not known
	held   int64 // of it, that values have by now
	// Reserve, if not nil, is told how many bytes a picture may take before a node works on it: it frees what
	// others keep.
	Reserve func(bytes int64)
}

// pixelBytes is what one pixel of a picture takes at most while a node makes it and a file is written: three floats, a
// copy of them, and the bytes of the file. ownBytes is what it has once it is made.
const (
	pixelBytes = 3*4*2 + 4
	ownBytes   = 3 * 4
)

// latentScale is how many pixels a latent pixel stands for, on a side.
const latentScale = 8

// Workflow refuses a workflow that names too much in plain numbers; nothing has to run for that. What comes over links
// shows when it runs.
func (b Bounds) Workflow(w *Workflow) *fault.Failure {
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

// Host refuses a run of a host, by the shape of its latent, [B, C, ...], and the number of its sigmas; Field names the
// part of the message.
func (b Bounds) Host(latent []int, sigmas int) error {
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

// inputs looks at the inputs of a node before it runs.
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
		if n, ok := wholeOf(in["layers"]); ok { // beside the whole picture
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

// outputs looks at what a node has made.
func (b Bounds) outputs(k *Class, values []any) error {
	b.Reserve = nil // they are made
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
		b.held -= int64(n * ownBytes) // it is there, and counted
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
		return fault.Named(fault.CodeTooLarge, field, "%.0f pixels, at most %d are allowed here", n, b.Pixels)
	case b.Room > 0 && n*pixelBytes > float64(b.Room-b.held): // how much that is changes from start to start
		return fault.Named(fault.CodeTooLarge, field, "%.0f pixels are more than the memory of this worker (--memory) holds",
			n)
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
	return fault.Named(fault.CodeTooLarge, field, "%.0f steps, at most %d are allowed here", n, b.Steps)
}

// wholeOf is the value of an INT, as a float64 that cannot overflow when sides are multiplied.
func wholeOf(v any) (float64, bool) {
	switch n := v.(type) {
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64: // ComfyUI cuts what is meant for an INT
		return n, true
	}
	return 0, false
}
