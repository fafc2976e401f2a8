package classes

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/parallel"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// upscaleRunner returns a runner with the recorded upscale models in its folders and an engine with the given memory in
// bytes. 0 means no limit.
func upscaleRunner(t *testing.T, memory int64) *graph.Runner {
	t.Helper()
	root := t.TempDir()
	for _, name := range []string{"old-x4", "new-x2", "compact-x2", "compact-x4"} {
		set, err := goldenweights.Upscaler(name)
		check(t, err)
		writeModel(t, filepath.Join(root, "upscale_models", name+".safetensors"), set, "", strings.Clone)
	}
	writeGolden(t, "vae-kl", filepath.Join(root, "upscale_models/vae.safetensors"))
	for name, from := range map[string]string{
		"compact-x2": "testdata/compact-x2.pth", "class": "../../engine/torchfile/testdata/class.pth",
	} {
		data, err := os.ReadFile(from)
		check(t, err)
		scratch.Write(t, filepath.Join(root, "upscale_models", name+".pth"), data)
		scratch.Write(t, filepath.Join(root, "vae", name+".pth"), data)
	}
	e, err := parallel.NewPool(parallel.Config{NewOps: fastOps, MemoryBytes: memory})
	check(t, err)
	t.Cleanup(func() { e.Close() })
	runner, err := graph.NewRunner(graph.Config{
		Engine: e, Roots: files.Roots{Models: []string{root}}, Catalogue: All(),
	})
	check(t, err)
	t.Cleanup(runner.Close)
	return runner
}

// TestUpscalingThroughNodes compares images with ComfyUI's. As in ComfyUI, tiles shrink if memory is too small for
// tiles of 512 and 256 pixels. If it is too small for those too, the error says so.
func TestUpscalingThroughNodes(t *testing.T) {
	var recorded golden.Pictures
	check(t, golden.JSON("pictures.json", &recorded))
	runners, ran := map[int]*graph.Runner{512: upscaleRunner(t, 0), 128: upscaleRunner(t, 10<<20)}, 0
	for _, c := range recorded.Upscaled {
		runner, name := runners[c.Tile], c.Model+".safetensors"
		if !slices.Contains([]string{"old-x4", "new-x2", "compact-x2", "compact-x4"}, c.Model) ||
			c.Tile == 128 && c.Model != "compact-x4" {
			continue
		}
		ran++
		b, y, x := c.Shape[0], c.Shape[1], c.Shape[2]
		model := exec(t, runner, "UpscaleModelLoader", map[string]any{"model_name": name})
		out, err := runner.Exec(t.Context(), graph.ExecRequest{Class: "ImageUpscaleWithModel", Inputs: map[string]any{
			"upscale_model": model, "image": array.New(golden.Picture(c.Picture, b, y, x), b, y, x, 3),
		}}, nil)
		check(t, err)
		got := out.Outputs[0].(*array.Tensor)
		v := values(t, got)
		if !slices.Equal(got.Shape, c.Size[:]) {
			t.Errorf("%s: a picture %v, want %v", name, got.Shape, c.Size)
			continue
		}
		for i, want := range c.Values {
			if d := math.Abs(float64(v[i*c.Step]) - float64(want)); !(d <= 1e-5) {
				t.Errorf("%s, tiles of %d: value %d is %v, want %v", name, c.Tile, i*c.Step, v[i*c.Step], want)
				break
			}
		}
	}
	if ran < 7 {
		t.Errorf("%d pictures compared, want 7", ran)
	}
	equalPictures(t, runners[512], "compact-x2.safetensors", "compact-x2.pth")
	small := upscaleRunner(t, 1<<20)
	_, err := small.Exec(t.Context(), graph.ExecRequest{Class: "ImageUpscaleWithModel", Inputs: map[string]any{
		"upscale_model": exec(t, small, "UpscaleModelLoader", map[string]any{"model_name": "compact-x4.safetensors"}),
		"image":         zeros(1, 200, 200, 3),
	}}, nil)
	var fail *fault.Error
	if !errors.As(err, &fail) || fail.Code != fault.OutOfMemory || !strings.Contains(fail.Text, "MB") {
		t.Errorf("1 MiB of memory: got %v", err)
	}
}

