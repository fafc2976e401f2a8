package weights

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/models/dit"
)

// Weights that are brought (Options.Parts, Options.Streams): the packed bytes of a block are concatenated in a flat
// unit, of which every part holds a range, or reads it from the file again before each use. Cuts are between pieces of
// packed matrices, so a part packs the rows of its range and reads nothing else. Fields of a view (View) point into one
// of two slots, always the same for a unit.

// regionAlign is the alignment of tensors in a unit: a cache line, as in engine.Arena.
const regionAlign = 64

// region is one tensor in a unit.
type region struct {
	start, size int // bytes
	head, piece int // cuts inside the tensor are at head + n*piece, n > 0
	name        string
	dtype       engine.DType
	read        func(f *filler, dst engine.Buf, lo, hi int) error // reads bytes [lo, hi); both are cuts
	item        int                                               // index of its field in the plan
	bind        func(field reflect.Value, b engine.Buf)           // points the field to its bytes
	layout      string                                            // of a matrix while its bytes are present; else empty
}

// unit is a block, or all tensors outside of blocks.
type unit struct {
	regions []region
	size    int
	cuts    []int // parts+1 offsets
}

func (u *unit) add(r region) {
	r.start = (u.size + regionAlign - 1) / regionAlign * regionAlign
	u.size = r.start + r.size
	u.regions = append(u.regions, r)
}

// near returns the cut closest to a byte offset, but not below low.
func (u *unit) near(at float64, low int) int {
	best := u.size
	try := func(cut int) {
		if cut >= low && math.Abs(float64(cut)-at) < math.Abs(float64(best)-at) {
			best = cut
		}
	}
	for _, r := range u.regions {
		try(r.start)
		if r.piece == 0 {
			continue
		}
		n := int((at - float64(r.start+r.head)) / float64(r.piece))
		for _, k := range []int{n, n + 1} {
			if cut := r.head + k*r.piece; k > 0 && cut < r.size {
				try(r.start + cut)
			}
		}
	}
	return best
}

// divide cuts all units so that at any unit no part holds more than one piece above its share of the bytes so far.
func divide(units []unit, parts int) {
	given, total := make([]int, parts+1), 0 // given[r]: bytes of parts 0..r-1 in earlier units
	for i := range units {
		u := &units[i]
		total += u.size
		u.cuts = make([]int, parts+1)
		u.cuts[parts] = u.size
		for r := 1; r < parts; r++ {
			want := float64(total)*float64(r)/float64(parts) - float64(given[r])
			u.cuts[r] = u.near(want, u.cuts[r-1])
		}
		for r := range given {
			given[r] += u.cuts[r]
		}
	}
}

// Parts are the weights of one struct that are not in place when they are needed.
type Parts struct {
	shards dit.Shards
	units  []unit
	filler *filler
	host   []datafile.Span // by unit: the bytes of this part in host memory; empty: they are packed as they are read
}

// brought reports whether a unit, a block or -1 for everything outside of blocks, is brought before its use.
func (o *Options) brought(block int) bool {
	return o.Parts > 1 || block >= 0 && o.Streams != nil && o.Streams(block)
}

// fillParts fills the fields of items that are brought with one part of the weights.
func (f *filler) fillParts(items []item) error {
	p := &Parts{filler: f}
	var err error
	if p.units, err = f.units(items); err != nil {
		return err
	}
	ends := len(p.units) - 1
	streams := func(u int) bool { return u < ends && f.opt.Streams != nil && f.opt.Streams(u) }
	slots := dit.Slots(ends+1, func(u int) bool { return f.opt.Parts > 1 || streams(u) })
	stagings := dit.Slots(ends+1, func(u int) bool { return f.opt.Parts > 1 && streams(u) })
	divide(p.units, max(f.opt.Parts, 1))
	p.shards.Part, p.host = f.opt.Part, make([]datafile.Span, len(p.units))
	mine, largest := 0, 0
	for i := range p.units {
		u := p.units[i].describe(f.opt.Part)
		u.Slot, u.Staging, u.Stream = slots[i], stagings[i], streams(i)
		if n := u.Counts[f.opt.Part]; u.Stream {
			largest = max(largest, n)
		} else {
			mine += n
		}
		p.shards.Units = append(p.shards.Units, u)
	}
	if err := f.readParts(p, mine); err != nil {
		return err
	}
	f.loaded.parts = p
	return f.readHost(p, largest)
}

// readParts reads this part of the units that are gathered and stay on the device, of the given size together.
func (f *filler) readParts(p *Parts, bytes int) error {
	if f.opt.Parts <= 1 {
		return nil // they were filled as others are
	}
	buf, err := f.take(bytes)
	if err != nil {
		return err
	}
	at := 0
	for i := range p.units {
		u := &p.shards.Units[i]
		if u.Stream {
			continue
		}
		n := u.Counts[f.opt.Part]
		piece := buf.Piece(at, n)
		at += n
		if u.Mine = flat(piece, n); n == 0 {
			continue
		}
		if err := p.units[i].read(f, piece, f.opt.Part); err != nil {
			return err
		}
	}
	return nil
}

