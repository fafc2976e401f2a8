package classes

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// record is nodes/classes.safetensors of tests/golden: the outputs of ComfyUI's own classes, recorded by
// tests/reference/make_nodes.py.
type record struct {
	t    *testing.T
	file *safetensors.File
	vae  any // handle of the autoencoder vae-kl
}

func openRecord(t *testing.T) record {
	t.Helper()
	f, err := golden.Open("nodes/classes.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return record{t: t, file: f}
}

// metadata decodes one of the JSON texts in the file's metadata.
func (r record) metadata(key string) any {
	r.t.Helper()
	v, err := pyjson.Decode([]byte(r.file.Metadata()[key]))
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func (r record) tensor(name string) *array.Tensor {
	r.t.Helper()
	e, ok := r.file.Entry(name)
	if !ok {
		r.t.Fatalf("the record has no %s", name)
	}
	v, err := e.F32()
	if err != nil {
		r.t.Fatal(err)
	}
	return array.New(v, e.Shape...)
}

// input converts a recorded input for Exec.
func (r record) input(run *graph.Runner, v any) any {
	switch x := v.(type) {
	case *pyjson.Object:
		if name, ok := x.Get("tensor"); ok {
			return r.tensor(name.(string))
		}
		if v, ok := x.Get("vae"); ok {
			if v == "vae-kl" {
				return r.vae
			}
			return run.Hold(&value.VAE{Name: value.PixelSpace, Key: value.PixelSpace, Channels: 3}, 0)
		}
		o := pyjson.NewObject()
		for _, k := range x.Keys() {
			o.Set(k, r.input(run, x.At(k)))
		}
		return o
	case []any:
		out := []any{}
		for _, e := range x {
			o, isEntry := e.(*pyjson.Object)
			if !isEntry {
				return x
			}
			keys := r.input(run, o).(*pyjson.Object)
			context, _ := keys.Get("context")
			keys = without(keys, "context")
			out = append(out, []any{context, keys})
		}
		return out
	}
	return v
}

// without returns a copy of an object without a key.
func without(o *pyjson.Object, key string) *pyjson.Object {
	out := pyjson.NewObject()
	for _, k := range o.Keys() {
		if k != key {
			out.Set(k, o.At(k))
		}
	}
	return out
}

// differs compares an output of Exec with the recorded one. "" means equal within bound.
func (r record) differs(got, want any, bound float64) string {
	switch w := want.(type) {
	case *pyjson.Object:
		name, isTensor := w.Get("tensor")
		if isTensor {
			return tensorsDiffer(got, r.tensor(name.(string)), bound)
		}
		if len(w.Keys()) == 0 {
			return ""
		}
		g, ok := got.(*pyjson.Object)
		if !ok {
			return fmt.Sprintf("got %T, want an object", got)
		}
		return r.objectsDiffer(g, w, bound)
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(w) {
			return fmt.Sprintf("got %v, want %d items", got, len(w))
		}
		for i := range w {
			g := list[i]
			if o, isEntry := w[i].(*pyjson.Object); isEntry { // an entry of a conditioning
				pair := g.([]any)
				keys := pyjson.Clone(pair[1]).(*pyjson.Object)
				keys.Set("context", pair[0])
				if d := r.objectsDiffer(keys, o, bound); d != "" {
					return fmt.Sprintf("entry %d: %s", i, d)
				}
			} else if d := r.differs(g, w[i], bound); d != "" {
				return fmt.Sprintf("item %d: %s", i, d)
			}
		}
		return ""
	case float64:
		if f, ok := got.(float64); !ok || !(math.Abs(f-w) <= 1e-6) {
			return fmt.Sprintf("got %v, want %v", got, want)
		}
		return ""
	}
	if got != want {
		return fmt.Sprintf("got %v (%T), want %v (%T)", got, got, want, want)
	}
	return ""
}

// objectsDiffer compares key by key. A key that is null or false in the record may be missing.
func (r record) objectsDiffer(got, want *pyjson.Object, bound float64) string {
	for _, k := range want.Keys() {
		g, ok := got.Get(k)
		if w := want.At(k); !ok && (w == nil || w == false) {
			continue
		}
		if d := r.differs(g, want.At(k), bound); d != "" {
			return k + ": " + d
		}
	}
	for _, k := range got.Keys() {
		if _, ok := want.Get(k); !ok {
			return "key " + k + " is not in the record"
		}
	}
	return ""
}

func tensorsDiffer(got any, want *array.Tensor, bound float64) string {
	want = withoutChannel(want).(*array.Tensor) // ComfyUI's noise masks have a channel dimension
	g, ok := got.(*array.Tensor)
	if !ok || !slices.Equal(g.Shape, want.Shape) && !slices.Equal(withoutChannel(g).(*array.Tensor).Shape, want.Shape) {
		return fmt.Sprintf("got %v, want a tensor %v", got, want.Shape)
	}
	a, errA := value.F32(g)
	b, errB := value.F32(want)
	if errA != nil || errB != nil {
		return fmt.Sprint(errA, errB)
	}
	top := 1.0
	for _, v := range b {
		top = max(top, math.Abs(float64(v)))
	}
	for i := range b {
		if d := math.Abs(float64(a[i]) - float64(b[i])); !(d <= bound*top) {
			return fmt.Sprintf("index %d of %v: got %v, want %v, error %.3g, bound %.3g", i, want.Shape, a[i],
				b[i], d, bound*top)
		}
	}
	return ""
}

// caseBound returns the largest difference allowed, relative to the largest value (at least 1). It is 0 except for
// resizing in floating point: bislerp magnifies the last bit of its angles, bicubic adds sixteen products.
func caseBound(in *pyjson.Object) float64 {
	switch method, _ := in.Get("upscale_method"); method {
	case "bislerp":
		return 1e-5
	case "bicubic":
		return 2e-6
	case "bilinear", "area":
		return 1e-6
	}
	return 0
}

// TestNodesEqualComfyUI compares every recorded call of ComfyUI's classes that needs no device with Runner.Exec.
func TestNodesEqualComfyUI(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	ran := map[string]int{}
	r := openRecord(t)
	for _, c := range r.cases() {
		switch vae, _ := c.in.Get("vae"); {
		case vae != nil && vae.(*pyjson.Object).At("vae") == "vae-kl": // for the next test
		case vae != nil:
			r.inpaintCase(run, c)
			ran[c.class]++
		default:
			bound := caseBound(c.in)
			if strings.HasPrefix(c.class, "Image") || c.class == "LatentBlend" { // these resize inside
				bound = max(bound, 2e-6)
			}
			r.compare(run, c, bound)
			ran[c.class]++
		}
	}
	if len(ran) < 38 {
		t.Errorf("the record has %d classes, want 38", len(ran))
	}
	t.Logf("calls by class: %v", ran)
}

// TestAutoencoderNodesEqualComfyUI compares the recorded calls with a real autoencoder: tiles, and both inpainting
// nodes from file to latent.
func TestAutoencoderNodesEqualComfyUI(t *testing.T) {
	if testing.Short() {
		t.Skip("runs convolutions; the long form does it")
	}
	root := t.TempDir()
	writeGolden(t, "vae-kl", filepath.Join(root, "vae", "kl.safetensors"))
	run, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps),
		Roots:  files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	r, ran := openRecord(t), 0
	r.vae = exec(t, run, "VAELoader", map[string]any{"vae_name": "kl.safetensors"})
	for _, c := range r.cases() {
		if vae, _ := c.in.Get("vae"); vae != nil && vae.(*pyjson.Object).At("vae") == "vae-kl" {
			ran++
			r.compare(run, c, 2e-5) // README.md of the goldens, section 2
		}
	}
	if ran != 5 {
		t.Errorf("ran %d calls, want 5", ran)
	}
}

// writeGolden writes a golden model as a checkpoint, without its config.
func writeGolden(t *testing.T, name, path string) {
	t.Helper()
	writeGoldenWith(t, name, path, nil)
}

func writeGoldenWith(t *testing.T, name, path string, meta map[string]string) {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Tensor
	for _, n := range set.Names() {
		s, _ := set.Get(n)
		entries = append(entries, safetensors.Tensor{
			Name: n, DType: engine.F32, Shape: s.Shape,
			Data: datafile.Of(s.Elements(0, s.Len())),
		})
	}
	writeTensors(t, path, meta, entries)
}

// recordedCall is one call of a class.
type recordedCall struct {
	name, class string
	in          *pyjson.Object
	want        []any
}

func (r record) cases() (out []recordedCall) {
	for i, raw := range r.metadata("cases").([]any) {
		c := raw.(*pyjson.Object)
		class, in := c.At("class").(string), c.At("inputs").(*pyjson.Object)
		out = append(out, recordedCall{
			fmt.Sprintf("case %d %s %s", i, class, pyjson.Dump(in)), class, in,
			c.At("outputs").([]any),
		})
	}
	return out
}

// exec runs a call through Runner.Exec. It returns nil after an error.
func (r record) exec(run *graph.Runner, c recordedCall) []any {
	inputs := map[string]any{}
	for _, k := range c.in.Keys() {
		inputs[k] = r.input(run, c.in.At(k))
	}
	out, err := run.Exec(r.t.Context(), graph.ExecRequest{Class: c.class, Inputs: inputs}, nil)
	if err != nil {
		r.t.Errorf("%s: %v", c.name, err)
		return nil
	}
	return out.Outputs
}

// compare runs a call and compares all outputs.
func (r record) compare(run *graph.Runner, c recordedCall, bound float64) {
	for k, got := range r.exec(run, c) {
		if d := r.differs(got, c.want[k], bound); d != "" {
			r.t.Errorf("%s: output %d: %s", c.name, k, d)
		}
	}
}

// inpaintCase compares the prepared pixels and masks. The recorded encoder returns the pixels that it gets.
func (r record) inpaintCase(run *graph.Runner, c recordedCall) {
	t, in := r.t, c.in
	if c.class == "InpaintModelConditioning" {
		out := r.exec(run, c)
		if out == nil {
			return
		}
		for k := range 2 { // the built-in encoder of pixel_space crops nothing
			for i, e := range c.want[k].([]any) {
				got := out[k].([]any)[i].([]any)
				c.want[k].([]any)[i] = without(e.(*pyjson.Object), "concat_latent_image")
				got[1] = without(got[1].(*pyjson.Object), "concat_latent_image")
			}
			if d := r.differs(out[k], c.want[k], 1e-6); d != "" {
				t.Errorf("%s: output %d: %s", c.name, k, d)
			}
		}
		latent, expected := out[2].(*pyjson.Object), pyjson.Clone(c.want[2]).(*pyjson.Object)
		expected = without(expected, "samples")
		latent = without(latent, "samples")
		if d := r.objectsDiffer(latent, expected, 1e-6); d != "" {
			t.Errorf("%s: latent: %s", c.name, d)
		}
		return
	}
	given := func(kind string, key string) any {
		v, err := value.ImportValue(kind, key, r.input(run, in.At(key)))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	im, mask := given("IMAGE", "pixels").(*picture.Image), given("MASK", "mask").(*picture.Mask)
	n, _ := in.At("vae").(*pyjson.Object).Get("vae")
	scale := int(n.(int64))
	sized, err := sizedMask(mask, im.Y, im.X)
	if err != nil {
		t.Fatal(err)
	}
	grey, noise, err := inpainted(im, sized, int(in.At("grow_mask_by").(int64)), scale)
	if err != nil {
		t.Fatal(err)
	}
	grey = grey.Cut(im.X%scale/2, im.Y%scale/2, im.X/scale*scale, im.Y/scale*scale)
	got := pyjson.NewObject("samples", array.New(grey.Data, grey.B, grey.Y, grey.X, grey.C), "noise_mask",
		array.New(noise.Data, noise.B, noise.Y, noise.X))
	if d := r.objectsDiffer(got, c.want[0].(*pyjson.Object), 0); d != "" {
		t.Errorf("%s: %s", c.name, d)
	}
}

// withoutChannel drops the channel dimension that noise masks have: [B, 1, Y, X] -> [B, Y, X].
func withoutChannel(v any) any {
	if t, ok := v.(*array.Tensor); ok && len(t.Shape) == 4 && t.Shape[1] == 1 {
		return &array.Tensor{DType: t.DType, Shape: []int{t.Shape[0], t.Shape[2], t.Shape[3]}, Data: t.Data}
	}
	return v
}
