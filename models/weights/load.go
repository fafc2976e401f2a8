package weights

import (
	"cmp"
	"fmt"
	"reflect"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/models/dit"
)

// Loaded owns the memory of one filled struct.
type Loaded struct {
	ops    engine.Ops
	packed []*engine.Packed
	shelf  *dit.Shelf   // nil: none
	shared []string     // matrices that the shelf has
	owned  []engine.Buf // memory of small tensors, or of units in parts
	bytes  int64
	parts  *Parts
	copies []string // of blocks in host memory, in the Copies of the shelf

	Unused []string // names in the file that the model does not know (Options.Spare)
}

// Parts are the weights that are brought before each use; nil: all are in place.
func (l *Loaded) Parts() *Parts { return l.parts }

// Bytes returns the bytes of small tensors and of packed weights whose backend reports their size; with the Ops of
// Shapes those that the file has of what would be loaded.
func (l *Loaded) Bytes() int64 { return l.bytes }

// Close frees all memory. The struct that was filled must not be used afterwards. A second Close does nothing.
func (l *Loaded) Close() {
	for _, p := range l.packed {
		l.ops.Free(p.Buf)
	}
	for _, b := range l.owned {
		l.ops.Free(b)
	}
	for _, name := range l.shared {
		l.shelf.Release(l.ops, name)
	}
	copies, _ := l.shelf.Copies()
	for _, name := range l.copies {
		copies.Release(name)
	}
	l.packed, l.owned, l.shared, l.copies = nil, nil, nil, nil
}

// Load fills dst, a pointer to a struct with weight tags, from set. Matrices are packed by ops, small tensors become
// f32 (bf16 with the keep tag) in a single allocation. If anything in the file is missing, unexpected or has the wrong
// shape, nothing is loaded and the error is a *MismatchError that lists it all. Fields that are not held stay empty.
// Any Ops of the device may read the weights afterwards. The caller must close the result once dst is no longer used.
//
// With the Ops of Shapes, fields get weights without bytes and nothing of the set but shapes is read.
func Load(ops engine.Ops, set *Set, dst any, opt Options) (*Loaded, error) {
	p, err := plan(dst, opt)
	if err != nil {
		return nil, err
	}
	if err := p.check(set); err != nil {
		return nil, err
	}
	l := &Loaded{Unused: p.unused}
	l.ops, l.shelf = dit.ShelfOf(ops)
	if ops = l.ops; !opt.Shelf {
		l.shelf = nil
	}
	f := filler{ops: ops, set: set, opt: opt, loaded: l, files: map[*datafile.File]bool{}}
	if err := f.load(p.items); err != nil {
		l.Close()
		return nil, fmt.Errorf("load %s: %w", opt.Model, err)
	}
	return l, nil
}

// load fills the fields of items, or returns the error of reading.
func (f *filler) load(items []item) error {
	return f.reading(func() error {
		if f.opt.Parts <= 1 && f.opt.Streams == nil {
			return f.fill(items)
		}
		var stay []item
		for _, it := range items {
			if !f.opt.brought(it.block) {
				stay = append(stay, it)
			}
		}
		if err := f.fill(stay); err != nil {
			return err
		}
		return f.fillParts(items) // last, because packing needs memory too
	})
}

// reading calls read and waits for what it has issued. It returns the error of datafile.Changed if a file cannot be
// read or was changed meanwhile.
func (f *filler) reading(read func() error) (err error) {
	defer datafile.Catch(&err)
	if err = read(); err == nil {
		err = f.ops.Sync()
	}
	for file := range f.files {
		err = cmp.Or(err, file.Unchanged())
	}
	return err
}

type filler struct {
	ops    engine.Ops
	set    *Set
	opt    Options
	loaded *Loaded
	bytes  []byte                  // scratch memory for one matrix
	shapes bool                    // no bytes are read
	files  map[*datafile.File]bool // that were read
}

// small is one tensor that is not packed. values computes its elements from lo on only when it is uploaded, so that
// only one is in memory at a time.
type small struct {
	name   string
	dtype  engine.DType
	shape  []int
	values func(dst []float32, lo int)
	put    func(engine.Tensor)
}

// count returns the number of elements.
func (s small) count() int { return Stored{Shape: s.shape}.Len() }

// scratch returns the bytes of the largest matrix of items as the file has it: scratch memory that grew instead would
// leave its earlier sizes to the garbage collector.
func (f *filler) scratch(items []item) int64 {
	most := int64(0)
	for _, it := range items {
		if !it.held || isTensor(it.field) {
			continue
		}
		if s, c, ok, err := f.stored(it); ok && err == nil && s.make != nil {
			most = max(most, s.Bytes()/int64(max(s.Shape[0], 1))*int64(c.count))
		}
	}
	return most
}

func (f *filler) fill(items []item) error {
	_, f.shapes = f.ops.(shapes)
	if f.loaded.shelf != nil {
		f.loaded.shelf.Only(f.ops, f.shelved(items))
	}
	if !f.shapes {
		f.bytes = make([]byte, f.scratch(items))
	}
	var smalls []small
	for _, it := range items {
		if !it.held {
			continue
		}
		if isTensor(it.field) {
			if s, ok := f.tensor(it); ok {
				smalls = append(smalls, s)
			}
			continue
		}
		biases, err := f.weight(it)
		if err != nil {
			return fmt.Errorf("%s: %w", it.full, err)
		}
		smalls = append(smalls, biases...)
	}
	measure := engine.NewMeasuringArena("weights")
	for _, s := range smalls {
		t := measure.Alloc(s.dtype, s.shape...)
		if f.shapes {
			s.put(t)
		}
	}
	if f.shapes {
		f.loaded.bytes += int64(measure.Peak())
	}
	if measure.Peak() == 0 || f.shapes {
		return nil
	}
	buf, err := f.take(measure.Peak())
	if err != nil {
		return err
	}
	arena := engine.NewArena("weights", buf, measure.Peak())
	for _, s := range smalls {
		t, v := arena.Alloc(s.dtype, s.shape...), make([]float32, s.count())
		s.values(v, 0)
		f.ops.Upload(t, v)
		s.put(t)
	}
	return nil
}

