package classes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"patchbay/models/tokenizer"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/tests/golden"
)

// TestQwenImage21FromFilesToPicture runs the official template for edits, with guidance so that both prompts count, on
// an empty latent of 4 channels.
func TestQwenImage21FromFilesToPicture(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another family; TestZImageFromFilesToPicture goes from files to a picture")
	}
	planned(t, `{
		"m": {"class_type": "UNETLoader", "inputs": {"unet_name": "qwen_image_2.1.safetensors", "weight_dtype": "default"}},
		"k": {"class_type": "QwenImage21Cache", "inputs": {"model": ["m", 0], "device": "cpu", "dtype": "int4"}},
		"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b.safetensors", "type": "krea2",
			"device": "default"}},
		"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_2.1_vae.safetensors"}},
		"i": {"class_type": "EmptyImage", "inputs": {"width": 48, "height": 80, "batch_size": 1, "color": 3368601}},
		"l": {"class_type": "EmptyLatentImage", "inputs": {"width": 80, "height": 112, "batch_size": 1}},
		"p": {"class_type": "TextEncodeQwenImage21", "inputs": {"prompt": %q, "negative_prompt": "", "clip": ["c", 0],
			"vae": ["v", 0], "resolution": 96, "images.image_1": ["i", 0]}},
		"s": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 3, "cfg": 4.0, "sampler_name": "euler",
			"scheduler": "simple", "denoise": 1.0, "model": ["k", 0], "positive": ["p", 0], "negative": ["p", 1],
			"latent_image": ["l", 0]}},
		"d": {"class_type": "VAEDecode", "inputs": {"samples": ["s", 0], "vae": ["v", 0]}},
		"o": {"class_type": "SaveImage", "inputs": {"images": ["d", 0], "filename_prefix": "q"}}}`)
}

