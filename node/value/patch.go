package value

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/source"
	"patchbay/models/weights"
)

// Patch is an adapter that a host sends itself. Its rows of the weight get Strength * Alpha/R * Up * Down added (LoRA,
// arXiv:2106.09685), as ComfyUI's LoRAAdapter does; or a bias gets Strength * Value added, or a norm is replaced by
// Value.
type Patch struct {
	Key      string        // of the weight, as ComfyUI spells it: "diffusion_model.double_blocks.0.img_attn.qkv.weight"
	Offset   []int         // [0, first, rows]: only these rows; nil: all
	Strength float64       // factor of what is added
	Alpha    *float64      // nil: R
	Up, Down *array.Tensor // [N, R] and [R, K], or those of a convolution; nil: Value is used
	Value    *array.Tensor // [N], of a bias or a norm
	Set      bool          // replace the tensor by Value, whatever Strength is
	ID       string        // identifies all the data: adapters with equal IDs are equal
}

// patched returns a copy of m with the adapters of a host. All copies share the packed weights.
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
	f, _ := models.Named(m.Spec.Family) // found: m was described by that table
	use := source.Adapter{Name: "patches of the host"}
	for i := range patches {
		p := &patches[i]
		if err := p.join(&use, shapes, f.Names.Input); err != nil {
			path := fmt.Sprintf("model.patches[%d]", i)
			return nil, fault.Bad(path, "%s: %v", p.Key, err)
		}
	}
	adapted, err := m.changed(use)
	if err != nil {
		return nil, fault.Bad("model.patches", "%v", err)
	}
	return adapted, nil
}

// join checks a patch against the tensor that it changes and adds it to an adapter. shapes are those of the model after
// the preceding patches, input is the name of the matrix that may get more columns.
func (p *Patch) join(use *source.Adapter, shapes map[string][]int, input string) error {
	if p.Value != nil {
		c, err := p.change(shapes)
		use.OwnChanges = append(use.OwnChanges, c)
		use.ID += fmt.Sprintf("+%s %v %v %s", p.Key, c.Scale, p.Set, p.ID)
		use.File.Size += int64(len(p.Value.Data))
		return err
	}
	if k := p.Down.Shape; p.Key == "diffusion_model."+input+".weight" && len(k) == 2 {
		if shape := shapes[input+".weight"]; len(shape) == 2 && k[1] > shape[1] {
			use.OwnChanges = append(use.OwnChanges, weights.Change{Name: input + ".weight", Columns: k[1]})
			shapes[input+".weight"] = []int{shape[0], k[1]}
		}
	}
	low, err := p.lowRank(shapes)
	use.Own = append(use.Own, low)
	use.ID += fmt.Sprintf("+%s %v %v %v %s", p.Key, p.Offset, low.Scale, p.Up.Shape, p.ID)
	use.File.Size += int64(len(p.Up.Data) + len(p.Down.Data))
	return err
}

// change checks a patch of a bias or a norm.
func (p *Patch) change(shapes map[string][]int) (weights.Change, error) {
	c := weights.Change{Name: strings.TrimPrefix(p.Key, "diffusion_model."), Scale: float32(p.Strength), Set: p.Set}
	if stem, ok := strings.CutSuffix(c.Name, ".weight"); ok && shapes[c.Name] == nil {
		c.Name = stem + ".scale" // ComfyUI 0.33.0's name for FLUX norms, translated to the checkpoint's
	}
	shape, end, kind := shapes[c.Name], ".bias", "bias"
	if p.Set {
		end, kind = "_norm.scale", "norm"
	}
	if !strings.HasSuffix(c.Name, end) || len(shape) != 1 {
		return c, fmt.Errorf("the model has no %s of that name", kind)
	}
	var err error
	c.Values, err = finite(p.Value)
	switch {
	case err != nil:
		return c, fmt.Errorf("value: %w", err)
	case p.Offset != nil || len(p.Value.Shape) != 1 || len(c.Values) != shape[0]:
		return c, fmt.Errorf("value %v: want [%d], and no offset", p.Value.Shape, shape[0])
	}
	return c, nil
}

// lowRank checks a low-rank patch against the weight that it is added to.
func (p *Patch) lowRank(shapes map[string][]int) (weights.LowRank, error) {
	var none weights.LowRank
	name := strings.TrimSuffix(strings.TrimPrefix(p.Key, "diffusion_model."), ".weight")
	shape, ok := shapes[name+".weight"]
	if !ok || len(shape) < 2 {
		return none, fmt.Errorf("the model has no matrix of that name; it has names such as diffusion_model.%s",
			someMatrix(shapes))
	}
	up, err := stored("up", p.Up)
	if err != nil {
		return none, err
	}
	down, err := stored("down", p.Down)
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

// someMatrix returns the first matrix name, as an example for error messages.
func someMatrix(shapes map[string][]int) string {
	names := slices.Sorted(maps.Keys(shapes))
	return names[slices.IndexFunc(names, func(n string) bool { return len(shapes[n]) >= 2 })]
}

// stored returns a host's tensor in the form that a file would store it.
func stored(name string, t *array.Tensor) (weights.Stored, error) {
	dtype, err := floatOf(t)
	if err != nil {
		return weights.Stored{}, fmt.Errorf("%s: %w", name, err)
	}
	s := weights.Stored{DType: dtype, Shape: t.Shape, Data: t.Data}
	if len(t.Shape) < 2 || s.Len() == 0 || s.Len()*dtype.Size() != len(t.Data) {
		return s, fmt.Errorf("%s has shape %v and %d bytes: want a matrix", name, t.Shape, len(t.Data))
	}
	return s, nil
}
