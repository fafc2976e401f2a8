package weights

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// panels is ref with matrices packed as a head and pieces of three rows, like a backend with panels, since nothing may
// depend on ref's single-row pieces.
type panels struct{ *ref.Ops }

const panelRows, panelHead = 3, 64

func (o panels) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	p, err := o.Ops.Pack(m, c)
	if err != nil {
		return nil, err
	}
	p.Head, p.PieceRows, p.PieceBytes = panelHead, panelRows, panelRows*p.PieceBytes
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

// TestPartsMakeTheWhole loads a struct with every kind of tag in parts. Joined they must be the bytes of the whole
// weights, every element must be read by one part only, and no part may hold more than its share plus one piece.
func TestPartsMakeTheWhole(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		for _, parts := range []int{2, 3, 5, 8} {
			t.Run(fmt.Sprintf("slices %d, parts %d", ranks, parts), func(t *testing.T) {
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
				var all []*Loaded
				var got []*whole
				most, total, piece := 0, 0, 0
				for part := range parts {
					opt := base
					opt.Part, opt.Parts = part, parts
					dst := make2()
					l, err := Load(ops, set, dst, opt)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					all, got = append(all, l), append(got, dst)
					mine := 0
					for _, u := range l.Shards().Units {
						mine += u.Mine.Len()
						if part == 0 {
							total += u.Bytes()
						}
					}
					most = max(most, mine)
				}
				for _, it := range fields(t, got[0], base) {
					if w, ok := it.field.Interface().(*engine.Weight); ok && w != nil {
						piece = max(piece, panelHead+w.Base.PieceBytes+regionAlign)
					}
				}
				if bound := (total+parts-1)/parts + piece; most > bound {
					t.Errorf("a part holds %d of %d bytes, want at most 1/%d and a piece of %d", most, total, parts, piece)
				}
				for u := range all[0].Shards().Units {
					gatherUnit(all, u)
					checkUnit(t, fields(t, got[parts-1], base), fields(t, want, base), u, len(all[0].Shards().Units))
					all[parts-1].Shards().Units[u].Open(false)
				}
				if ranks > 1 {
					return // a slice leaves rows out
				}
				for name, count := range reads {
					for i, n := range count {
						if n != 1 {
							t.Fatalf("element %d of %s was read %d times by %d parts, want once", i, name, n, parts)
						}
					}
				}
			})
		}
	}
}

// gatherUnit gathers unit u in the memory of the last part.
func gatherUnit(all []*Loaded, u int) {
	to := &all[len(all)-1].Shards().Units[u]
	at := 0
	for p, l := range all {
		at += copy(to.Whole.Buf.Host[at:at+to.Counts[p]], l.Shards().Units[u].Mine.Buf.Host)
	}
	to.Open(true)
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
	l.Shards().Units[0].Open(true)
	if v := product(); v != nil {
		t.Errorf("a product with a weight that is there panics: %v", v)
	}
	units := l.Shards()
	if units.Ends() != 2 || units.Units[0].Buffer == units.Units[units.Ends()].Buffer {
		t.Errorf("%d units, places %d and %d: want two blocks and the ends, which do not share a place with the first block",
			len(units.Units), units.Units[0].Buffer,
			units.Units[units.Ends()].Buffer)
	}
}
