package value

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/source"
	"patchbay/models/weights"
	"patchbay/node/fault"
)

// Patch is a low-rank adapter that a host brings itself: the rows of a weight get Strength * Alpha/R * Up * Down (LoRA,
// arXiv:2106.09685), as ComfyUI's LoRAAdapter adds it.
type Patch struct {
	Key      string   // of the weight in ComfyUI: "diffusion_model.double_blocks.0.img_attn.qkv.weight"
	Offset   []int    // [0, first, rows]: only these rows; nil: all
	Strength float64  //
	Alpha    *float64 // nil: R
	Up, Down *Tensor  // [N, R] and [R, K], or those of a convolution
	ID       string   // names the data of both: equal IDs are equal adapters
}

// patched returns a copy of m with the adapters of a host. It shares the packed weights with m and with all other
// copies.
func (m *Model) patched(patches []Patch) (*Model, error) {
	if len(patches) == 0 {
		return m, nil
	}
	declared, err := m.declare()
	if err != nil {
		return nil, err
	}
	shapes := map[string][]int{}
	for _, d := range declared {
		shapes[d.Name] = d.Shape
	}
	use := source.Adapter{Name: "patches of the host"}
	for i := range patches {
		p := &patches[i]
		low, err := p.lowRank(shapes)
		if err != nil {
			path := fmt.Sprintf("model.patches[%d]", i)
			return nil, fault.At(fault.CodeBadInput, path, "%s: %s: %v", path, p.Key, err)
		}
		use.Own = append(use.Own, low)
		use.ID += fmt.Sprintf("+%s %v %v %v %s", p.Key, p.Offset, low.Scale, p.Up.Shape, p.ID)
		use.File.Size += int64(len(p.Up.Data) + len(p.Down.Data))
	}
	adapted := *m
	adapted.loras = append(slices.Clone(m.loras), use)
	return &adapted, nil
}

// lowRank checks a patch against the weight that it adds to.
func (p *Patch) lowRank(shapes map[string][]int) (weights.LowRank, error) {
	var none weights.LowRank
	name := strings.TrimSuffix(strings.TrimPrefix(p.Key, "diffusion_model."), ".weight")
	shape, ok := shapes[name+".weight"]
	if !ok || len(shape) < 2 {
		return none, fmt.Errorf("the model has no matrix of that name; it has names such as diffusion_model.%s",
			someMatrix(shapes))
	}
	up, err := p.Up.stored("up")
	if err != nil {
		return none, err
	}
	down, err := p.Down.stored("down")
	if err != nil {
		return none, err
	}
	first, rows, columns := 0, shape[0], 1
	for _, d := range shape[1:] {
		columns *= d
	}
	if p.Offset != nil {
		if len(p.Offset) != 3 || p.Offset[0] != 0 || p.Offset[1] < 0 || p.Offset[2] < 1 || p.Offset[1] > rows-p.Offset[2] {
			return none, fmt.Errorf("offset %v: want [0, first row, rows] within %d rows", p.Offset, rows)
		}
		first, rows = p.Offset[1], p.Offset[2]
	}
	r := down.Shape[0]
	if up.Shape[0] != rows || up.Len() != rows*r || down.Len() != r*columns {
		return none, fmt.Errorf("up %v and down %v: want [%d, R] and [R, %d]", p.Up.Shape, p.Down.Shape, rows, columns)
	}
	scale := p.Strength
	if p.Alpha != nil {
		scale *= *p.Alpha / float64(r)
	}
	return weights.LowRank{Name: name, First: first, Down: down, Up: up, Scale: float32(scale)}, nil
}

// someMatrix is the first name, for an example.
func someMatrix(shapes map[string][]int) string {
	names := slices.Sorted(maps.Keys(shapes))
	return names[slices.IndexFunc(names, func(n string) bool { return len(shapes[n]) >= 2 })]
}

// stored is a tensor of a host as a file would hold it.
func (t *Tensor) stored(name string) (weights.Stored, error) {
	dtype, ok := map[string]engine.DType{"f32": engine.F32, "f16": engine.F16, "bf16": engine.BF16}[t.DType]
	if !ok {
		return weights.Stored{}, fmt.Errorf("%s is of dtype %q: f32, f16 and bf16 are taken", name, t.DType)
	}
	s := weights.Stored{DType: dtype, Shape: t.Shape, Data: t.Data}
	if len(t.Shape) < 2 || s.Len() == 0 || s.Len()*dtype.Size() != len(t.Data) {
		return s, fmt.Errorf("%s has shape %v and %d bytes: want a matrix", name, t.Shape, len(t.Data))
	}
	return s, nil
}
