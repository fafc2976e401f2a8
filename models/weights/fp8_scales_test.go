package weights_test

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// scaled is a recorded product with an fp8 matrix of several scales (tests/reference/make_fp8_scales.py).
type scaled struct {
	Type   string    `json:"type"`
	Shape  []int     `json:"shape"`
	Scale  []int     `json:"scale"`
	Tensor string    `json:"tensor"`
	Y      []float32 `json:"y"`
}

// set returns the tensors of the file, all codes finite.
func (c scaled) set(name string) *weights.Set {
	w := weights.Stored{DType: engine.F8E4M3, Shape: c.Shape, Data: make([]byte, c.Shape[0]*c.Shape[1])}
	infinite := byte(0x7f)
	if c.Type == "float8_e5m2" {
		w.DType, infinite = engine.F8E5M2, 0x7c
	}
	for i := range w.Data {
		if w.Data[i] = byte(i*89 + i/11); w.Data[i]&0x7f >= infinite {
			w.Data[i] = 0x30
		}
	}
	n := 1
	for _, d := range c.Scale {
		n *= d
	}
	return weights.FromMap(map[string]weights.Stored{
		"x.weight": w, "x." + c.Tensor: weights.Floats(golden.Fill("fp8_scales/"+name+"/scale", n, 0.02, 0.03), c.Scale...),
	})
}

// TestFP8OfSeveralScales compares products with those recorded, on every backend, and checks that the matrices stay
// as in the file.
func TestFP8OfSeveralScales(t *testing.T) {
	var all map[string]scaled
	if err := golden.JSON("modern33/fp8_scales.json", &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 7 {
		t.Fatalf("%d products are recorded, want 7", len(all))
	}
	for name, c := range all {
		set, n, k := c.set(name), c.Shape[0], c.Shape[1]
		if !slices.Equal(set.Names(), []string{"x.weight"}) {
			t.Errorf("%s: tensors %v are left", name, set.Names())
		}
		rows := len(c.Y) / n
		x := golden.Fill("fp8_scales/"+name+"/x", rows*k, 2, 0)
		run := func(ops engine.Ops, tol float64, stays bool) {
			t.Helper()
			var p net
			loaded, err := weights.Load(ops, set, &p, weights.Options{Model: "test", Dims: map[string]int{"N": n, "K": k}})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer loaded.Close()
			y := make([]float32, rows*n)
			ops.Linear(engine.FromF32(y, rows, n), engine.FromF32(x, rows, k), p.X, engine.Epilogue{})
			if err := ops.Sync(); err != nil {
				t.Fatal(err)
			}
			near(t, name, y, c.Y, tol)
			if kept := p.X.Base.Blocks != nil; kept != stays {
				t.Errorf("%s: kept as in the file: %v", name, kept)
			}
			if took := float64(loaded.Bytes()) / float64(n*k); stays && n*k > 20_000 && !(took <= 1.15) {
				t.Errorf("%s: takes %.3f of the file", name, took)
			}
		}
		stays, tol := k%8 == 0, 1e-6
		if len(c.Scale) == 2 && c.Scale[1] > 1 { // code times scale becomes bf16
			stays, tol = k%128 == 0, 3e-3
		}
		if !stays {
			tol = 3e-3
		}
		goldenrun.EachOps(t, func(_ *testing.T, ops engine.Ops) { run(ops, tol, stays) })
		run(ref.New(), 3e-3, false)
		run(deferred.New(goldenrun.NewOps()), tol, stays)
	}
}

// TestUnequalScalesStayNarrow joins narrow matrices of unequal scales, as models join queries, keys and values: they
// stay as in the file, and the products of their rows, whole and cut for two ranks, are those of the values.
func TestUnequalScalesStayNarrow(t *testing.T) {
	x := golden.Input("blocks", 7*512)
	for _, format := range []string{"float8_e4m3fn", "float8_e5m2", "nvfp4", "mxfp8"} {
		file := weights.FromMap(narrowTensors(format))
		whole, _ := file.Get("qkv.weight")
		tensors := map[string]weights.Stored{}
		for _, name := range []string{"out.weight", "out.bias", "head.weight"} {
			tensors[name], _ = file.Get(name)
		}
		var parts []weights.Stored
		for i, scale := range []float32{0.5, 0.375, 3} {
			part, err := whole.Rows(512*i, 512)
			if err != nil {
				t.Fatal(err)
			}
			part.Scale = scale
			parts = append(parts, part)
		}
		joined, err := weights.Concat(parts...)
		if err != nil {
			t.Fatal(err)
		}
		if joined.Bytes() > whole.Bytes() || !slices.Equal(joined.F32(), slices.Concat(parts[0].F32(), parts[1].F32(),
			parts[2].F32())) {
			t.Errorf("%s: %d bytes were joined to %d, or the values are others", format, whole.Bytes(), joined.Bytes())
		}
		tensors["qkv.weight"] = joined
		set := weights.FromMap(tensors)
		tensors["qkv.weight"] = weights.Floats(joined.F32(), 3*512, 512)
		wide := weights.FromMap(tensors)
		goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) {
			for _, ranks := range []int{1, 2} {
				for rank := range ranks {
					what := fmt.Sprintf("%s, rank %d of %d", format, rank, ranks)
					var got, want packed
					load := func(set *weights.Set, p *packed) *weights.Loaded {
						loaded, err := weights.Load(ops, set, p, packedOptions(rank, ranks))
						if err != nil {
							t.Fatal(err)
						}
						return loaded
					}
					a, b := load(set, &got), load(wide, &want)
					for i, w := range []*engine.Weight{got.Q, got.V} {
						as := []*engine.Weight{want.Q, want.V}[i]
						if w.Base.Blocks == nil || as.Base.Blocks != nil {
							t.Fatalf("%s: matrix %d of the form %v", what, i, w.Base.Blocks)
						}
						y, z := make([]float32, 7*w.N()), make([]float32, 7*w.N())
						in := engine.FromF32(x, 7, 512)
						ops.Linear(engine.FromF32(y, 7, w.N()), in, w, engine.Epilogue{})
						ops.Linear(engine.FromF32(z, 7, w.N()), in, as, engine.Epilogue{})
						near(t, what, y, z, 5e-6)
					}
					a.Close()
					b.Close()
				}
			}
		})
	}
}

