package weights

import (
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// delta returns the sum of Scale * Up Down over the adapters of w as [N, K], read from ref's layout.
func delta(t *testing.T, w *engine.Weight) []float32 {
	t.Helper()
	out := make([]float32, w.N()*w.K())
	for _, a := range w.Adapters {
		down, up := packed(t, &engine.Weight{Base: a.Down}), packed(t, &engine.Weight{Base: a.Up})
		for n := range w.N() {
			for k := range w.K() {
				for r := range a.Down.N {
					out[n*w.K()+k] += a.Scale * up[n*a.Down.N+r] * down[r*w.K()+k]
				}
			}
		}
	}
	return out
}

// rankOne returns an adapter whose element [n, k] is up[n]*down[k]*scale.
func rankOne(name string, first int, up, down []float32, scale float32) LowRank {
	stored := func(v []float32, shape ...int) Stored {
		s := Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*len(v))}
		engine.Narrow(s.Data, v, engine.F32)
		return s
	}
	return LowRank{Name: name, First: first, Up: stored(up, len(up), 1), Down: stored(down, 1, len(down)), Scale: scale}
}

func loaded(t *testing.T, opt Options) (*whole, *Loaded) {
	t.Helper()
	dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
	l, err := Load(ref.New(), FromMap(checkpoint()), dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return dst, l
}

// TestAdaptCutsLikeLoad adapts whole stored matrices and compares the adapters of every piece with a cut made by hand.
func TestAdaptCutsLikeLoad(t *testing.T) {
	additions := []LowRank{
		rankOne("blocks.0.in", 0, []float32{1, 2, 3, 4, 5, 6, 7}, []float32{1, 10}, 1),
		// stored rows 3 and 4: the last of First, the first of Second
		rankOne("blocks.0.in", 3, []float32{100, 200}, []float32{1, 1}, 2),
		rankOne("blocks.0.out", 0, []float32{1, 2}, []float32{1, 2, 3, 4, 5}, 0.5),
		rankOne("extras.turn", 0, []float32{1, 2}, []float32{3, 4}, 1),
		rankOne("extras.conv", 0, []float32{2}, []float32{0, 1, 2, 3, 4, 5, 6, 7}, 1),
		rankOne("extras.new", 0, []float32{1}, []float32{8, 9}, 1),
	}
	src, mem := loaded(t, options())
	got, l, err := Adapt(ref.New(), src, options(), additions)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "rows 0..3", delta(t, got.Fused[0].First), []float32{1, 10, 2, 20, 3, 30, 4 + 200, 40 + 200})
	same(t, "rows 4..6", delta(t, got.Fused[0].Second), []float32{5 + 400, 50 + 400, 6, 60, 7, 70})
	same(t, "columns", delta(t, got.Fused[0].Out), []float32{0.5, 1, 1.5, 2, 2.5, 1, 2, 3, 4, 5})
	same(t, "permuted rows", delta(t, got.Extras.Turn), []float32{6, 8, 3, 4})
	same(t, "convolution, channels last", delta(t, got.Extras.Conv), []float32{0, 8, 2, 10, 4, 12, 6, 14})
	same(t, "other name", delta(t, got.Extras.Other), []float32{8, 9})
	if n := len(got.Fused[0].First.Adapters); n != 1 {
		t.Errorf("two additions to one weight gave %d adapters, want them joined", n)
	}
	if src.Fused[0].First.Adapters != nil || src.Extras.Turn.Adapters != nil {
		t.Error("the source has got adapters")
	}
	if got.Fused[1].First != src.Fused[1].First || got.Fused[0].First.Base != src.Fused[0].First.Base ||
		len(got.Extras.Norm.Buf.Host) == 0 {
		t.Error("weights are not shared with the source")
	}
	// ranks 2, 1, 1, 1, 1 on [4, 2] (2), [3, 2] (2), [2, 5], [2, 2], [1, 8], [1, 2]: R*(N+K) floats each
	if want := int64(4 * (2*(4+2) + 2*(3+2) + 7 + 4 + 9 + 3)); l.Bytes() != want {
		t.Errorf("adapters take %d bytes, want %d (the source has %d)", l.Bytes(), want, mem.Bytes())
	}
	again, l2, err := Adapt(ref.New(), got, options(), additions[3:4])
	if err != nil {
		t.Fatal(err)
	}
	same(t, "adapted twice", delta(t, again.Extras.Turn), []float32{12, 16, 6, 8})
	l2.Close()
	l.Close()
	same(t, "the source after Close", packed(t, src.Extras.Turn), []float32{2, 3, 0, 1})
}

