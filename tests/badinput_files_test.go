package tests

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/harness"
)

// hostile is a models folder full of files that no node may accept, and an input folder of such latents and pictures.
// The models of the demo are in another root of the same daemon.
type hostile struct {
	root, input string
	outside     string // a good model that is in no root
}

// rawSafetensors returns a file with the given header, valid or not, and n zero bytes of data.
func rawSafetensors(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

// demoFile reads a model file of the demo.
func demoFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(harness.DemoModels(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// changed returns a model file of the demo with other metadata or tensors.
func changed(t testing.TB, name string, change func(meta map[string]string,
	tensors map[string]safetensors.Tensor),
) []byte {
	t.Helper()
	f, err := safetensors.OpenBytes(demoFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	meta, tensors := maps.Clone(f.Metadata()), map[string]safetensors.Tensor{}
	for _, n := range f.Names() {
		tensors[n], _ = f.Entry(n)
	}
	change(meta, tensors)
	return written(t, meta, tensors)
}

func written(t testing.TB, meta map[string]string, tensors map[string]safetensors.Tensor) []byte {
	t.Helper()
	var list []safetensors.Tensor
	for n, e := range tensors {
		e.Name = n
		list = append(list, e)
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, meta, list); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// familyFile returns a golden diffusion model of another family, without some tensors.
func familyFile(t testing.TB, model string, lacks ...string) []byte {
	t.Helper()
	set, config, err := goldenweights.Set(model)
	if err != nil {
		t.Fatal(err)
	}
	tensors := map[string]safetensors.Tensor{}
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		tensors[name] = safetensors.Tensor{DType: w.DType, Shape: w.Shape, Data: datafile.Of(w.Data)}
	}
	for _, name := range lacks {
		if _, ok := tensors[name]; !ok {
			t.Fatalf("%s has no %s", model, name)
		}
		delete(tensors, name)
	}
	return written(t, map[string]string{"config": string(config)}, tensors)
}

// newFamily is a family that was added later: its golden case, a VAE for its latents, its error with FLUX's
// conditioning, a tensor that one of its files lacks, and the error for that file.
type newFamily struct{ name, model, vae, mixed, lacks, says string }

func newFamilies() []newFamily {
	return []newFamily{
		{"chroma", "chroma-a", "demo_ae", "128 pooled values", "img_in.weight", "width 0"},
		{"lumina2", "lumina2-a", "demo_ae", "128 channels", "x_embedder.weight", "width 0"},
		{"auraflow", "aura-a", "four", "128 channels", "init_x_linear.weight", "width 0"},
		{"krea2", "krea2-a", "demo_ae", "128 channels", "txtfusion.layerwise_blocks.0.prenorm.scale", "text width 0"},
	}
}

// latentFile returns a file as SaveLatent writes it, filled with v.
func latentFile(t testing.TB, v float32, shape ...int) []byte {
	t.Helper()
	n := 1
	for _, s := range shape {
		n *= s
	}
	data := make([]byte, 4*n)
	engine.Narrow(data, slices.Repeat([]float32{v}, n), engine.F32)
	return written(t, nil, map[string]safetensors.Tensor{
		"latent_tensor":           {DType: engine.F32, Shape: shape, Data: datafile.Of(data)},
		"latent_format_version_0": {DType: engine.F32, Shape: []int{0}},
	})
}

// folderOf returns the folder of a file. Files are spread over folders so that no list of allowed names exceeds the
// twenty that an error shows.
func folderOf(name string) string {
	switch strings.TrimSuffix(name, ".safetensors") {
	case "half", "overlap", "is_vae", "is_clip", "sd3", "nan", "lacks":
		return "diffusion_models"
	}
	return "checkpoints"
}

// newHostile writes all files.
func newHostile(t testing.TB) *hostile {
	t.Helper()
	h := &hostile{root: t.TempDir(), input: t.TempDir(), outside: filepath.Join(t.TempDir(), "outside.safetensors")}
	flux, clip, vae := "diffusion_models/demo_flux.safetensors", "text_encoders/demo_clip.safetensors",
		"vae/demo_ae.safetensors"
	whole := demoFile(t, flux)
	tensor := func(dtype, shape, offsets string) string {
		return `{"dtype":"` + dtype + `","shape":` + shape + `,"data_offsets":` + offsets + `}`
	}
	f32 := func(offsets string) string { return tensor("F32", "[4]", offsets) }
	longHeader := rawSafetensors(`{"a":`+f32("[0,16]")+`}`, 16)
	binary.LittleEndian.PutUint64(longHeader, 5000)
	hugeHeader := bytes.Clone(longHeader)
	binary.LittleEndian.PutUint64(hugeHeader, 1<<60)
	nan := changed(t, flux, func(_ map[string]string, ts map[string]safetensors.Tensor) {
		e := ts["img_in.weight"]
		e.Data = datafile.Of(bytes.Repeat([]byte{0xff}, e.Data.Len())) // NaN in every float type
		ts["img_in.weight"] = e
	})
	for name, data := range map[string][]byte{
		"half.safetensors":     whole[:len(whole)/2],
		"stub.safetensors":     whole[:5],
		"none.safetensors":     {},
		"html.safetensors":     []byte("<!DOCTYPE html><html><body>404</body></html>"),
		"overlap.safetensors":  rawSafetensors(`{"a":`+f32("[0,16]")+`,"b":`+f32("[8,24]")+`}`, 24),
		"hole.safetensors":     rawSafetensors(`{"a":`+f32("[0,16]")+`,"b":`+f32("[20,36]")+`}`, 36),
		"long.safetensors":     longHeader,
		"huge.safetensors":     hugeHeader,
		"beyond.safetensors":   rawSafetensors(`{"a":`+tensor("F32", "[1000000]", "[0,4000000]")+`}`, 16),
		"dtype.safetensors":    rawSafetensors(`{"a":`+tensor("F7", "[4]", "[0,16]")+`}`, 16),
		"negative.safetensors": rawSafetensors(`{"a":`+tensor("F32", "[-4]", "[0,16]")+`}`, 16),
		"overflow.safetensors": rawSafetensors(`{"a":`+tensor("F32", "[4294967296,4294967296,4294967296]", "[0,16]")+`}`,
			16),
		"backwards.safetensors": rawSafetensors(`{"a":`+tensor("F32", "[4]", "[16,0]")+`}`, 16),
		"twice.safetensors":     rawSafetensors(`{"a":`+f32("[0,16]")+`,"a":`+f32("[16,32]")+`}`, 32),
		"size.safetensors":      rawSafetensors(`{"a":`+tensor("F32", "[5]", "[0,16]")+`}`, 16),
		"is_vae.safetensors":    demoFile(t, vae),
		"is_clip.safetensors":   demoFile(t, clip),
		"sd3.safetensors":       familyFile(t, "sd3-a"),
		"nan.safetensors":       nan,
		"lacks.safetensors": changed(t, flux, func(_ map[string]string, ts map[string]safetensors.Tensor) {
			delete(ts, "double_blocks.1.img_mlp.0.weight")
			delete(ts, "single_blocks.2.linear2.bias")
		}),
	} {
		h.write(t, h.root, folderOf(name)+"/"+name, data)
	}
	for _, f := range newFamilies() {
		h.write(t, h.root, "diffusion_models/"+f.name+".safetensors", familyFile(t, f.model))
		h.write(t, h.root, "diffusion_models/"+f.name+"_cut.safetensors",
			familyFile(t, f.model, f.lacks))
	}
	h.write(t, h.root, "diffusion_models/radiance.safetensors", written(t, nil, map[string]safetensors.Tensor{
		"img_in_patch.weight": {DType: engine.F32, Shape: []int{4}, Data: datafile.Of(make([]byte, 16))},
	}))
	h.write(t, h.root, "text_encoders/wordless.safetensors",
		changed(t, clip, func(meta map[string]string, _ map[string]safetensors.Tensor) {
			for k := range meta {
				if strings.Contains(k, "tokenizer") {
					delete(meta, k)
				}
			}
		}))
	h.write(t, h.root, "vae/four.safetensors", familyFile(t, "vae-kl"))
	h.write(t, h.root, "text_encoders/is_flux.safetensors", whole)
	h.write(t, h.root, "vae/is_flux.safetensors", whole)
	if err := os.WriteFile(h.outside, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{
		filepath.Join(h.root, "diffusion_models", "escape.safetensors"): h.outside,
		filepath.Join(h.root, "diffusion_models", "loop.safetensors"): filepath.Join(h.root, "diffusion_models",
			"loop.safetensors"),
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	h.inputs(t)
	return h
}

// inputs fills the input folder and puts a named pipe into both folders: opening one blocks forever.
func (h *hostile) inputs(t testing.TB) {
	t.Helper()
	for _, pipe := range []string{
		filepath.Join(h.root, "diffusion_models", "pipe.safetensors"),
		filepath.Join(h.input, "pipe.png"),
	} {
		if err := syscall.Mkfifo(pipe, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{
		"four.latent":  latentFile(t, 0.5, 1, 4, 12, 12),
		"flat.latent":  latentFile(t, 0.5, 16, 12, 12),
		"void.latent":  latentFile(t, 0, 1, 16, 0, 12),
		"nan.latent":   latentFile(t, float32(math.NaN()), 1, 16, 12, 12),
		"cut.latent":   latentFile(t, 0.5, 1, 16, 12, 12)[:700],
		"cut.png":      []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"),
		"plain.png":    []byte("this is no picture"),
		"notes.latent": []byte("{}"),
	} {
		h.write(t, h.input, name, data)
	}
}

func (h *hostile) write(t testing.TB, dir, name string, data []byte) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