// equalPictures checks that all files give the same image.
func equalPictures(t *testing.T, runner *graph.Runner, files ...string) {
	t.Helper()
	var all [][]float32
	for _, name := range files {
		all = append(all, values(t, exec(t, runner, "ImageUpscaleWithModel", map[string]any{
			"upscale_model": exec(t, runner, "UpscaleModelLoader", map[string]any{"model_name": name}),
			"image":         array.New(golden.Picture("shapes", 1, 20, 30), 1, 20, 30, 3),
		})))
	}
	if len(all[0]) == 0 || !slices.Equal(all[0], all[1]) {
		t.Errorf("%v give other pictures", files)
	}
}

// TestPicturesThatAreNotTaken checks that errors of the image nodes say what is wrong and what is allowed.
func TestPicturesThatAreNotTaken(t *testing.T) {
	runner := upscaleRunner(t, 0)
	model := exec(t, runner, "UpscaleModelLoader", map[string]any{"model_name": "new-x2.safetensors"})
	type in = map[string]any
	for _, c := range []struct {
		class, field, code, want string
		in                       in
	}{
		{
			"UpscaleModelLoader", "model_name", fault.WrongFamily, "holds no upscale model: it looks like a VAE",
			in{"model_name": "vae.safetensors"},
		},
		{
			"VAELoader", "vae_name", "value_not_in_list", "never opened; get or make the safetensors",
			in{"vae_name": "compact-x2.pth"},
		},
		{
			"UpscaleModelLoader", "model_name", fault.BadCheckpoint, `names "__builtin__.complex"`,
			in{"model_name": "class.pth"},
		},
		{
			"ImageUpscaleWithModel", "image", fault.BadInput, "SplitImageWithAlpha",
			in{"upscale_model": model, "image": zeros(1, 4, 4, 4)},
		},
		{
			"Canny", "image", fault.BadInput, "SplitImageWithAlpha",
			in{"image": zeros(1, 4, 4, 4), "low_threshold": 0.4, "high_threshold": 0.8},
		},
		{
			"Canny", "image", fault.BadInput, "at least 3 x 3",
			in{"image": zeros(1, 2, 9, 3), "low_threshold": 0.4, "high_threshold": 0.8},
		},
		{
			"Canny", "low_threshold", fault.BadInput, "0.9 is above high_threshold 0.8",
			in{"image": zeros(1, 9, 9, 3), "low_threshold": 0.9, "high_threshold": 0.8},
		},
	} {
		_, err := runner.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.in}, nil)
		var fail *fault.Error
		if !errors.As(err, &fail) || fail.Code != c.code || fail.Field != c.field || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got %v, want %s at %s with %q", c.class, c.in, err, c.code, c.field, c.want)
		}
	}
}

// TestOtherPicklesAreNotOpened checks that pickled files are opened only as upscale models.
func TestOtherPicklesAreNotOpened(t *testing.T) {
	for _, kind := range files.Kinds() {
		err := files.ReadHeader(kind, "testdata/compact-x2.pth", false,
			func(files.Header) error { return nil })
		if refused := err != nil && strings.Contains(err.Error(), "never opened"); refused != (kind != files.KindUpscale) {
			t.Errorf("%s: got %v", kind, err)
		}
	}
}

// TestInstructionsStandBeforePrompts checks that CLIPTextEncodeLumina2 encodes the same text as ComfyUI's.
func TestInstructionsStandBeforePrompts(t *testing.T) {
	var recorded golden.Pictures
	check(t, golden.JSON("pictures.json", &recorded))
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: chatRoots(t, "../../models/tokenizer/testdata/tiny_qwen"), Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	clip := exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "gemma_2_2b.safetensors", "type": "lumina2"})
	var all [][]float32
	for _, p := range recorded.Prompts {
		states := func(class string, in map[string]any) []float32 {
			in["clip"] = clip
			return values(t, exec(t, runner, class, in).([]any)[0].([]any)[0])
		}
		got := states("CLIPTextEncodeLumina2", map[string]any{"system_prompt": p.System, "user_prompt": p.User})
		if !slices.Equal(got, states("CLIPTextEncode", map[string]any{"text": p.Text})) {
			t.Errorf("%s: other states than those of %q", p.System, p.Text)
		}
		all = append(all, got)
	}
	if len(all) != 2 || slices.Equal(all[0], all[1]) {
		t.Errorf("%d prompts with the same states, want 2 of their own", len(all))
	}
}