// readHost makes the copies of this part of the units that come from host memory, as the device has packed it, if that
// has memory of its own or copies are kept in files. largest is the size of the largest.
func (f *filler) readHost(p *Parts, largest int) error {
	copies, name := f.loaded.shelf.Copies()
	device, located := f.ops.(interface {
		engine.Located
		Read(dst []byte, src engine.Tensor) engine.Pending
	})
	if largest == 0 || !located && !copies.OnDisk() {
		return nil
	}
	var buf engine.Buf // where units are packed, once that is necessary
	defer func() { f.ops.Free(buf) }()
	files := f.set.files()
	for i := range p.units {
		u := &p.shards.Units[i]
		if !u.Stream {
			continue
		}
		unit := fmt.Sprintf("%s unit %d %s", name, i, p.units[i].layout(f.opt.Part))
		span, err := copies.Take(unit, u.Counts[f.opt.Part], files, func(dst []byte) (err error) {
			if !located {
				return p.units[i].read(f, engine.Buf{Host: dst}, f.opt.Part)
			}
			if buf.IsZero() {
				if buf, err = f.ops.Alloc(largest); err != nil {
					return err
				}
			}
			if err := p.units[i].read(f, buf, f.opt.Part); err != nil {
				return err
			}
			return device.Read(dst, flat(buf, len(dst))).Wait()
		})
		if err != nil {
			return err
		}
		if copies != nil {
			f.loaded.copies = append(f.loaded.copies, unit)
		}
		p.host[i] = span
	}
	return nil
}

// layout says what the bytes of one part of a unit are.
func (u *unit) layout(part int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%d, %d)", u.cuts[part], u.cuts[part+1])
	for _, r := range u.regions {
		fmt.Fprintf(&b, " %s %v %s %d+%d %d+%d", r.name, r.dtype, r.layout, r.start, r.size, r.head, r.piece)
	}
	return b.String()
}

// Shards describes the units. view makes what View of the description returns, of the kind that the caller knows.
func (p *Parts) Shards(view func(slots [2]engine.Buf) (dit.Model, func(unit int, yes bool))) *dit.Shards {
	if p == nil {
		return nil
	}
	out := p.shards
	out.View, out.Reader = view, p.reader
	return &out
}

// reader implements dit.Shards.Reader. A unit that is not behind the one before it begins another evaluation: then the
// headers of the files must be those that were parsed.
func (p *Parts) reader(
	beside func() (engine.Ops, error),
) (func(unit int, dst []byte, at int) error, error) {
	f := *p.filler
	f.bytes = nil // scratch memory of its own
	if !slices.ContainsFunc(p.host, func(s datafile.Span) bool { return s.Len() > 0 }) {
		var err error
		if f.ops, err = beside(); err != nil {
			return nil, err
		}
	}
	last := len(p.units)
	return func(unit int, dst []byte, at int) (err error) {
		defer datafile.Catch(&err)
		if packed := p.host[unit]; packed.Len() > 0 {
			packed.Read(dst, at)
			return nil
		}
		begins := unit <= last
		last = unit
		return f.reading(func() error {
			if begins {
				for file := range f.files {
					if err := file.HeaderUnchanged(); err != nil {
						return err
					}
				}
			}
			return p.units[unit].read(&f, engine.Buf{Host: dst}, f.opt.Part)
		})
	}, nil
}

// View returns a copy of the filled struct src, or of a copy of it with adapters, whose fields of units that are
// brought point into slots, and a function that marks the bytes of a unit as present or absent. It shares everything
// else with src. opt must be the Options that src was loaded with.
func View[T any](p *Parts, src *T, opt Options, slots [2]engine.Buf) (*T, func(unit int, yes bool)) {
	dst := new(T)
	reflect.ValueOf(dst).Elem().Set(duplicate(reflect.ValueOf(src).Elem()))
	walked, err := plan(dst, opt)
	if err != nil {
		panic(err) // src was loaded with the same tags
	}
	for i, u := range p.units {
		slot := p.shards.Units[i].Slot
		if slot < 0 {
			continue
		}
		for _, r := range u.regions {
			field := walked.items[r.item].field
			if r.layout != "" {
				w := *field.Interface().(*engine.Weight)
				base := *w.Base
				w.Base = &base
				field.Set(reflect.ValueOf(&w))
			} else { // behind its matrix
				r.bind(field, slots[slot].Piece(r.start, r.size))
			}
		}
	}
	return dst, func(unit int, yes bool) {
		for _, r := range p.units[unit].regions {
			if slot := p.shards.Units[unit].Slot; r.layout != "" && slot >= 0 {
				field := walked.items[r.item].field
				base := field.Interface().(*engine.Weight).Base
				base.Layout = layoutAbsent
				if r.bind(field, engine.Buf{}); yes {
					base.Layout = r.layout
					r.bind(field, slots[slot].Piece(r.start, r.size))
				}
			}
		}
	}
}

// take allocates memory, which the Loaded owns.
func (f *filler) take(n int) (engine.Buf, error) {
	buf, err := f.ops.Alloc(max(n, regionAlign))
	if err == nil {
		f.loaded.owned = append(f.loaded.owned, buf)
		f.loaded.bytes += int64(n)
	}
	return buf, err
}

