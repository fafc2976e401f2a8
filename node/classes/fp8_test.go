package classes

import (
	"bytes"
	"image/png"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/source"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
	"patchbay/tests/scratch"
)

// rewritten writes the demo's diffusion model with every tensor as change returns it (values, shape -> type, values,
// scale).
func rewritten(t *testing.T, path string, change func(v []float32, shape []int) (engine.DType, []float32, float32)) {
	t.Helper()
	file, err := safetensors.Open(filepath.Join("..", "..", "examples", "demo", "diffusion_models",
		"demo_flux.safetensors"))
	check(t, err)
	defer file.Close()
	var out []safetensors.Tensor
	for _, name := range file.Names() {
		e, _ := file.Entry(name)
		v, err := e.F32()
		check(t, err)
		dtype, v, factor := change(v, e.Shape)
		data := make([]byte, len(v)*dtype.Size())
		engine.Narrow(data, v, dtype)
		out = append(out, safetensors.Tensor{Name: name, DType: dtype, Shape: e.Shape, Data: datafile.Of(data)})
		if stem, ok := strings.CutSuffix(name, ".weight"); ok && factor != 0 {
			scale := make([]byte, 4)
			engine.Narrow(scale, []float32{factor}, engine.F32)
			if newer := strings.Contains(path, "scaled2"); newer {
				form := []byte(`{"format": "float8_e4m3fn"}`)
				out = append(out, safetensors.Tensor{Name: stem + ".weight_scale", DType: engine.F32, Data: datafile.Of(scale)},
					safetensors.Tensor{
						Name: stem + ".comfy_quant", DType: engine.U8, Shape: []int{len(form)},
						Data: datafile.Of(form),
					})
				continue
			}
			out = append(out, safetensors.Tensor{Name: stem + ".scale_weight", DType: engine.F32, Data: datafile.Of(scale)})
		}
	}
	var b bytes.Buffer
	check(t, safetensors.Write(&b, maps.Clone(file.Metadata()), out))
	scratch.Write(t, path, b.Bytes())
}

// stored returns v converted to dtype and back.
func stored(v []float32, dtype engine.DType) []float32 {
	data := make([]byte, len(v)*dtype.Size())
	engine.Narrow(data, v, dtype)
	out := make([]float32, len(v))
	engine.Widen(out, data, dtype)
	return out
}

// TestFP8FilesDraw runs the demo from fp8 files: both formats, and e4m3 with scales under both names. The image must be
// that of an f32 file with the same values, and weight_dtype may name the type that the file already has.
func TestFP8FilesDraw(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{
		"text_encoders/demo_t5.safetensors", "text_encoders/demo_clip.safetensors",
		"vae/demo_ae.safetensors", "tokenizers/demo_t5.tokenizer.json", "tokenizers/demo_clip.tokenizer.json",
	} {
		copyFile(t, f, filepath.Join(root, f))
	}
	const top = 448 // largest E4M3 value
	matrix := func(shape []int) bool { return len(shape) == 2 }
	scaled := func(v []float32) float32 {
		m := float32(0)
		for _, x := range v {
			m = max(m, float32(math.Abs(float64(x))))
		}
		return max(m, 1e-12) / top
	}
	divided := func(v []float32, by float32) []float32 {
		out := make([]float32, len(v))
		for i := range v {
			out[i] = v[i] / by
		}
		return out
	}
	for name, c := range map[string]struct {
		dtype  engine.DType
		whole  bool // biases and norms too
		factor func([]float32) float32
	}{
		"e4m3":    {dtype: engine.F8E4M3, whole: true},
		"e5m2":    {dtype: engine.F8E5M2, whole: true},
		"scaled":  {dtype: engine.F8E4M3, factor: scaled},
		"scaled2": {dtype: engine.F8E4M3, factor: scaled},
	} {
		models := filepath.Join(root, "diffusion_models")
		rewritten(t, filepath.Join(models, name+".safetensors"),
			func(v []float32, shape []int) (engine.DType, []float32, float32) {
				switch {
				case c.factor != nil && matrix(shape):
					f := c.factor(v)
					return c.dtype, divided(v, f), f
				case c.whole:
					return c.dtype, v, 0
				}
				return engine.F32, v, 0
			})
		rewritten(t, filepath.Join(models, name+"_wide.safetensors"),
			func(v []float32, shape []int) (engine.DType, []float32, float32) {
				switch {
				case c.factor != nil && matrix(shape):
					f := c.factor(v)
					v = stored(divided(v, f), c.dtype)
					for i := range v {
						v[i] *= f
					}
				case c.whole:
					v = stored(v, c.dtype)
				}
				return engine.F32, v, 0
			})
	}
	run, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps),
		Roots:  files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	defer run.Close()
	draw := func(file, dtype string) []byte {
		w := demoWorkflow(t)
		check(t, w.SetInput("1", "unet_name", file+".safetensors"))
		check(t, w.SetInput("1", "weight_dtype", dtype))
		check(t, w.SetInput("3", "steps", 2))
		result, err := run.Run(t.Context(), graph.Job{Workflow: w, NoMetadata: true}, nil)
		check(t, err)
		return result.Outputs[0].Data
	}
	for _, name := range []string{"e4m3", "e5m2", "scaled", "scaled2"} {
		if n := levelsApart(t, draw(name, "default"), draw(name+"_wide", "default")); n > 1 {
			t.Errorf("%s: the picture is %d levels from that of the widened weights, at most 1 is allowed", name, n)
		}
	}
	if !bytes.Equal(draw("e4m3", "fp8_e4m3fn"), draw("e4m3", "default")) {
		t.Error("weight_dtype of the file's own type changes the picture")
	}
	copyFile(t, "diffusion_models/demo_flux.safetensors", filepath.Join(root, "diffusion_models/plain.safetensors"))
	for dtype, file := range map[string]string{"fp8_e4m3fn": "e4m3", "fp8_e4m3fn_fast": "e4m3", "fp8_e5m2": "e5m2"} {
		if !bytes.Equal(draw("plain", dtype), draw(file, "default")) {
			t.Errorf("%s does not draw the picture of a file with all tensors rounded to %s", dtype, file)
		}
	}
	w := demoWorkflow(t)
	check(t, w.SetInput("1", "unet_name", "scaled.safetensors"))
	check(t, w.SetInput("1", "weight_dtype", "fp8_e4m3fn"))
	if _, failure := graph.Validate(All(), files.Roots{Models: []string{root}}, graph.Job{Workflow: w}); failure == nil ||
		failure.Field != "weight_dtype" {
		t.Errorf("a quantised file: got %v, want an error about weight_dtype", failure)
	}
}