// get returns a tensor that is about to be read.
func (f *filler) get(name string) (Stored, bool) {
	s, ok := f.set.Get(name)
	if s.file != nil && !f.shapes {
		f.files[s.file] = true
	}
	return s, ok
}

// tensor describes an engine.Tensor field; ok is false if the file does not have it.
func (f *filler) tensor(it item) (_ small, ok bool) {
	s, ok := f.get(it.full)
	dtype, shape := engine.F32, s.Shape
	if it.keep && (s.DType == engine.BF16 || s.unrounded || s.plain8()) {
		dtype = engine.BF16
	}
	if len(shape) == 0 {
		shape = []int{1}
	}
	values := func(dst []float32, lo int) {
		if order := f.opt.Perms[it.perm]; order != nil {
			stored := s.F32()
			for i := range dst {
				dst[i] = stored[order[lo+i]]
			}
		} else {
			s.wide(dst, lo)
		}
		for i := 0; i < len(dst) && it.add != 0; i++ {
			dst[i] += it.add
		}
	}
	return small{it.full, dtype, shape, values, func(t engine.Tensor) { it.field.Set(reflect.ValueOf(t)) }}, ok
}

// plain8 reports whether s is fp8 without a scale: bf16 holds its values.
func (s Stored) plain8() bool {
	return (s.DType == engine.F8E4M3 || s.DType == engine.F8E5M2) && s.Plain()
}

// weight packs a matrix and describes its biases (see bind); none if the file does not have the matrix.
func (f *filler) weight(it item) ([]small, error) {
	s, c, ok, err := f.stored(it)
	if !ok || err != nil {
		return nil, err
	}
	var packed *engine.Packed
	if f.shapes {
		packed = &engine.Packed{DType: s.DType, N: c.count, K: c.width()}
		f.loaded.bytes += int64(float64(s.Bytes()) * float64(c.count*c.width()) / float64(max(s.Len(), 1)))
	} else if packed, err = f.packed(it, s, c); err != nil {
		return nil, err
	}
	f.loaded.bytes += int64(packed.Bytes)
	return f.bind(it, c, packed), nil
}

// packed packs a matrix, or takes it from the shelf.
func (f *filler) packed(it item, s Stored, c selection) (*engine.Packed, error) {
	l, name := f.loaded, shelfName(it, c)
	if l.shelf != nil {
		if packed := l.shelf.Take(name); packed != nil {
			l.shared = append(l.shared, name)
			return packed, nil
		}
	}
	packed, err := f.ops.Pack(c.matrix(s, &f.bytes), c.channels)
	switch {
	case err != nil:
	case l.shelf != nil:
		l.shelf.Put(name, packed)
		l.shared = append(l.shared, name)
	default:
		l.packed = append(l.packed, packed)
	}
	return packed, err
}

// shelfName identifies what is packed of a matrix among all that is packed of a model's part.
func shelfName(it item, c selection) string {
	return fmt.Sprintf("%s %d+%d %v %s", it.full, c.first, c.count, c.cols, it.perm)
}

// shelved returns the names that the matrices of items have on a shelf.
func (f *filler) shelved(items []item) map[string]bool {
	out := map[string]bool{}
	for _, it := range items {
		if it.held && !isTensor(it.field) {
			if _, c, ok, err := f.stored(it); ok && err == nil {
				out[shelfName(it, c)] = true
			}
		}
	}
	return out
}

// stored returns the stored matrix of a field and the selection of it; ok is false if the file does not have it.
func (f *filler) stored(it item) (s Stored, c selection, ok bool, err error) {
	if s, ok = f.get(it.full + ".weight"); !ok {
		return s, c, false, nil
	}
	s = s.within(it.want)
	c, err = f.cut(it, s)
	return s, c, true, err
}

// bind sets a field to its packed matrix and describes the bias, if there is one, in f32 and where products round it
// also in bf16.
func (f *filler) bind(it item, c selection, packed *engine.Packed) (out []small) {
	w := &engine.Weight{Name: it.full, Base: packed}
	it.field.Set(reflect.ValueOf(w))
	name := it.full + ".bias"
	bias, ok := f.get(name)
	if !ok || it.noBias {
		return nil
	}
	values := func(dst []float32, lo int) { c.pickInto(dst, bias, lo) }
	types := []engine.DType{engine.F32, engine.BF16}
	if !packed.RoundsBias {
		types = types[:1]
	}
	for _, d := range types {
		out = append(out, small{name, d, []int{c.count}, values, func(t engine.Tensor) { setBias(w, t) }})
	}
	return out
}

// setBias sets the bias of w in the type of t.
func setBias(w *engine.Weight, t engine.Tensor) {
	if t.DType == engine.BF16 {
		w.BiasBF16 = t
	} else {
		w.Bias = t
	}
}
