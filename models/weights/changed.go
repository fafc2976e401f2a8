package weights

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
)

// Change is what an adapter does to a stored tensor besides low-rank additions: a bias gets something, a norm becomes
// another one, a matrix gets more columns (ComfyUI comfy/lora.py, comfy/weight_adapter/lora.py, pad_tensor_to_shape).
type Change struct {
	Name string // of the tensor, as the model declares it
	// Values are added to elements from First on, times Scale; with Set they become the tensor, and Scale does not count.
	Values []float32
	First  int
	Scale  float32
	Set    bool
	// Columns is the number of columns that a matrix has afterwards, those behind its own zeros; 0: Values count.
	Columns int
}

// Changed returns the set with changes made in their order. Nothing of matrices is read. Errors: a tensor that is not
// there, or does not have the shape for it.
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

// on makes the change on a tensor.
func (c *Change) on(t Stored) (Stored, error) {
	if c.Columns > 0 {
		return t.widened(c.Columns)
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

// widened returns a matrix with columns of zeros behind its own, without reading it.
func (s Stored) widened(columns int) (Stored, error) {
	if len(s.Shape) != 2 || s.Shape[1] > columns {
		return s, fmt.Errorf("it has shape %v and cannot get %d columns", s.Shape, columns)
	}
	if s.Scales != nil {
		s = s.as(engine.BF16) // groups of rotated inputs may end where no group of the wide matrix does
	}
	out, own, size := s, s.Shape[1], s.DType.Size()
	out.Shape, out.Data, out.packed, out.padded = []int{s.Shape[0], columns}, nil, nil, false
	out.make = func(dst []byte, lo, hi int) {
		clear(dst[:(hi-lo)*size]) // a zero of every element type is zero bytes
		for at := lo; at < hi; {
			row, from := at/columns, at%columns
			n := min(hi-at, columns-from)
			if k := min(n, own-from); k > 0 {
				first := row*own + from
				s.put(dst[(at-lo)*size:(at-lo+k)*size], first, first+k)
			}
			at += n
		}
	}
	return out, nil
}

// Widened returns additions as they are on matrices with more columns: what is added to one that Changed widens gets
// columns of zeros too.
func Widened(additions []LowRank, changes []Change) ([]LowRank, error) {
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
			down, err := a.Down.widened(n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", a.Name, err)
			}
			a.Down = down
		}
	}
	return out, nil
}
