package weights

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// LowRank is one low-rank addition to a stored matrix (LoRA, arXiv:2106.09685, sec. 4.1): rows [First, First+N) of the
// weight get Scale * Up Down. Names, rows and columns are those of the checkpoint, even if a model keeps only pieces of
// the matrix.
type LowRank struct {
	Name  string // name of the weight, without ".weight"
	First int    // first stored row that the addition applies to
	Down  Stored // [R, K], or [R, C, KY, KX] for a convolution; f32, bf16, f16, fp8 or f64
	Up    Stored // [N, R]
	Scale float32
}

func (a LowRank) rank() int { return a.Down.Shape[0] }

// fits describes what is wrong with the shapes for a stored matrix [n, k], "" if nothing is.
func (a LowRank) fits(n, k int) string {
	if len(a.Down.Shape) < 2 || len(a.Up.Shape) < 2 || a.Down.Shape[0] < 1 || a.Up.Shape[0] < 1 {
		return fmt.Sprintf("down %v and up %v: want [R, %d] and [N, R]", a.Down.Shape, a.Up.Shape, k)
	}
	if r := a.rank(); a.Down.Len() != r*k || a.Up.Len() != a.Up.Shape[0]*r || a.First < 0 || a.First+a.Up.Shape[0] > n {
		return fmt.Sprintf("down %v and up %v at row %d: want [R, %d] and [N, R] within %d rows", a.Down.Shape,
			a.Up.Shape, a.First, k, n)
	}
	return ""
}

// Adapt returns a copy of the filled struct src that shares every packed base, bias and small tensor with it, and whose
// weights carry additions on top of any adapters they already have. opt must be the Options that src was loaded with:
// additions are cut as the weights were (rows of fused matrices, row orders, slices of a tensor group, convolutions),
// and parts that src does not hold are left out. All additions to one weight become one engine.Adapter. Data of the
// additions is read before Adapt returns. It returns an error if a name is not a matrix of src, shapes do not fit or
// memory runs out.
//
// The caller owns the *Loaded, which holds only the adapters; src must stay loaded as long as the copy is used.
func Adapt[T any](ops engine.Ops, src *T, opt Options, additions []LowRank) (*T, *Loaded, error) {
	dst := new(T)
	reflect.ValueOf(dst).Elem().Set(duplicate(reflect.ValueOf(src).Elem()))
	p, err := plan(dst, opt)
	if err != nil {
		return nil, nil, err
	}
	byName := map[string][]LowRank{}
	for _, a := range additions {
		byName[a.Name] = append(byName[a.Name], a)
	}
	l := &Loaded{ops: ops}
	f := filler{ops: ops, opt: opt, loaded: l}
	if err := f.adaptAll(p.items, byName); err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("adapt %s: %w", opt.Model, err)
	}
	return dst, l, nil
}

