package weights_test

import (
	"fmt"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// packed is a layer of fused matrices as models declare them.
type packed struct {
	Q    *engine.Weight `weight:"qkv,nobias" shape:"3E,E" rows:"0:E" split:"rows E"`
	V    *engine.Weight `weight:"qkv,nobias" shape:"3E,E" rows:"2E:3E" split:"rows E"`
	Out  *engine.Weight `weight:"out" shape:"E,E" split:"cols E"`
	Perm *engine.Weight `weight:"head,nobias,perm=back" shape:"H,E"`
}

func packedOptions(rank, ranks int) weights.Options {
	back := make([]int, 48)
	for i := range back {
		back[i] = len(back) - 1 - i
	}
	return weights.Options{
		Model: "test", Dims: map[string]int{"E": 512, "H": len(back)}, Perms: map[string][]int{"back": back},
		Rank: rank, Ranks: ranks,
	}
}

// packedFile returns a file of the layer with all matrices as blocks of kind. If apart is set, qkv is in three parts.
func packedFile(t *testing.T, kind gguf.Type, apart bool) *gguf.File {
	t.Helper()
	var tensors []ggufwrite.Tensor
	matrix := func(name string, n, k int) {
		v := golden.Fill("blocks/"+name, n*k, 0.15, 0)
		tensors = append(tensors, ggufwrite.Tensor{
			Name: name + ".weight", Type: kind, Shape: []int{n, k}, Data: ggufwrite.Quantise(kind, v),
		})
	}
	if apart {
		matrix("q", 512, 512)
		matrix("k", 512, 512)
		matrix("v", 512, 512)
	} else {
		matrix("qkv", 3*512, 512)
	}
	matrix("out", 512, 512)
	matrix("head", 48, 512)
	tensors = append(tensors, ggufwrite.Tensor{
		Name: "out.bias", Type: gguf.F32, Shape: []int{512},
		Data: ggufwrite.Quantise(gguf.F32, golden.Fill("blocks/bias", 512, 1, 0)),
	})
	f, err := gguf.OpenBytes(ggufwrite.File(map[string]any{"general.architecture": "test"}, tensors))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestBlocksEqualTheirWidenedForm checks that weights that stay in the blocks of the file, cut in every way that models
// cut them, give the same bits at every CPU level as the weights widened beforehand, and take at most 3 % more memory
// than the file.
func TestBlocksEqualTheirWidenedForm(t *testing.T) {
	x := golden.Input("blocks", 7*512)
	for _, kind := range []gguf.Type{gguf.Q8v0, gguf.Q4v0, gguf.Q4K, gguf.Q5K, gguf.Q6K} {
		for _, apart := range []bool{false, true} {
			f := packedFile(t, kind, apart)
			lazy, err := weights.FromGGUF(f, engine.BF16)
			if err != nil {
				t.Fatal(err)
			}
			if apart {
				if lazy, err = weights.Renamed(lazy, weights.QKV("", [3]string{"q", "k", "v"}, "qkv")); err != nil {
					t.Fatal(err)
				}
			}
			wide := lazy.Watched(func(string, int, int) {}) // made of elements, not blocks
			goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) {
				for _, ranks := range []int{1, 2} {
					for rank := range ranks {
						comparePacked(t, fmt.Sprintf("%s, rank %d of %d", kind, rank, ranks), ops, lazy, wide, x, rank, ranks)
					}
				}
			})
			if apart {
				continue
			}
			if form, quantised := lazy.Form(); form != kind.String() || !quantised {
				t.Errorf("%s: the file is said to be of %s, quantised: %v", kind, form, quantised)
			}
			var p struct {
				QKV  *engine.Weight `weight:"qkv,nobias" shape:"3E,E"`
				Out  *engine.Weight `weight:"out" shape:"E,E"`
				Head *engine.Weight `weight:"head,nobias" shape:"H,E"`
			}
			loaded, err := weights.Load(goldenrun.NewOps(), lazy, &p, packedOptions(0, 1))
			if err != nil {
				t.Fatal(err)
			}
			if took := float64(loaded.Bytes()) / float64(f.Size()); !(took < 1.03) && p.Out.Base.Blocks != nil {
				t.Errorf("%s: weights take %d bytes, %.3f of the file's %d", kind, loaded.Bytes(), took, f.Size())
			}
			loaded.Close()
		}
	}
}

// TestBytesOfBlocks checks that block formats that backends can multiply count with the bytes of the file, with rows
// rounded up to 16 bytes on devices, and other formats with those of bf16.
func TestBytesOfBlocks(t *testing.T) {
	for _, c := range []struct {
		kind        gguf.Type
		bytes, wide int64
		blocks      bool
	}{{gguf.Q6K, 4 * 210, 4 * 224, true}, {gguf.Q4v0, 4 * 144, 4 * 144, true}, {gguf.Q5v1, 2048, 2048, false}} {
		per, size := c.kind.Block()
		f, err := gguf.OpenBytes(ggufwrite.File(nil, []ggufwrite.Tensor{
			{Name: "w", Type: c.kind, Shape: []int{4, 256}, Data: make([]byte, 4*256/per*size)},
		}))
		if err != nil {
			t.Fatal(err)
		}
		set, err := weights.FromGGUF(f, engine.BF16)
		if err != nil {
			t.Fatal(err)
		}
		if set.Bytes() != c.bytes || set.WideBytes() != c.wide || set.HasBlocks() != c.blocks {
			t.Errorf("%s: %d bytes, %d on devices, blocks: %v; want %d, %d, %v", c.kind, set.Bytes(), set.WideBytes(),
				set.HasBlocks(), c.bytes, c.wide, c.blocks)
		}
	}
}

func comparePacked(t *testing.T, what string, ops engine.Ops, lazy, wide *weights.Set, x []float32, rank, ranks int) {
	t.Helper()
	var out [2][4][]float32
	for i, set := range []*weights.Set{lazy, wide} {
		var p packed
		loaded, err := weights.Load(ops, set, &p, packedOptions(rank, ranks))
		if err != nil {
			t.Fatal(err)
		}
		for j, w := range []*engine.Weight{p.Q, p.V, p.Out, p.Perm} {
			if (w.Base.Blocks != nil) != (i == 0) {
				t.Fatalf("%s: matrix %d of the form %v", what, j, w.Base.Blocks)
			}
			rows := len(x) / 512
			y := make([]float32, rows*w.N())
			ops.Linear(engine.FromF32(y, rows, w.N()), engine.FromF32(x[:rows*w.K()], rows, w.K()), w, engine.Epilogue{})
			out[i][j] = y
		}
		loaded.Close()
	}
	for j := range out[0] {
		if !slices.Equal(out[0][j], out[1][j]) {
			t.Errorf("%s: the product of matrix %d is not that of the widened form", what, j)
		}
	}
}