// units lays out the items that are brought. All other units are empty.
func (f *filler) units(items []item) ([]unit, error) {
	last := -1
	for _, it := range items {
		last = max(last, it.block)
	}
	units := make([]unit, last+2)
	for i, it := range items {
		if !it.held || !f.opt.brought(it.block) {
			continue
		}
		at := it.block
		if at < 0 {
			at = last + 1
		}
		if isWeight(it.field) {
			if err := f.addWeight(&units[at], it, i); err != nil {
				return nil, fmt.Errorf("%s: %w", it.full, err)
			}
		} else if s, ok := f.tensor(it); ok {
			f.addSmall(&units[at], s, i, func(field reflect.Value, t engine.Tensor) { field.Set(reflect.ValueOf(t)) })
		}
	}
	return units, nil
}

// addWeight adds a matrix and its biases to a unit.
func (f *filler) addWeight(u *unit, it item, index int) error {
	s, c, ok, err := f.stored(it)
	if !ok || err != nil {
		return err
	}
	none := c.part(0, 0)
	empty, err := f.ops.Pack(none.matrix(s, &f.bytes), c.channels)
	if err != nil {
		return err
	}
	f.ops.Free(empty.Buf)
	p := *empty // type, layout and piece sizes
	p.N, p.Buf, p.Layout = c.count, engine.Buf{}, layoutAbsent
	pieces := (c.count + p.PieceRows - 1) / p.PieceRows
	u.add(region{
		size: p.Head + pieces*p.PieceBytes, head: p.Head, piece: p.PieceBytes, name: it.full, dtype: p.DType,
		layout: empty.Layout, item: index,
		bind: func(field reflect.Value, b engine.Buf) { field.Interface().(*engine.Weight).Base.Buf = b },
		read: func(f *filler, dst engine.Buf, lo, hi int) error { return f.pieces(dst, s, c, p, lo, hi) },
	})
	for _, bias := range f.bind(it, c, &p) {
		f.addSmall(u, bias, index, func(field reflect.Value, t engine.Tensor) {
			setBias(field.Interface().(*engine.Weight), t)
		})
	}
	return nil
}

// pieces packs bytes [lo, hi) of a matrix with the layout of p.
func (f *filler) pieces(dst engine.Buf, s Stored, c selection, p engine.Packed, lo, hi int) error {
	first, end := 0, 0
	if p.PieceBytes > 0 {
		first, end = max(lo-p.Head, 0)/p.PieceBytes, (hi-p.Head)/p.PieceBytes
	}
	rows := c.part(min(first*p.PieceRows, c.count), min(end*p.PieceRows, c.count))
	packed, err := f.ops.Pack(rows.matrix(s, &f.bytes), c.channels)
	if err != nil {
		return err
	}
	defer f.ops.Free(packed.Buf)
	from := p.Head
	if lo == 0 {
		from = 0
	}
	f.ops.Copy(flat(dst, hi-lo), flat(packed.Buf.Piece(from, hi-lo), hi-lo))
	return nil
}

// addSmall adds a tensor that is not packed to a unit, and gives its field the shape. set sets the field.
func (f *filler) addSmall(u *unit, s small, index int, set func(field reflect.Value, t engine.Tensor)) {
	size := s.dtype.Size()
	s.put(engine.NewTensor(engine.Buf{}, s.dtype, s.shape...))
	u.add(region{
		size: s.count() * size, piece: regionAlign, name: s.name, dtype: s.dtype, item: index,
		bind: func(field reflect.Value, b engine.Buf) { set(field, engine.NewTensor(b, s.dtype, s.shape...)) },
		read: func(f *filler, dst engine.Buf, lo, hi int) error {
			v := make([]float32, (hi-lo)/size)
			s.values(v, lo/size)
			f.ops.Upload(engine.NewTensor(dst, s.dtype, len(v)), v)
			return nil
		},
	})
}

// flat views memory as bytes.
func flat(b engine.Buf, n int) engine.Tensor { return engine.NewTensor(b, engine.U8, n) }

// read fills dst with one part of the unit.
func (u *unit) read(f *filler, dst engine.Buf, part int) error {
	lo, hi := u.cuts[part], u.cuts[part+1]
	for _, r := range u.regions {
		a, b := max(lo, r.start), min(hi, r.start+r.size)
		if a >= b {
			continue
		}
		if err := r.read(f, dst.Piece(a-lo, b-a), a-r.start, b-r.start); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// layoutAbsent is the layout of a packed matrix whose bytes are not present: every backend rejects it.
const layoutAbsent = "in parts"

// describe returns the sizes of the unit for one part.
func (u *unit) describe(part int) (out dit.Unit) {
	for r := range len(u.cuts) - 1 {
		out.Counts = append(out.Counts, u.cuts[r+1]-u.cuts[r])
	}
	for _, r := range u.regions {
		out.Read += max(0, min(u.cuts[part+1], r.start+r.size)-max(u.cuts[part], r.start))
	}
	return out
}