// adaptAll applies the additions to the fields of items.
func (f *filler) adaptAll(items []item, additions map[string][]LowRank) (err error) {
	defer datafile.Catch(&err)
	strange := maps.Clone(additions)
	for _, it := range items {
		if !isWeight(it.field) {
			continue
		}
		for _, name := range []string{it.full, it.alt} {
			delete(strange, name)
			if err := f.adapt(it, additions[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if names := slices.Sorted(maps.Keys(strange)); len(names) > 0 {
		return fmt.Errorf("%d names are no matrices of it: %s", len(names),
			strings.Join(names[:min(len(names), listed)], ", "))
	}
	return f.ops.Sync()
}

// adapt replaces the weight in it's field by one with additions, if the field holds any.
func (f *filler) adapt(it item, additions []LowRank) error {
	w, _ := it.field.Interface().(*engine.Weight)
	if len(additions) == 0 || w == nil {
		return nil
	}
	if it.want == nil {
		return fmt.Errorf("has no shape tag, so its adapters cannot be cut")
	}
	c, err := f.cut(it, Stored{Shape: it.want})
	if err != nil {
		return err
	}
	var overlapping []LowRank
	for _, a := range additions {
		if rule := a.fits(c.n, c.k); rule != "" {
			return fmt.Errorf("%s", rule)
		}
		if c.touches(a) {
			overlapping = append(overlapping, a)
		}
	}
	if len(overlapping) == 0 || w.N() == 0 || w.K() == 0 {
		return nil
	}
	adapter, err := f.pack(c.join(overlapping), w, c.channels)
	if err != nil {
		return err
	}
	copied := *w
	copied.Adapters = append(slices.Clone(w.Adapters), adapter)
	it.field.Set(reflect.ValueOf(&copied))
	return nil
}

// pack packs a joined adapter for w. If w is a convolution, channels is its number of input channels, else 0.
func (f *filler) pack(j joined, w *engine.Weight, channels int) (engine.Adapter, error) {
	matrix := func(v []float32, n, k, channels int) (*engine.Packed, error) {
		m := engine.Matrix{Data: make([]byte, len(v)*j.dtype.Size()), DType: j.dtype, N: n, K: k}
		engine.Narrow(m.Data, v, j.dtype)
		p, err := f.ops.Pack(m, channels)
		if err == nil {
			f.loaded.packed = append(f.loaded.packed, p)
			f.loaded.bytes += int64(p.Bytes)
		}
		return p, err
	}
	a := engine.Adapter{Scale: j.scale}
	var err error
	if a.Down, err = matrix(j.down, j.rank, w.K(), channels); err == nil {
		a.Up, err = matrix(j.up, w.N(), j.rank, 0)
	}
	return a, err
}

// joined is several additions concatenated along the rank.
type joined struct {
	rank     int
	down, up []float32 // [rank, K'], [N', rank]
	dtype    engine.DType
	scale    float32
}

// join cuts additions and concatenates them; rows that an addition does not reach get zeros. The element type is kept
// if all additions agree on it and on the scale, else the result is f32. Scales that differ are multiplied into up.
func (c *selection) join(additions []LowRank) joined {
	j := joined{dtype: additions[0].Down.DType, scale: additions[0].Scale}
	for _, a := range additions {
		j.rank += a.rank()
		same := a.Down.DType == j.dtype && a.Up.DType == j.dtype && a.Scale == j.scale && a.Down.Scale == 0 && a.Up.Scale == 0
		if !same || j.dtype > engine.F16 {
			j.dtype = engine.F32
		}
	}
	fold := slices.ContainsFunc(additions, func(a LowRank) bool { return a.Scale != j.scale })
	j.up = make([]float32, c.count*j.rank)
	at := 0
	for _, a := range additions {
		r, factor := a.rank(), float32(1)
		if fold {
			factor = a.Scale
		}
		down, up := a.Down.F32(), a.Up.F32()
		for i := range r {
			j.down = appendRow(c, j.down, down[i*c.k:(i+1)*c.k], 1)
		}
		for i := range c.count {
			row := c.row(i) - a.First
			if row < 0 || row >= a.Up.Shape[0] {
				continue
			}
			for q := range r {
				j.up[i*j.rank+at+q] = factor * up[row*r+q]
			}
		}
		at += r
	}
	if fold {
		j.scale = 1
	}
	return j
}

// touches reports whether any row of c is one that a adds to.
func (c *selection) touches(a LowRank) bool {
	for i := range c.count {
		if row := c.row(i) - a.First; row >= 0 && row < a.Up.Shape[0] {
			return true
		}
	}
	return false
}

// duplicate deep-copies structs, and slices of and pointers to structs. Weights and tensors are shared.
func duplicate(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch {
	case isWeight(v) || isTensor(v):
	case v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct && !v.IsNil():
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(duplicate(v.Elem()))
		out.Set(p)
	case v.Kind() == reflect.Slice && !v.IsNil():
		s := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			s.Index(i).Set(duplicate(v.Index(i)))
		}
		out.Set(s)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(duplicate(v.Field(i)))
			}
		}
	}
	return out
}
