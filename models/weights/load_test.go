package weights

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/dit"
)

// f32 returns a stored tensor whose element i is base+i.
func f32(base float32, shape ...int) Stored {
	s := Stored{DType: engine.F32, Shape: shape}
	v := make([]float32, s.Len())
	for i := range v {
		v[i] = base + float32(i)
	}
	s.Data = make([]byte, 4*len(v))
	engine.Narrow(s.Data, v, engine.F32)
	return s
}

// packed reads a weight back. ref packs row-major in the file's dtype.
func packed(t *testing.T, w *engine.Weight) []float32 {
	t.Helper()
	if w == nil {
		t.Fatal("weight was not loaded")
	}
	v := make([]float32, w.N()*w.K())
	engine.Widen(v, w.Base.Buf.Host, w.Base.DType)
	return v
}

func same(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// TestRoundedBiases checks that a bias is loaded in bf16 beside f32, each weight its own rows and in its own order, for
// a backend whose products round it, and for no other.
func TestRoundedBiases(t *testing.T) {
	file := checkpoint()
	file["blocks.0.in.bias"], file["extras.turn.bias"] = f32(1021, 7), f32(-514.5, 2)
	for rounds, ops := range map[bool]engine.Ops{false: ref.New(), true: panels{ref.New()}} {
		dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
		l, err := Load(ops, FromMap(file), dst, options())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, c := range []struct {
			name        string
			w           *engine.Weight
			wide, short []float32 // bf16 has steps of 4 from 512 on and of 8 from 1024 on; ties go to even
		}{
			{"first rows", dst.Fused[0].First, []float32{1021, 1022, 1023, 1024}, []float32{1020, 1024, 1024, 1024}},
			{"last rows", dst.Fused[0].Second, []float32{1025, 1026, 1027}, []float32{1024, 1024, 1024}},
			{"of another block", dst.Fused[1].Second, []float32{204, 205, 206}, []float32{204, 205, 206}},
			{"permuted", dst.Extras.Turn, []float32{-513.5, -514.5}, []float32{-512, -516}},
			{"none", dst.Fused[0].Out, nil, nil},
		} {
			if got := c.w.BiasBF16; got.IsZero() == (rounds && c.wide != nil) {
				t.Errorf("%s: in bf16 %s, products round biases: %t", c.name, got, rounds)
			} else if !got.IsZero() {
				v := make([]float32, got.Len())
				engine.Widen(v, raw(got), engine.BF16)
				same(t, c.name+" in bf16", v, c.short)
			}
			if c.wide != nil {
				same(t, c.name, c.w.Bias.F32(), c.wide)
			}
		}
	}
}

type fused struct {
	First  *engine.Weight `weight:"in" shape:"2A+B,K" rows:"0:2A" split:"rows 2A"`
	Second *engine.Weight `weight:"in" shape:"2A+B,K" rows:"2A:2A+B" split:"rows B"`
	Out    *engine.Weight `weight:"out,nobias" shape:"K,A+B" split:"cols A+B"`
}

type extras struct {
	Conv  *engine.Weight `weight:"conv,conv" shape:"1,2,2,2"`
	Turn  *engine.Weight `weight:"turn,perm=swap" shape:"2,2"`
	Other *engine.Weight `weight:"old,alt=new,optbias" shape:"1,2"`
	Maybe *engine.Weight `weight:"maybe,optional" shape:"1,2"`
	Norm  engine.Tensor  `weight:"norm.weight,minus1" shape:"2"`
	Table engine.Tensor  `weight:"table,keep" shape:"2,2"`
	Glued struct {
		Scale engine.Tensor `weight:"scale" shape:"1"`
	} `weight:"txt_"`
}

type whole struct {
	Fused  []fused `weight:"blocks"`
	Extras *extras `weight:"extras"`
	Absent *extras `weight:"absent"`
}

func options() Options {
	return Options{
		Model: "test", Dims: map[string]int{"A": 2, "B": 3, "K": 2}, Perms: map[string][]int{"swap": {1, 0}},
	}
}

func checkpoint() map[string]Stored {
	table := Stored{DType: engine.BF16, Shape: []int{2, 2}, Data: make([]byte, 8)}
	engine.Narrow(table.Data, []float32{1, 2, 3, 4}, engine.BF16)
	return map[string]Stored{
		"blocks.0.in.weight": f32(0, 7, 2), "blocks.0.in.bias": f32(100, 7), "blocks.0.out.weight": f32(50, 2, 5),
		"blocks.1.in.weight": f32(20, 7, 2), "blocks.1.in.bias": f32(200, 7), "blocks.1.out.weight": f32(70, 2, 5),
		"extras.conv.weight": f32(0, 1, 2, 2, 2), "extras.conv.bias": f32(9, 1),
		"extras.turn.weight": f32(0, 2, 2), "extras.turn.bias": f32(5, 2), "extras.new.weight": f32(3, 1, 2),
		"extras.norm.weight": f32(1, 2), "extras.table": table, "extras.txt_scale": f32(8, 1),
	}
}

func TestLoadFillsEveryKindOfField(t *testing.T) {
	dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
	opt := options()
	opt.Held = func(list string, i int) bool { return list == "blocks" && i == 1 }
	l, err := Load(ref.New(), FromMap(checkpoint()), dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dst.Fused[0].First != nil {
		t.Error("block 0 is not held and was loaded")
	}
	b := dst.Fused[1]
	same(t, "first rows", packed(t, b.First), []float32{20, 21, 22, 23, 24, 25, 26, 27})
	same(t, "first bias", b.First.Bias.F32(), []float32{200, 201, 202, 203})
	same(t, "second rows", packed(t, b.Second), []float32{28, 29, 30, 31, 32, 33})
	same(t, "second bias", b.Second.Bias.F32(), []float32{204, 205, 206})
	if !b.Out.Bias.IsZero() {
		t.Error("a weight without bias has one")
	}
	e := dst.Extras
	same(t, "convolution, channels last", packed(t, e.Conv), []float32{0, 4, 1, 5, 2, 6, 3, 7})
	same(t, "permuted rows", packed(t, e.Turn), []float32{2, 3, 0, 1})
	same(t, "permuted bias", e.Turn.Bias.F32(), []float32{6, 5})
	same(t, "other name", packed(t, e.Other), []float32{3, 4})
	if e.Maybe != nil || !e.Other.Bias.IsZero() {
		t.Error("optional tensors that are not in the file were set")
	}
	same(t, "norm minus one", e.Norm.F32(), []float32{0, 1})
	if e.Table.DType != engine.BF16 {
		t.Errorf("kept table: got %s, want bf16", e.Table.DType)
	}
	same(t, "glued name", e.Glued.Scale.F32(), []float32{8})
}

// TestSplitCutsEveryGroup checks each element of the slices that the ranks of a tensor group get. Together they make up
// the whole, in rank order within each group of rows.
func TestSplitCutsEveryGroup(t *testing.T) {
	set := FromMap(checkpoint())
	opt := options()
	opt.Ranks = 2
	for rank, want := range []struct{ first, bias, second, out []float32 }{
		{[]float32{0, 1, 4, 5}, []float32{100, 102}, []float32{8, 9}, []float32{50, 52, 55, 57}},
		{[]float32{2, 3, 6, 7}, []float32{101, 103}, []float32{10, 11, 12, 13}, []float32{51, 53, 54, 56, 58, 59}},
	} {
		opt.Rank = rank
		dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
		l, err := Load(ref.New(), set, dst, opt)
		if err != nil {
			t.Fatal(err)
		}
		b := dst.Fused[0]
		same(t, "row groups", packed(t, b.First), want.first)
		same(t, "row groups' bias", b.First.Bias.F32(), want.bias)
		same(t, "one row group", packed(t, b.Second), want.second)
		same(t, "column groups", packed(t, b.Out), want.out)
		l.Close()
	}
	opt.Units = map[string]int{"A": 2} // a unit cannot be split: one rank gets all of it
	opt.Rank = 1
	dst := &whole{Fused: make([]fused, 2), Extras: &extras{}}
	l, err := Load(ref.New(), set, dst, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	same(t, "whole units", packed(t, dst.Fused[0].First), []float32{0, 1, 2, 3, 4, 5, 6, 7})
}

func TestMismatchNamesEverythingAtOnce(t *testing.T) {
	m := checkpoint()
	delete(m, "blocks.0.in.weight")
	delete(m, "blocks.1.in.bias") // of a block that is not held
	m["blocks.1.out.weight"] = f32(0, 5, 2)
	m["stranger"] = f32(0, 1)
	m["ignored.x"] = f32(0, 1)
	m["extras.table"] = Stored{DType: 255, Shape: []int{2, 2}}
	opt := options()
	opt.Ignore = []string{"ignored."}
	opt.Held = func(string, int) bool { return false }
	_, err := Load(ref.New(), FromMap(m), &whole{Fused: make([]fused, 2), Extras: &extras{}}, opt)
	var bad *MismatchError
	if !errors.As(err, &bad) {
		t.Fatalf("got %v, want a MismatchError", err)
	}
	if want := []string{"blocks.0.in.weight", "blocks.1.in.bias"}; !slices.Equal(bad.Missing, want) {
		t.Errorf("missing: got %v, want %v", bad.Missing, want)
	}
	if want := []string{"blocks.0.in.bias", "stranger"}; !slices.Equal(bad.Unexpected, want) {
		t.Errorf("unexpected: got %v, want %v", bad.Unexpected, want)
	}
	if len(bad.Shapes) != 2 || !strings.Contains(bad.Shapes[0], "stored [5 2], expected [2 5]") {
		t.Errorf("wrong shapes: got %q", bad.Shapes)
	}
	for _, part := range []string{
		"does not fit test", "2 missing (blocks.0.in.weight; blocks.1.in.bias)",
		"2 unexpected", "2 wrong",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error text %q lacks %q", err, part)
		}
	}
}

func TestMistakesInTagsAreErrors(t *testing.T) {
	type badOption struct {
		W *engine.Weight `weight:"w,nonsense" shape:"2,2"`
	}
	type badDim struct {
		W *engine.Weight `weight:"w" shape:"Q,2"`
	}
	type badType struct {
		W int `weight:"w"`
	}
	set := FromMap(map[string]Stored{"w.weight": f32(0, 2, 2), "w.bias": f32(0, 2)})
	for _, c := range []struct {
		dst  any
		want string
	}{{&badOption{}, "unknown option"}, {&badDim{}, `"Q"`}, {&badType{}, "cannot be filled"}, {
		badDim{},
		"not a pointer",
	}} {
		if _, err := Load(ref.New(), set, c.dst, options()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%T: got error %v, want one that says %q", c.dst, err, c.want)
		}
	}
}

// TestDeclaredSplits checks what is declared as divided by a tensor group: of matrices split by rows with their biases,
// of matrices split by columns without, and of each field that shares a matrix.
func TestDeclaredSplits(t *testing.T) {
	var net struct {
		Up    *engine.Weight `weight:"up" shape:"F,E" split:"rows F"`
		Down  *engine.Weight `weight:"down" shape:"E,F" split:"cols F"`
		Whole *engine.Weight `weight:"whole" shape:"E,E"`
		Norm  engine.Tensor  `weight:"norm" shape:"E"`
		QKV   *engine.Weight `weight:"fused" shape:"3E+F,E" rows:"0:3E" split:"rows 3E"`
		MLP   *engine.Weight `weight:"fused" shape:"3E+F,E" rows:"3E:3E+F" split:"rows F"`
		Twice *engine.Weight `weight:"fused" shape:"3E+F,E" rows:"3E:3E+F" split:"rows F"`
		Again *engine.Weight `weight:"up" shape:"F,E" split:"rows F"`
		Both  *engine.Weight `weight:"both,nobias" shape:"E,E+F" split:"cols E+F"`
	}
	declared, err := Declare(&net, Options{
		Dims: map[string]int{"E": 6, "F": 8}, Units: map[string]int{"E": 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	heads := func(params int64) dit.Split { return dit.Split{Units: 3, Params: params} }
	columns := func(params int64) dit.Split { return dit.Split{Units: 8, Params: params} }
	want := map[string][]dit.Split{
		"up.weight": {columns(6)}, "up.bias": {columns(1)}, "down.weight": {columns(6)}, "down.bias": nil,
		"whole.weight": nil, "whole.bias": nil, "norm": nil, "both.weight": {heads(12), columns(6)},
		"fused.weight": {heads(12), heads(12), heads(12), columns(6)},
		"fused.bias":   {heads(2), heads(2), heads(2), columns(1)},
	}
	if len(declared) != len(want) {
		t.Fatalf("%d tensors are declared, want %d", len(declared), len(want))
	}
	for _, d := range declared {
		if !slices.Equal(d.Split, want[d.Name]) {
			t.Errorf("%s is split: %v, want %v", d.Name, d.Split, want[d.Name])
		}
	}
}
