package weights

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// panels is ref with matrices packed as a head and pieces of three rows, like a backend with panels, since nothing may
// depend on ref's single-row pieces. Its products round biases to bf16.
type panels struct{ *ref.Ops }

const panelRows, panelHead = 3, 64

func (o panels) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	p, err := o.Ops.Pack(m, c)
	if err != nil {
		return nil, err
	}
	p.Head, p.PieceRows, p.PieceBytes, p.RoundsBias = panelHead, panelRows, panelRows*p.PieceBytes, true
	buf := make([]byte, panelHead+(m.N+panelRows-1)/panelRows*p.PieceBytes)
	copy(buf, fmt.Sprintf("%v %v", m.DType, m.Scale))
	copy(buf[panelHead:], p.Buf.Host)
	p.Buf = engine.Buf{Host: buf}
	return p, nil
}

// watchedSet returns a set whose tensors are computed on demand, and counts how often each element is read.
func watchedSet(m map[string]Stored) (set *Set, reads map[string][]int) {
	reads = map[string][]int{}
	out := map[string]Stored{}
	for name, s := range m {
		s := s
		count := make([]int, s.Len())
		reads[name] = count
		data, size := s.Data, s.DType.Size()
		s.Data = nil
		s.make = func(dst []byte, lo, hi int) {
			for i := lo; i < hi; i++ {
				count[i]++
			}
			copy(dst, data[lo*size:hi*size])
		}
		out[name] = s
	}
	return FromMap(out), reads
}

// fields returns the planned items of a struct, one for each tensor.
func fields(t *testing.T, dst any, opt Options) []item {
	t.Helper()
	p, err := plan(dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	return p.items
}

// TestPartsMakeTheWhole loads a struct with every kind of tag in parts, of which some stay and some are read from host
// memory. Brought together in a view they must be the bytes of the whole weights, every element must be read by one
// part only, and no part may keep more than its share plus one piece.
func TestPartsMakeTheWhole(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		for _, parts := range []int{1, 2, 3, 5, 8} {
			for _, streamed := range []string{"", "1", "01"} {
				if parts == 1 && streamed == "" {
					continue
				}
				t.Run(fmt.Sprintf("slices %d, parts %d, streamed %s", ranks, parts, streamed), func(t *testing.T) {
					partsMakeTheWhole(t, ranks, parts, streamed)
				})
			}
		}
	}
}

func partsMakeTheWhole(t *testing.T, ranks, parts int, streamed string) {
	base := options()
	base.Dims = map[string]int{"A": 2, "B": 3, "K": 2}
	base.Ranks = ranks
	base.Block = func(_ string, i int) int { return i }
	make2 := func() *whole { return &whole{Fused: make([]fused, 2), Extras: &extras{}} }
	want, ops := make2(), panels{ref.New()}
	loaded, err := Load(ops, FromMap(checkpoint()), want, base)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	set, reads := watchedSet(checkpoint())
	var all []*Parts
	var got *whole
	var opt Options
	most, total, piece := 0, 0, 0
	for part := range parts {
		opt = base
		opt.Part, opt.Parts = part, parts
		if streamed != "" {
			opt.Streams = func(block int) bool { return strings.Contains(streamed, fmt.Sprint(block)) }
		}
		got = make2()
		l, err := Load(ops, set, got, opt)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		all = append(all, l.Parts())
		mine := 0
		for _, u := range l.Parts().shards.Units {
			if u.Slot >= 0 && u.Mine.IsZero() != u.Stream {
				t.Errorf("a unit that streams: %v has bytes here: %v", u.Stream, !u.Mine.IsZero())
			}
			mine += u.Mine.Len()
			if part == 0 {
				total += u.Bytes()
			}
		}
		most = max(most, mine)
	}
	for _, it := range fields(t, got, base) {
		if w, ok := it.field.Interface().(*engine.Weight); ok && w != nil {
			piece = max(piece, panelHead+w.Base.PieceBytes+regionAlign)
		}
	}
	if bound := (total+parts-1)/parts + piece; most > bound {
		t.Errorf("a part holds %d of %d bytes, want at most 1/%d and a piece of %d", most, total, parts, piece)
	}
	shards := all[parts-1].Shards(nil)
	var slots [2]engine.Buf
	for i, n := range shards.SlotBytes() {
		slots[i] = engine.Buf{Host: make([]byte, n)}
	}
	view, open := View(all[parts-1], got, opt, slots)
	for u := range shards.Units {
		if slot := shards.Units[u].Slot; slot >= 0 {
			clear(slots[slot].Host)
			bringUnit(t, all, u, slots[slot].Host, ops)
			open(u, true)
		}
		checkUnit(t, fields(t, view, base), fields(t, want, base), u, len(shards.Units))
		open(u, false)
	}
	if ranks > 1 {
		return // a slice leaves rows out
	}
	for name, count := range reads {
		want := 1
		if strings.HasSuffix(name, ".bias") {
			want = 2 // in f32 and in bf16
		}
		for i, n := range count {
			if n != want {
				t.Fatalf("element %d of %s was read %d times by %d parts, want %d", i, name, n, parts, want)
			}
		}
	}
}

