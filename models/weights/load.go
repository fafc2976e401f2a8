package weights

import (
	"fmt"
	"reflect"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Loaded owns the memory of one filled struct.
type Loaded struct {
	ops    engine.Ops
	small  engine.Buf
	packed []*engine.Packed
	bytes  int64
	shards *dit.Shards
	owned  []engine.Buf // memory of shards
}

// Shards tells how weights that were loaded in parts are brought together; nil: all bytes are here.
func (l *Loaded) Shards() *dit.Shards { return l.shards }

// Bytes returns the memory of small tensors and of packed weights whose backend tells their size.
func (l *Loaded) Bytes() int64 { return l.bytes }

// Close gives all memory back. The struct that was filled must not be used afterwards. A second Close does nothing.
func (l *Loaded) Close() {
	for _, p := range l.packed {
		l.ops.Free(p.Buf)
	}
	if !l.small.IsZero() {
		l.ops.Free(l.small)
	}
	for _, b := range l.owned {
		l.ops.Free(b)
	}
	l.packed, l.small, l.owned = nil, engine.Buf{}, nil
}

// Load fills dst, a pointer to a struct with weight tags, from set. Matrices are packed by ops, small tensors become
// f32 in one piece of memory. If anything in the file is missing, unexpected or of wrong shape nothing is loaded and
// the error is a *MismatchError with all of it. Fields that are not held stay empty. Any Ops of the device may read the
// weights afterwards. The caller owns the result and closes it when nobody uses dst any more.
func Load(ops engine.Ops, set *Set, dst any, opt Options) (*Loaded, error) {
	p, err := plan(dst, opt)
	if err != nil {
		return nil, err
	}
	if err := p.check(set); err != nil {
		return nil, err
	}
	l := &Loaded{ops: ops}
	f := filler{ops: ops, set: set, opt: opt, loaded: l}
	fill := f.fill
	if opt.Parts > 1 {
		fill = f.fillParts
	}
	err = fill(p.items)
	if err == nil {
		err = ops.Sync()
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("load %s: %w", opt.Model, err)
	}
	return l, nil
}

type filler struct {
	ops    engine.Ops
	set    *Set
	opt    Options
	loaded *Loaded
	bytes  []byte // work memory of one matrix
	read   int64  // bytes of mapped files since their pages were given back
}

// dropEvery is how many bytes of mapped files may stay resident while their weights are packed: a loading process then
// needs the packed weights and this, not every weight twice.
const dropEvery = 16 << 20

// passed counts a tensor that has been packed and gives pages back when enough have been read.
func (f *filler) passed(s Stored) {
	if f.read += s.Bytes(); f.read >= dropEvery && s.drop != nil {
		s.drop()
		f.read = 0
	}
}

// small is one tensor for the arena. data reads it when its turn comes, so that only one is held.
type small struct {
	from  Stored
	data  func() []float32
	dtype engine.DType
	shape []int
	put   func(engine.Tensor)
}

func (f *filler) fill(items []item) error {
	var smalls []small
	for _, it := range items {
		if !it.held {
			continue
		}
		var err error
		if isTensor(it.field) {
			smalls = f.tensor(smalls, it)
		} else if smalls, err = f.weight(smalls, it); err != nil {
			return fmt.Errorf("%s: %w", it.full, err)
		}
	}
	measure := engine.NewMeasuringArena("weights")
	for _, s := range smalls {
		measure.Alloc(s.dtype, s.shape...)
	}
	if measure.Peak() == 0 {
		return nil
	}
	buf, err := f.ops.Alloc(measure.Peak())
	if err != nil {
		return err
	}
	f.loaded.small = buf
	f.loaded.bytes += int64(measure.Peak())
	arena := engine.NewArena("weights", buf, measure.Peak())
	for _, s := range smalls {
		t := arena.Alloc(s.dtype, s.shape...)
		f.ops.Upload(t, s.data())
		s.put(t)
	}
	if last := smalls[len(smalls)-1].from; last.drop != nil {
		last.drop()
	}
	return nil
}

// tensor queues an engine.Tensor field.
func (f *filler) tensor(smalls []small, it item) []small {
	s, ok := f.set.Get(it.full)
	if !ok {
		return smalls
	}
	dtype := engine.F32
	if it.keep && s.DType == engine.BF16 {
		dtype = engine.BF16
	}
	shape := s.Shape
	if len(shape) == 0 {
		shape = []int{1}
	}
	values := func() []float32 {
		v := s.F32()
		if it.perm != "" {
			stored := slices.Clone(v)
			for i, from := range f.opt.Perms[it.perm] {
				v[i] = stored[from]
			}
		}
		for i := 0; i < len(v) && it.add != 0; i++ {
			v[i] += it.add
		}
		return v
	}
	return append(smalls, small{s, values, dtype, shape, func(t engine.Tensor) { it.field.Set(reflect.ValueOf(t)) }})
}

// weight packs a matrix and queues its bias.
func (f *filler) weight(smalls []small, it item) ([]small, error) {
	s, ok := f.set.Get(it.full + ".weight")
	s = s.within(it.want)
	if !ok {
		return smalls, nil
	}
	c, err := f.cut(it, s)
	if err != nil {
		return smalls, err
	}
	packed, err := f.ops.Pack(c.matrix(s, &f.bytes), c.channels)
	if err != nil {
		return smalls, err
	}
	f.passed(s)
	f.loaded.packed = append(f.loaded.packed, packed)
	f.loaded.bytes += int64(packed.Bytes)
	w := &engine.Weight{Name: it.full, Base: packed}
	it.field.Set(reflect.ValueOf(w))
	bias, ok := f.set.Get(it.full + ".bias")
	if !ok || it.noBias {
		return smalls, nil
	}
	values := func() []float32 {
		v := make([]float32, c.count)
		c.pickInto(v, bias, 0)
		return v
	}
	return append(smalls, small{bias, values, engine.F32, []int{c.count}, func(t engine.Tensor) { w.Bias = t }}), nil
}
