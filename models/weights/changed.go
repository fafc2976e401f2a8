package weights

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// Change is a change that an adapter makes to a stored tensor, other than a low-rank addition: it adds to a bias,
// replaces a norm, or gives a matrix more columns (ComfyUI comfy/lora.py, comfy/weight_adapter/lora.py,
// pad_tensor_to_shape).
type Change struct {
	Name string // name of the tensor, as the model declares it
	// Values times Scale is added to the elements from First on. With Set, Values replaces the tensor and Scale is
	// ignored.
	Values []float32
	First  int
	Scale  float32
	Set    bool
	// Columns, if not 0, is the new number of columns of a matrix. New ones are zeros, and Values is ignored.
	Columns int
}

// Changed returns the set with the changes applied in order. Data of matrices is not read. It returns an error if a
// tensor does not exist or has the wrong shape.
func (s *Set) Changed(list []Change) (*Set, error) {
	if len(list) == 0 {
		return s, nil
	}
	out := &Set{tensors: maps.Clone(s.tensors), refused: s.refused}
	for i := range list {
		c := &list[i]
		name := c.Name
		if stem, ok := strings.CutSuffix(name, ".scale"); ok && !s.Has(name) {
			name = stem + ".weight" // norms of FLUX as ComfyUI 0.33.0 saves them
		}
		t, ok := out.tensors[name]
		if !ok {
			return nil, fmt.Errorf("an adapter changes %s, which the model does not have", c.Name)
		}
		t, err := c.on(t)
		if err != nil {
			return nil, fmt.Errorf("an adapter changes %s: %w", c.Name, err)
		}
		out.tensors[name] = t
	}
	out.index()
	return out, nil
}

// on returns t with the change applied.
func (c *Change) on(t Stored) (Stored, error) {
	if c.Columns > 0 {
		return t.withColumns(c.Columns)
	}
	switch n := t.Len(); {
	case len(t.Shape) != 1:
		return t, fmt.Errorf("it has shape %v, only small tensors of one dimension are changed", t.Shape)
	case c.Set && len(c.Values) != n, c.First < 0 || c.First+len(c.Values) > n:
		return t, fmt.Errorf("%d values from %d on do not fit shape %v", len(c.Values), c.First, t.Shape)
	}
	v := t.F32()
	for i, add := range c.Values {
		if c.Set {
			v[i] = add
		} else {
			v[c.First+i] += c.Scale * add
		}
	}
	return Floats(v, t.Shape...), nil
}

// withColumns returns a matrix with zero columns appended, without reading it.
func (s Stored) withColumns(columns int) (Stored, error) {
	if len(s.Shape) != 2 || s.Shape[1] > columns {
		return s, fmt.Errorf("it has shape %v and cannot get %d columns", s.Shape, columns)
	}
	if s.Scales != nil || s.inputs != nil {
		s = s.as(engine.BF16) // groups of rotated inputs need not align with those of the wide matrix
	}
	out, width, size := s, s.Shape[1], s.DType.Size()
	out.Shape, out.Data, out.span = []int{s.Shape[0], columns}, nil, datafile.Span{}
	out.packed, out.padded = nil, false
	out.make = func(dst []byte, lo, hi int) {
		clear(dst[:(hi-lo)*size]) // a zero of every element type is zero bytes
		for at := lo; at < hi; {
			row, from := at/columns, at%columns
			n := min(hi-at, columns-from)
			if k := min(n, width-from); k > 0 {
				first := row*width + from
				s.put(dst[(at-lo)*size:(at-lo+k)*size], first, first+k)
			}
			at += n
		}
	}
	return out, nil
}

// WithExtraColumns returns the additions adjusted to matrices that changes widen: their Down matrices get zero
// columns too.
func WithExtraColumns(additions []LowRank, changes []Change) ([]LowRank, error) {
	columns := map[string]int{}
	for i := range changes {
		if c := &changes[i]; c.Columns > 0 {
			columns[strings.TrimSuffix(c.Name, ".weight")] = c.Columns
		}
	}
	out := slices.Clone(additions)
	for i := range out {
		a := &out[i]
		if n, ok := columns[a.Name]; ok && len(a.Down.Shape) == 2 && a.Down.Shape[1] < n {
			down, err := a.Down.withColumns(n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", a.Name, err)
			}
			a.Down = down
		}
	}
	return out, nil
}