// bringUnit brings unit u from all parts to dst.
func bringUnit(t *testing.T, all []*Parts, u int, dst []byte, ops engine.Ops) {
	t.Helper()
	at := 0
	for _, p := range all {
		unit := &p.shards.Units[u]
		n := unit.Counts[p.shards.Part]
		if !unit.Stream {
			at += copy(dst[at:at+n], unit.Mine.Buf.Host)
			continue
		}
		read, err := p.reader(func() (engine.Ops, error) { return ops, nil })
		if err == nil {
			err = read(u, dst[at:at+n], 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		at += n
	}
}

// checkUnit compares the fields of unit u with those of whole weights.
func checkUnit(t *testing.T, got, want []item, u, units int) {
	t.Helper()
	for i, it := range got {
		block := it.block
		if block < 0 {
			block = units - 1
		}
		if block != u {
			continue
		}
		if isTensor(it.field) {
			sameTensor(t, it.full, it.field, want[i].field)
			continue
		}
		a, _ := it.field.Interface().(*engine.Weight)
		b, _ := want[i].field.Interface().(*engine.Weight)
		if a == nil || b == nil {
			if a != b {
				t.Errorf("%s: loaded %v, whole %v", it.full, a != nil, b != nil)
			}
			continue
		}
		if a.N() != b.N() || a.K() != b.K() || a.Base.Layout != b.Base.Layout ||
			!bytes.Equal(a.Base.Buf.Host, b.Base.Buf.Host) {
			t.Errorf("%s: [%d, %d] %q %x, want [%d, %d] %q %x", it.full, a.N(), a.K(), a.Base.Layout, a.Base.Buf.Host, b.N(),
				b.K(), b.Base.Layout, b.Base.Buf.Host)
		}
		sameTensor(t, it.full+".bias", reflect.ValueOf(a.Bias), reflect.ValueOf(b.Bias))
		sameTensor(t, it.full+".bias in bf16", reflect.ValueOf(a.BiasBF16), reflect.ValueOf(b.BiasBF16))
	}
}

func sameTensor(t *testing.T, name string, a, b reflect.Value) {
	t.Helper()
	x, y := a.Interface().(engine.Tensor), b.Interface().(engine.Tensor)
	if x.IsZero() != y.IsZero() || x.DType != y.DType || !bytes.Equal(raw(x), raw(y)) {
		t.Errorf("%s: %s %x, want %s %x", name, x, raw(x), y, raw(y))
	}
}

func raw(t engine.Tensor) []byte {
	if t.IsZero() {
		return nil
	}
	s := t.DType.Size()
	return t.Buf.Host[t.Off*s : (t.Off+t.Len())*s]
}

// TestUnitThatIsNotThereIsRefused checks that a product with a weight that was not gathered panics with its name.
func TestUnitThatIsNotThereIsRefused(t *testing.T) {
	opt := options()
	opt.Block = func(_ string, i int) int { return i }
	opt.Part, opt.Parts = 1, 2
	dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
	ops := ref.New()
	l, err := Load(ops, FromMap(checkpoint()), dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x := engine.NewTensor(engine.Buf{Host: make([]byte, 8)}, engine.F32, 1, 2)
	y := engine.NewTensor(engine.Buf{Host: make([]byte, 16)}, engine.F32, 1, 4)
	product := func() (v any) {
		defer func() { v = recover() }()
		ops.Linear(y, x, dst.Fused[0].First, engine.Epilogue{})
		return nil
	}
	if product() == nil {
		t.Error("a product with a weight that is not there did not panic")
	}
	shards := l.Parts().Shards(nil)
	var slots [2]engine.Buf
	for i, n := range shards.SlotBytes() {
		slots[i] = engine.Buf{Host: make([]byte, n)}
	}
	view, open := View(l.Parts(), dst, opt, slots)
	dst = view
	if product() == nil {
		t.Error("a product with a weight of a view that is not there did not panic")
	}
	open(0, true)
	if v := product(); v != nil {
		t.Errorf("a product with a weight that is there panics: %v", v)
	}
	if u := shards.Units; len(u) != 3 || u[0].Slot == u[2].Slot {
		t.Errorf("units %+v: want two blocks and the ends, which do not share a slot with the first block", u)
	}
}
