package weights

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Weights in parts (Options.Parts): the packed bytes of a block are concatenated in a flat unit, and every part holds a
// range of it. Cuts are between pieces of packed matrices, so a part packs the rows of its range and reads nothing
// else. Fields point into one of two buffers, always the same for a unit, into which units are gathered in turn.

// regionAlign is the alignment of tensors in a unit: a cache line, as in engine.Arena.
const regionAlign = 64

// region is one tensor in a unit.
type region struct {
	start, size int // bytes
	head, piece int // cuts inside the tensor are at head + n*piece, n > 0
	name        string
	read        func(dst engine.Buf, lo, hi int) error // reads bytes [lo, hi); both are cuts
	bind        func(engine.Buf)                       // points the field to its bytes in the unit's buffer
	packed      *engine.Packed                         // the matrix; nil for a small tensor
	layout      string                                 // of the matrix while its bytes are present
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

// fillParts fills the fields of items with one part of the weights.
func (f *filler) fillParts(items []item) error {
	units, err := f.units(items)
	if err != nil {
		return err
	}
	divide(units, f.opt.Parts)
	mine, places, all := 0, [2]int{}, &dit.Shards{}
	for i, u := range units {
		mine += u.cuts[f.opt.Part+1] - u.cuts[f.opt.Part]
		p := placeOf(i, len(units))
		places[p] = max(places[p], u.size)
	}
	buf, err := f.take(mine)
	if err != nil {
		return err
	}
	parts, at := make([]engine.Buf, len(units)), 0
	for i, u := range units {
		lo, hi := u.cuts[f.opt.Part], u.cuts[f.opt.Part+1]
		parts[i] = buf.Piece(at, hi-lo)
		at += hi - lo
		if err := u.read(parts[i], lo, hi); err != nil {
			return err
		}
	}
	var slots [2]engine.Buf // allocated last, because packing needs memory too
	for p, n := range places {
		if slots[p], err = f.take(n); err != nil {
			return err
		}
	}
	for i := range units {
		place := placeOf(i, len(units))
		all.Units = append(all.Units, units[i].shard(parts[i], slots[place], f.opt.Part, place))
	}
	f.loaded.shards = all
	return nil
}

// placeOf returns the buffer of a unit. They alternate over the blocks; the last unit, which is used before the first
// block, has the other buffer than that block.
func placeOf(i, units int) int {
	if i == units-1 {
		return 1
	}
	return i % 2
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

// units lays out all items, with blocks that are not held as empty units.
func (f *filler) units(items []item) ([]unit, error) {
	last := -1
	for _, it := range items {
		last = max(last, it.block)
	}
	units := make([]unit, last+2)
	for _, it := range items {
		if !it.held {
			continue
		}
		at := it.block
		if at < 0 {
			at = last + 1
		}
		if isWeight(it.field) {
			if err := f.addWeight(&units[at], it); err != nil {
				return nil, fmt.Errorf("%s: %w", it.full, err)
			}
		} else if s, ok := f.tensor(it); ok {
			f.addSmall(&units[at], s)
		}
	}
	return units, nil
}

// addWeight adds a matrix and its bias to a unit.
func (f *filler) addWeight(u *unit, it item) error {
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
	p.N, p.Buf = c.count, engine.Buf{}
	pieces := (c.count + p.PieceRows - 1) / p.PieceRows
	u.add(region{
		size: p.Head + pieces*p.PieceBytes, head: p.Head, piece: p.PieceBytes, name: it.full, packed: &p, layout: p.Layout,
		bind: func(b engine.Buf) { p.Buf = b },
		read: func(dst engine.Buf, lo, hi int) error { return f.pieces(dst, s, c, p, lo, hi) },
	})
	if bias, ok := f.bind(it, c, &p); ok {
		f.addSmall(u, bias)
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

// addSmall adds a tensor that is not packed to a unit.
func (f *filler) addSmall(u *unit, s small) {
	size := s.dtype.Size()
	u.add(region{
		size: s.count() * size, piece: regionAlign, name: s.name,
		bind: func(b engine.Buf) { s.put(engine.NewTensor(b, s.dtype, s.shape...)) },
		read: func(dst engine.Buf, lo, hi int) error {
			v := make([]float32, (hi-lo)/size)
			s.values(v, lo/size)
			f.ops.Upload(engine.NewTensor(dst, s.dtype, len(v)), v)
			return nil
		},
	})
}

// flat views memory as bytes.
func flat(b engine.Buf, n int) engine.Tensor { return engine.NewTensor(b, engine.U8, n) }

// read fills dst with bytes [lo, hi) of the unit.
func (u *unit) read(dst engine.Buf, lo, hi int) error {
	for _, r := range u.regions {
		a, b := max(lo, r.start), min(hi, r.start+r.size)
		if a >= b {
			continue
		}
		if err := r.read(dst.Piece(a-lo, b-a), a-r.start, b-r.start); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return nil
}

// layoutAbsent is the layout of a packed matrix whose bytes are not present: every backend rejects it.
const layoutAbsent = "in parts"

// shard binds the fields of the unit to its buffer and describes the unit.
func (u *unit) shard(mine, whole engine.Buf, part, place int) dit.Unit {
	out := dit.Unit{
		Mine:  flat(mine, u.cuts[part+1]-u.cuts[part]),
		Whole: flat(whole.Piece(0, u.size), u.size), Buffer: place,
	}
	for r := range len(u.cuts) - 1 {
		out.Counts = append(out.Counts, u.cuts[r+1]-u.cuts[r])
	}
	for _, r := range u.regions {
		r.bind(whole.Piece(r.start, r.size))
	}
	out.Open = func(open bool) {
		for _, r := range u.regions {
			switch {
			case r.packed == nil:
			case open:
				r.packed.Layout = r.layout
				r.bind(whole.Piece(r.start, r.size))
			default:
				r.packed.Layout, r.packed.Buf = layoutAbsent, engine.Buf{}
			}
		}
	}
	out.Open(false)
	return out
}