// TestFactorsOfInputsStayNarrow checks nvfp4 with pre_quant_scale, whole, cut for two ranks by rows and by columns, and
// joined: the weights stay as in the file, and products are those of the values, up to the rounding of x times its
// factors to bf16.
func TestFactorsOfInputsStayNarrow(t *testing.T) {
	x := golden.Input("blocks", 7*512)
	tensors, pre := narrowTensors("nvfp4"), golden.Fill("narrow/pre", 512, 1.5, 1)
	for _, layer := range []string{"qkv", "out", "head"} {
		tensors[layer+".pre_quant_scale"] = weights.Floats(pre, 512)
	}
	set := weights.FromMap(tensors)
	file, wide := set.Bytes(), map[string]weights.Stored{}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		wide[name] = weights.Floats(s.F32(), s.Shape...)
	}
	whole, _ := set.Get("qkv.weight")
	var rows []weights.Stored
	for i := range 3 {
		part, err := whole.Rows(512*i, 512)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, part)
	}
	joined, err := weights.Concat(rows...)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(joined.F32(), whole.F32()) || joined.Bytes() != whole.Bytes() {
		t.Errorf("joined again: %d bytes, of %d, or other values", joined.Bytes(), whole.Bytes())
	}
	goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) {
		for _, ranks := range []int{1, 2} {
			for rank := range ranks {
				var got, want packed
				load := func(set *weights.Set, p *packed) *weights.Loaded {
					loaded, err := weights.Load(ops, set, p, packedOptions(rank, ranks))
					if err != nil {
						t.Fatal(err)
					}
					return loaded
				}
				a, b := load(set, &got), load(weights.FromMap(wide), &want)
				if took := float64(a.Bytes()) / float64(file); ranks == 1 && !(took <= 1.05) {
					t.Errorf("weights take %.3f of the file", took)
				}
				as := []*engine.Weight{want.Q, want.V, want.Out, want.Perm}
				for i, w := range []*engine.Weight{got.Q, got.V, got.Out, got.Perm} {
					if w.Base.Blocks == nil {
						t.Fatalf("rank %d of %d: matrix %d does not stay as it is", rank, ranks, i)
					}
					k := w.K()
					for _, d := range []engine.DType{engine.F32, engine.BF16} {
						tol := 5e-6
						if d == engine.BF16 {
							tol = 1.0 / 100
						}
						what := fmt.Sprintf("rank %d of %d: matrix %d, %s", rank, ranks, i, d)
						near(t, what, multiplied(t, ops, w, d, x[:7*k]), multiplied(t, ops, as[i], d, x[:7*k]), tol)
					}
				}
				a.Close()
				b.Close()
			}
		}
	})
}

// multiplied returns seven rows of activations in d times a weight.
func multiplied(t *testing.T, ops engine.Ops, w *engine.Weight, d engine.DType, x []float32) []float32 {
	t.Helper()
	tensor := func(n int) engine.Tensor {
		buf, err := ops.Alloc(7 * n * d.Size())
		if err != nil {
			t.Fatal(err)
		}
		return engine.NewTensor(buf, d, 7, n)
	}
	in, y := tensor(w.K()), tensor(w.N())
	ops.Upload(in, x)
	ops.Linear(y, in, w, engine.Epilogue{})
	out := make([]float32, y.Len())
	if err := ops.Download(out, y).Wait(); err != nil {
		t.Fatal(err)
	}
	ops.Free(in.Buf)
	ops.Free(y.Buf)
	return out
}
