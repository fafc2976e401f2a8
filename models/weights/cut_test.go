package weights_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

type wideNet struct {
	Layer []wideLayer `weight:"layers"`
}

type wideLayer struct {
	W *engine.Weight `weight:"w,nobias" shape:"N,K"`
}

// meddled are ops that call meddle before they pack the second matrix, and count what is not freed.
type meddled struct {
	engine.Ops
	meddle      func()
	packs, held int
}

func (o *meddled) Pack(m engine.Matrix, channels int) (*engine.Packed, error) {
	if o.packs++; o.packs == 2 {
		o.meddle()
	}
	o.held++
	return o.Ops.Pack(m, channels)
}

func (o *meddled) Alloc(bytes int) (engine.Buf, error) {
	o.held++
	return o.Ops.Alloc(bytes)
}

func (o *meddled) Free(b engine.Buf) {
	o.held--
	o.Ops.Free(b)
}

// TestFileChangedWhileLoading cuts and rewrites files while they are loaded. Loading must fail with an error that names
// the file, and must free what it has packed.
func TestFileChangedWhileLoading(t *testing.T) {
	const rows, columns, count = 64, 512, 4
	layers := func(name string) string { return fmt.Sprintf("layers.%s.w.weight", name) }
	plain := func() []byte {
		var b strings.Builder
		var list []safetensors.Tensor
		for i := range count {
			list = append(list, safetensors.Tensor{
				Name: layers(fmt.Sprint(i)), DType: engine.BF16, Shape: []int{rows, columns},
				Data: datafile.Of(make([]byte, 2*rows*columns)),
			})
		}
		if err := safetensors.Write(&b, nil, list); err != nil {
			t.Fatal(err)
		}
		return []byte(b.String())
	}()
	quantised := func() []byte {
		var list []ggufwrite.Tensor
		for i := range count {
			list = append(list, ggufwrite.Tensor{
				Name: layers(fmt.Sprint(i)), Type: gguf.Q8v0, Shape: []int{rows, columns},
				Data: ggufwrite.Quantise(gguf.Q8v0, make([]float32, rows*columns)),
			})
		}
		return ggufwrite.File(nil, list)
	}()
	cut := func(path string) error { return os.Truncate(path, int64(len(quantised)/2)) }
	rewrite := func(path string) error {
		data, err := os.ReadFile(path)
		if err == nil {
			data[len(data)-1] ^= 1
			err = os.WriteFile(path, data, 0o600)
		}
		return err
	}
	for _, c := range []struct {
		name   string
		file   []byte
		meddle func(path string) error
		form   engine.DType
		parts  int
		says   string
	}{
		{"cut.safetensors", plain, cut, engine.BF16, 1, "was cut"},
		{"cut in parts.safetensors", plain, cut, engine.BF16, 2, "was cut"},
		{"cut blocks.gguf", quantised, cut, engine.BF16, 1, "was cut"},
		{"cut widened.gguf", quantised, cut, engine.F32, 1, "was cut"},
		{"rewritten.safetensors", plain, rewrite, engine.BF16, 1, "was changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name)
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(path, c.form)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			ops := &meddled{Ops: goldenrun.NewOps(), meddle: func() {
				if err := c.meddle(path); err != nil {
					t.Fatal(err)
				}
			}}
			net := wideNet{make([]wideLayer, count)}
			loaded, err := weights.Load(ops, f.Set(), &net, weights.Options{
				Model: "wide", Dims: map[string]int{"N": rows, "K": columns}, Part: c.parts - 1, Parts: c.parts,
				Block: func(_ string, i int) int { return i },
			})
			if !fault.Is(err, fault.FileChanged) || loaded != nil || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("loading gives %v, want an error that names %s and that it %s", err, path, c.says)
			}
			if ops.packs < 2 || ops.held != 0 {
				t.Errorf("%d matrices were packed, %d pieces of memory are not freed", ops.packs, ops.held)
			}
		})
	}
}