// TestTextEncodeQwenImage21 checks the sizes of pictures, references and latents, and the rows and slots of the text,
// against counts of tokens and the rule of ComfyUI's node. Weights are those of Krea 2's small encoder, whose header of
// the user's turn has no states.
func TestTextEncodeQwenImage21(t *testing.T) {
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	if _, err := os.Stat(filepath.Join(dir, "qwen2.5", "vocab.json")); err != nil {
		t.Skipf("NOT RUN: %v\nset PATCHBAY_TEST_TOKENIZERS to the folder that holds qwen2.5", err)
	}
	roots := chatRoots(t, filepath.Join(dir, "qwen2.5"))
	var pictures []*picture.Image
	for i, c := range []struct{ y, x, channels int }{{40, 100, 4}, {64, 32, 3}} {
		pictures = append(pictures, &picture.Image{
			B: 1, Y: c.y, X: c.x, C: c.channels, Data: golden.Fill(fmt.Sprint("picture", i), c.y*c.x*c.channels, 1, 0.5),
		})
	}
	cat := All(graph.Class{
		Name: "Given", Fresh: true, Inputs: []graph.Input{graph.Int("of", "", 0, 0, 9, 1)}, Outputs: graph.Slots("IMAGE"),
		Run: func(c *graph.Call) ([]any, error) { return []any{pictures[c.Whole("of")]}, nil },
	}, graph.Class{
		Name: "Kept", Output: true, Inputs: []graph.Input{
			graph.Link("positive", "CONDITIONING", ""), graph.Link("negative", "CONDITIONING", ""),
			graph.Link("latent", "LATENT", ""),
		},
		Run: func(c *graph.Call) ([]any, error) {
			kept = [3]any{c.Conditioning("positive"), c.Conditioning("negative"), c.Latent("latent")}
			return nil, nil
		},
	})
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: roots, Catalogue: cat})
	check(t, err)
	defer runner.Close()
	run := func(inputs string) (positive, negative value.Cond, latent *value.Latent) {
		w := graphOf(t, `{
			"c": {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl_4b.safetensors", "type": "krea2"}},
			"v": {"class_type": "VAELoader", "inputs": {"vae_name": "qwen_image_2.1_vae.safetensors"}},
			"a": {"class_type": "Given", "inputs": {"of": 0}}, "b": {"class_type": "Given", "inputs": {"of": 1}},
			"p": {"class_type": "TextEncodeQwenImage21", "inputs": {"prompt": "a cat", "negative_prompt": "",
				"clip": ["c", 0]`+inputs+`}},
			"k": {"class_type": "Kept", "inputs": {"positive": ["p", 0], "negative": ["p", 1], "latent": ["p", 2]}}}`)
		if _, err := runner.Run(t.Context(), graph.Job{ID: "q", Workflow: w}, nil); err != nil {
			t.Fatal(err)
		}
		return kept[0].(value.Conditioning)[0], kept[1].(value.Conditioning)[0], kept[2].(*value.Latent)
	}
	words, _, err := tokenizer.Find("the test", filepath.Join(dir, "qwen2.5"))
	check(t, err)
	count := func(text string) int { return len(words.Encode(text)) }
	const end = "<|im_end|>\n<|im_start|>assistant\n"
	first, second := count("<image1><|vision_start|>"), count("<|vision_end|> <image2><|vision_start|>")
	whole := func(prompt string) int { return first + second + count("<|vision_end|>"+prompt+end) }

	// about 64 x 64 pixels: 101 x 40 -> 96 x 32, 91 x 45 -> 32 x 96
	p, n, l := run(`, "vae": ["v", 0], "resolution": 64, "images.image_2": ["b", 0], "images.image_1": ["a", 0]`)
	if want := []int{first, first + second}; !slices.Equal(p.Slots, want) || !slices.Equal(n.Slots, want) {
		t.Errorf("slots %v and %v, want %v", p.Slots, n.Slots, want)
	}
	if p.Context.Rows != whole("a cat") || n.Context.Rows != whole(" ") {
		t.Errorf("%d and %d rows, want %d and %d", p.Context.Rows, n.Context.Rows, whole("a cat"), whole(" "))
	}
	for i, want := range [][2]int{{2, 6}, {6, 2}} {
		for _, c := range []value.Cond{p, n} {
			if r := c.Latents[i]; len(c.Latents) != 2 || r.C != 64 || [2]int{r.Y, r.X} != want {
				t.Errorf("reference %d of %d is %d x %d, want %v", i, len(c.Latents), r.Y, r.X, want)
			}
		}
	}
	if s := l.Samples; s.B != 1 || s.C != 64 || s.Y != 2 || s.X != 6 || slices.Max(s.Data) != 0 {
		t.Errorf("the latent is [%d, %d, %d, %d], want zeros of the first reference's size", s.B, s.C, s.Y, s.X)
	}

	p, _, l = run(`, "resolution": 128, "images.image_3": ["a", 0]`) // 202 x 81 pixels -> 192 x 96, 18 rows
	if want := count("<image1><|vision_start|>") + 18 + count("<|vision_end|>a cat"+end); p.Slots != nil ||
		p.Latents != nil || p.Context.Rows != want || l.Samples.Y != 6 || l.Samples.X != 12 {
		t.Errorf("without a VAE: %d rows, want %d, slots %v, %d references, latent %d x %d", p.Context.Rows, want, p.Slots,
			len(p.Latents), l.Samples.Y, l.Samples.X)
	}
	p, _, l = run(`, "vae": ["v", 0], "resolution": 0`)
	if want := count("a cat" + end); p.Context.Rows != want || p.Latents != nil || l.Samples.Y != 64 || l.Samples.X != 64 {
		t.Errorf("without pictures: %d rows, want %d, latent %d x %d", p.Context.Rows, want, l.Samples.Y, l.Samples.X)
	}
	over := overWhite(&picture.Image{B: 1, Y: 1, X: 2, C: 4, Data: []float32{0.5, 0.25, 0, 0.5, 1, 0, 0.5, 0}})
	if want := []float32{0.75, 0.625, 0.5, 1, 1, 1}; !slices.Equal(over.Data, want) {
		t.Errorf("over white: %v, want %v", over.Data, want)
	}
}

// kept is what the last node of a workflow of TestTextEncodeQwenImage21 was given.
var kept [3]any
