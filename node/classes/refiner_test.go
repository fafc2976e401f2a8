package classes

import (
	"bytes"
	"context"
	"image"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// TestBaseAndRefinerRun runs the example of a base and a refiner with small checkpoints of both: with prompts of
// CLIPTextEncode, with those of CLIPTextEncodeSDXLRefiner that say what the network is told without them, which must
// give the same picture, and with another score and another size, which must not.
func TestBaseAndRefinerRun(t *testing.T) {
	root := t.TempDir()
	standInSDXL(t, filepath.Join(root, "checkpoints", "base.safetensors"))
	standInRefiner(t, filepath.Join(root, "checkpoints", "refiner.safetensors"))
	copyFile(t, "tokenizers/demo_clip.tokenizer.json", filepath.Join(root, "tokenizers", "clip.tokenizer.json"))
	example, err := os.ReadFile(filepath.Join("testdata", "examples", "base_and_refiner.json"))
	check(t, err)
	cat, eng := All(), engineOf(t, fastOps)
	run := func(score float64, height int64, encode bool) []byte {
		decoded, err := pyjson.Decode(example)
		check(t, err)
		api := decoded.(*pyjson.Object)
		in := func(id string) *pyjson.Object { return api.In(id).In("inputs") }
		in("5").Set("width", int64(96))
		in("5").Set("height", int64(64))
		for _, id := range []string{"6", "9"} {
			in(id).Set("steps", int64(6))
		}
		in("6").Set("end_at_step", int64(4))
		in("9").Set("start_at_step", int64(4))
		for id, score := range map[string]float64{"7": score, "8": 2.5} {
			if encode {
				api.In(id).Set("class_type", "CLIPTextEncodeSDXLRefiner")
				in(id).Set("ascore", score)
				in(id).Set("width", int64(96))
				in(id).Set("height", height)
			}
		}
		w, failure := graph.ParseWorkflow(api)
		if failure != nil {
			t.Fatal(failure)
		}
		roots := files.Roots{Models: []string{root}}
		runner, err := graph.NewRunner(graph.Config{Engine: eng, Roots: roots, Catalogue: cat})
		check(t, err)
		defer runner.Close()
		result, err := runner.Run(context.Background(), graph.Job{ID: "r", Workflow: w}, nil)
		check(t, err)
		if text := strings.Join(result.Warnings, "; "); len(result.Outputs) != 1 || strings.Contains(text, "of refiner.") {
			t.Fatalf("%d files, warnings %s", len(result.Outputs), text)
		}
		return pixelsOf(t, result.Outputs[0].Data)
	}
	plain := run(0, 0, false)
	for _, c := range []struct {
		score  float64
		height int64
		same   bool
	}{{6, 64, true}, {9, 64, false}, {6, 1024, false}} {
		if got := run(c.score, c.height, true); bytes.Equal(got, plain) != c.same {
			t.Errorf("score %v, height %d: the picture of CLIPTextEncode: %v, want %v", c.score, c.height, !c.same, c.same)
		}
	}
}

// pixelsOf returns the pixels of a PNG.
func pixelsOf(t *testing.T, file []byte) []byte {
	t.Helper()
	im, err := png.Decode(bytes.NewReader(file))
	check(t, err)
	out := image.NewNRGBA(im.Bounds())
	draw.Draw(out, out.Bounds(), im, im.Bounds().Min, draw.Src)
	return out.Pix
}

// standInRefiner writes a checkpoint as the release is one: the text encoder has OpenCLIP's names, and is the only one.
func standInRefiner(t *testing.T, path string) {
	p := parts{meta: map[string]string{}}
	p.add(t, "refiner-a", "model.diffusion_model.", widths{40: 80, 24 + 5*256: 80 + 5*256}, "config", "")
	p.add(t, "vae-kl", "first_stage_model.", nil, "vae.config", "")
	set, config, err := goldenweights.Set("sdxl-clip-g-a")
	check(t, err)
	p.meta["clip_g.config"] = regexp.MustCompile(`("num_hidden_layers": *)4`).ReplaceAllString(string(config), "${1}32")
	open, err := goldenweights.OpenCLIP(set, "conditioner.embedders.0.model.", 32)
	check(t, err)
	for name, s := range open {
		p.tensors = append(p.tensors, safetensors.Tensor{
			Name: name, DType: s.DType, Shape: s.Shape, Data: datafile.Of(s.Data),
		})
	}
	writeTensors(t, path, p.meta, p.tensors)
}