// TestAdaptSlices checks the cut of adapters for the ranks of a tensor group.
func TestAdaptSlices(t *testing.T) {
	additions := []LowRank{
		rankOne("blocks.0.in", 0, []float32{1, 2, 3, 4, 5, 6, 7}, []float32{1, 10}, 1),
		rankOne("blocks.0.out", 0, []float32{1, 2}, []float32{1, 2, 3, 4, 5}, 1),
		rankOne("blocks.1.in", 0, []float32{1}, []float32{1, 1}, 1), // only row 0, which rank 0 holds
	}
	opt := options()
	opt.Ranks = 2
	for rank, want := range []struct{ first, second, out []float32 }{
		{[]float32{1, 10, 3, 30}, []float32{5, 50}, []float32{1, 3, 2, 6}},
		{[]float32{2, 20, 4, 40}, []float32{6, 60, 7, 70}, []float32{2, 4, 5, 4, 8, 10}},
	} {
		opt.Rank = rank
		src, _ := loaded(t, opt)
		got, l, err := Adapt(ref.New(), src, opt, additions)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "row groups", delta(t, got.Fused[0].First), want.first)
		same(t, "one row group", delta(t, got.Fused[0].Second), want.second)
		same(t, "column groups", delta(t, got.Fused[0].Out), want.out)
		if has := got.Fused[1].First != src.Fused[1].First; has != (rank == 0) {
			t.Errorf("rank %d: row 0 has an adapter: %v", rank, has)
		}
		l.Close()
	}
}

// TestAdaptKeepsTheType checks that adapters keep the dtype of their files if all have the same, and become f32 if not.
func TestAdaptKeepsTheType(t *testing.T) {
	half := func(a LowRank) LowRank {
		for _, s := range []*Stored{&a.Up, &a.Down} {
			v := s.F32()
			s.DType, s.Data = engine.BF16, make([]byte, 2*len(v))
			engine.Narrow(s.Data, v, engine.BF16)
		}
		return a
	}
	one := rankOne("extras.turn", 0, []float32{1, 2}, []float32{3, 4}, 2)
	for _, c := range []struct {
		what string
		list []LowRank
		want engine.DType
	}{
		{"bf16", []LowRank{half(one), half(one)}, engine.BF16},
		{"bf16 and f32", []LowRank{half(one), one}, engine.F32},
		{
			"two factors",
			[]LowRank{half(one), half(rankOne("extras.turn", 0, []float32{1, 2}, []float32{3, 4}, 3))},
			engine.F32,
		},
	} {
		src, _ := loaded(t, options())
		got, l, err := Adapt(ref.New(), src, options(), c.list)
		if err != nil {
			t.Fatal(err)
		}
		sum := c.list[0].Scale + c.list[1].Scale
		same(t, c.what, delta(t, got.Extras.Turn), []float32{6 * sum, 8 * sum, 3 * sum, 4 * sum})
		if d := got.Extras.Turn.Adapters[0].Down.DType; d != c.want {
			t.Errorf("%s: packed as %s, want %s", c.what, d, c.want)
		}
		l.Close()
	}
}

func TestAdaptRefuses(t *testing.T) {
	src, _ := loaded(t, options())
	up, down := []float32{1, 2}, []float32{3, 4}
	empty := rankOne("extras.turn", 0, up, down, 1)
	empty.Down.Shape = []int{0, 2}
	for _, c := range []struct {
		a    LowRank
		want string
	}{
		{rankOne("extras.lost", 0, up, down, 1), "extras.lost"},
		{rankOne("extras.norm", 0, up, down, 1), "extras.norm"},
		{rankOne("extras.turn", 1, up, down, 1), "within 2 rows"},
		{rankOne("extras.turn", -1, up, down, 1), "at row -1"},
		{rankOne("extras.turn", 0, up, []float32{1, 2, 3}, 1), "want [R, 2]"},
		{empty, "want [R, 2]"},
	} {
		if _, _, err := Adapt(ref.New(), src, options(), []LowRank{c.a}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that says %q", c.a.Name, err, c.want)
		}
	}
	held := options()
	held.Held = func(list string, i int) bool { return i == 1 }
	dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
	l, err := Load(ref.New(), FromMap(checkpoint()), dst, held)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, none, err := Adapt(ref.New(), dst, held, []LowRank{rankOne("blocks.0.in", 0, up, down, 1)}); err != nil ||
		none.Bytes() != 0 {
		t.Errorf("an addition to a block that is not held: %v, want it left out", err)
	}
	if !slices.Equal(packed(t, dst.Fused[1].First), []float32{20, 21, 22, 23, 24, 25, 26, 27}) {
		t.Error("the held block has changed")
	}
}