// TestRoundedModelsAreSmall checks that a model that weight_dtype rounds counts with the bytes of fp8 and has a key of
// its own, and that its copy for other processes is rounded too.
func TestRoundedModelsAreSmall(t *testing.T) {
	root := t.TempDir()
	copyFile(t, "diffusion_models/demo_flux.safetensors", filepath.Join(root, "diffusion_models/plain.safetensors"))
	run, err := graph.NewRunner(graph.Config{Roots: files.Roots{Models: []string{root}}, Catalogue: All()})
	check(t, err)
	defer run.Close()
	load := func(dtype string) *value.Model {
		handle, _ := exec(t, run, "UNETLoader",
			map[string]any{"unet_name": "plain.safetensors", "weight_dtype": dtype}).(graph.Handle)
		v, ok := run.Value(handle.ID)
		if !ok {
			t.Fatalf("no handle %v", handle)
		}
		return v.(*value.Model)
	}
	plain, narrow := load("default").Request(), load("fp8_e5m2").Request()
	if n := float64(narrow.WeightBytes) / float64(plain.Spec.Params); !(n < 1.01) || !narrow.Blocks {
		t.Errorf("%.3f bytes a weight, in blocks: %v", n, narrow.Blocks)
	}
	if n := float64(narrow.WideBytes) / float64(plain.Spec.Params); !(n < 1.2) { // 16 bytes more a row; rows are short
		t.Errorf("%.3f bytes a weight on GPUs", n)
	}
	if plain.Key == narrow.Key {
		t.Error("both models have the key", plain.Key)
	}
	encoded, err := narrow.Weights.(source.Weights).MarshalBinary()
	check(t, err)
	w, err := new(source.Loader).Decode(encoded)
	check(t, err)
	check(t, w.File.With(func(file *weights.File) error {
		if form, quantised := file.Set().Form(); form != "f8_e5m2" || !quantised {
			t.Errorf("another process reads %s", form)
		}
		return nil
	}))
}

// levelsApart returns the largest difference of two images in 8-bit levels.
func levelsApart(t *testing.T, a, b []byte) int {
	t.Helper()
	x, err := png.Decode(bytes.NewReader(a))
	check(t, err)
	y, err := png.Decode(bytes.NewReader(b))
	check(t, err)
	if x.Bounds() != y.Bounds() {
		t.Fatalf("pictures of %v and %v", x.Bounds(), y.Bounds())
	}
	most := 0
	for r := range x.Bounds().Dy() {
		for c := range x.Bounds().Dx() {
			p, q := [3]uint32{}, [3]uint32{}
			p[0], p[1], p[2], _ = x.At(c, r).RGBA()
			q[0], q[1], q[2], _ = y.At(c, r).RGBA()
			for k := range p {
				most = max(most, int(p[k]>>8)-int(q[k]>>8), int(q[k]>>8)-int(p[k]>>8))
			}
		}
	}
	return most
}
