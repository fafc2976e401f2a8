package classes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// TestH3Canvas compares the sizes of reference videos with recorded ones.
func TestH3Canvas(t *testing.T) {
	var recorded struct {
		Canvas map[string][2]int `json:"adapt_canvas"`
	}
	check(t, golden.JSON("h3/detection.json", &recorded))
	for size, want := range recorded.Canvas {
		var x, y int
		_, err := fmt.Sscanf(size, "%dx%d", &x, &y)
		check(t, err)
		if x*y < want[0]*want[1] {
			x, y = 8*x, 8*y // the same shape, and larger than the canvas
		}
		if cx, cy := h3Canvas(x, y); cx != want[0] || cy != want[1] {
			t.Errorf("%s: %d x %d, want %v", size, cx, cy, want)
		}
	}
	if x, y := h3Canvas(100, 40); x != 96 || y != 32 {
		t.Errorf("a video smaller than the canvas becomes %d x %d, want 96 x 32", x, y)
	}
	for _, c := range []struct {
		x, y  int
		match bool
		want  [2]int
	}{
		{100, 40, true, [2]int{96, 32}},
		{2000, 1000, true, [2]int{96, 64}},
		{2000, 1000, false, [2]int{1984, 992}},
		{8192, 4096, false, [2]int{4096, 2048}},
	} {
		if x, y := h3ReferenceSize(&picture.Image{X: c.x, Y: c.y}, c.match, 96, 64); [2]int{x, y} != c.want {
			t.Errorf("%d x %d, match %v: %d x %d, want %v", c.x, c.y, c.match, x, y, c.want)
		}
	}
}

// TestH3Guides runs the nodes that make conditionings on small files: rows of words and of pictures are counted, and
// guides are compared with what the nodes for scaling and encoding make of the pictures and sounds.
func TestH3Guides(t *testing.T) {
	if testing.Short() {
		t.Skip("long: TestH3Canvas, TestH3GuideOrder and TestIntroduced have the rules")
	}
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	dir = filepath.Join(dir, "qwen2.5")
	if _, err := os.Stat(filepath.Join(dir, "vocab.json")); err != nil {
		t.Skipf("NOT RUN: %v\nset PATCHBAY_TEST_TOKENIZERS to the folder that holds qwen2.5", err)
	}
	root := t.TempDir()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	check(t, err)
	for _, path := range found {
		data, err := os.ReadFile(path)
		check(t, err)
		scratch.Write(t, filepath.Join(root, "tokenizers/qwen3", filepath.Base(path)), data)
	}
	set, _, err := goldenweights.Set("h3te-a")
	check(t, err)
	writeModel(t, filepath.Join(root, "text_encoders/h3te-a.safetensors"), set,
		`{"vision": {"deepstack_visual_indexes": [0, 2, 3]}}`, func(n string) string { return n })
	for _, m := range []string{"h3vae-a", "h3audio-a"} {
		writeGoldenModel(t, m, "", filepath.Join(root, "vae", m+".safetensors"))
	}
	engine := engineOf(t, fastOps)
	clip, vae, ear := loaded{"CLIPLoader", "clip_name", "h3te-a"}, loaded{"VAELoader", "vae_name", "h3vae-a"},
		loaded{"VAELoader", "vae_name", "h3audio-a"}
	image := func(name string, b, y, x int) *picture.Image {
		return &picture.Image{B: b, Y: y, X: x, C: 3, Data: golden.Fill("input:h3/"+name, b*y*x*3, 1, 0.5)}
	}
	wave := func(name string, n int) *value.Audio {
		return &value.Audio{B: 1, C: 2, N: n, Rate: 32000, Data: golden.Fill("input:h3/"+name, 2*n, 1, 0)}
	}
	type in = map[string]any
	run := func(class string, inputs in) (any, *value.Latent, error) {
		t.Helper()
		return runH3Node(t, engine, root, class, inputs)
	}
	conditioned := func(class string, inputs in) (value.Cond, *value.Latent) {
		t.Helper()
		out, latent, err := run(class, inputs)
		if err != nil {
			t.Fatalf("%s: %v", class, err)
		}
		return out.(value.Conditioning)[0], latent
	}
	vocabulary, _, err := tokenizer.Find("the test", dir)
	check(t, err)
	words := func(texts ...string) (n int) {
		for _, text := range texts {
			n += len(vocabulary.Encode(text))
		}
		return n
	}
	same := func(what string, g value.Guide, want dit.Condition, of request.Latent) {
		t.Helper()
		if g.Condition != want || g.Latent.Y != of.Y || g.Latent.X != of.X || !slices.Equal(g.Latent.Data, of.Data) {
			t.Errorf("%s: %+v of %v, want %+v of %v, or values differ", what, g.Condition, g.Latent.Shape(), want, of.Shape())
		}
	}
	encodedBy := func(im *picture.Image, x, y int, crop string) request.Latent {
		t.Helper()
		small, err := resizedImage(im, x, y, "lanczos", crop, "image")
		check(t, err)
		_, out, err := run("VAEEncode", in{"pixels": small, "vae": vae})
		check(t, err)
		return out.Samples
	}
	heard := func(a *value.Audio) request.Latent {
		t.Helper()
		_, out, err := run("VAEEncodeAudio", in{"audio": a, "vae": ear})
		check(t, err)
		return out.Samples
	}
	const prompt = "a blue star and <Picture 1>"
	sizes := func(more in) in {
		out := in{"clip": clip, "vae": vae, "prompt": prompt, "width": int64(96), "height": int64(64), "length": int64(6)}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	first, last := image("first", 1, 40, 100), image("last", 2, 64, 40)

	e, l := conditioned("MiniMaxH3ImageToVideo", sizes(nil))
	if e.Context.Rows != words(prompt) || len(e.Guides)+len(e.Pictures) > 0 || l.Samples.T != 7 ||
		l.Samples.Sound.X != 37 {
		t.Errorf("without pictures: %d rows, %d guides, a latent of %v", e.Context.Rows, len(e.Guides), l.Samples.Shape())
	}
	e, _ = conditioned("MiniMaxH3ImageToVideo", sizes(in{"first_frame": first, "last_frame": last}))
	one, two := words("<Picture 1>: "), words("<Picture 2>: ")
	const seen = 2 + 2*3 // units of 32 pixels, and the tokens around them
	want := []dit.Range{{Start: one, End: one + seen}, {Start: one + seen + two, End: one + two + 2*seen}}
	if !slices.Equal(e.Pictures, want) || e.Context.Rows != want[1].End+words(prompt) {
		t.Errorf("rows of pictures %v of %d, want %v of %d", e.Pictures, e.Context.Rows, want, want[1].End+words(prompt))
	}
	if len(e.Guides) != 2 {
		t.Fatalf("%d guides, want 2", len(e.Guides))
	}
	same("first", e.Guides[0], dit.Condition{Frame: 1, T: 1}, encodedBy(first, 96, 64, "disabled"))
	same("last", e.Guides[1], dit.Condition{Frame: 22, T: 1}, encodedBy(last.Items(0, 1), 96, 64, "center"))

	e, _ = conditioned("MiniMaxH3AddGuide", in{
		"positive": value.Conditioning{e}, "vae": vae, "audio_vae": ear, "latent": l, "image": image("clip", 7, 64, 96),
		"audio": wave("long", 40*800), "frame_idx": int64(-6),
	})
	if len(e.Guides) != 4 {
		t.Fatalf("%d guides, want 4", len(e.Guides))
	}
	same("clip", e.Guides[2], dit.Condition{Frame: 17, T: 2},
		encodedBy(image("clip", 7, 64, 96).Items(0, 5), 96, 64, "center"))
	same("its sound", e.Guides[3], dit.Condition{Frame: 17, Sound: true}, begun(heard(wave("long", 40*800)), 10))

	video := image("video", 25, 40, 40)
	e, _ = conditioned("MiniMaxH3ReferenceToVideo", sizes(in{
		"audio_vae": ear, "length": int64(22), "ref_image_size": "match", "ref_images.ref_image_0": first,
		"ref_videos.ref_video_1": video, "ref_video_audios.ref_video_audio_1": wave("track", 7*800+5),
		"ref_audios.ref_audio_0": wave("voice", 4*800),
	}))
	texts := words("<Picture 1>: ", "<Audio 1>: ", "<Video 1>: ", "<0.2 seconds>", "<Audio 2>: ", prompt)
	pictures := 0
	for _, p := range e.Pictures {
		pictures += p.Len()
	}
	if len(e.Pictures) != 2 || e.Context.Rows != texts+pictures || e.Pictures[0].Start != one {
		t.Errorf("rows of pictures %v of %d, want two of them beside %d words", e.Pictures, e.Context.Rows, texts)
	}
	if len(e.Guides) != 4 {
		t.Fatalf("%d guides, want 4", len(e.Guides))
	}
	same("picture", e.Guides[0], dit.Condition{T: 1}, encodedBy(first, 96, 32, "disabled"))
	same("track", e.Guides[1], dit.Condition{Sound: true, Joined: true}, heard(wave("track", 7*800+5)))
	same("video", e.Guides[2], dit.Condition{T: 7}, encodedBy(video.Items(0, 22), 32, 32, "disabled"))
	same("voice", e.Guides[3], dit.Condition{Sound: true}, heard(wave("voice", 4*800)))

	for want, inputs := range map[string]in{
		"ref_videos.ref_video_0: has 4 pictures": sizes(in{
			"audio_vae": ear, "ref_image_size": "max", "ref_videos.ref_video_0": image("short", 4, 8, 8),
		}),
		"ref_audios.ref_audio_1: are less than the": sizes(in{
			"audio_vae": ear, "ref_image_size": "max", "ref_audios.ref_audio_1": &value.Audio{
				B: 1, C: 1, N: 900, Rate: 44100, Data: make([]float32, 900),
			},
		}),
		"vae: h3audio-a.safetensors makes latents": sizes(in{
			"audio_vae": ear, "vae": ear, "ref_image_size": "max", "ref_images.ref_image_0": first,
		}),
	} {
		_, _, err := run("MiniMaxH3ReferenceToVideo", inputs)
		text, failure := json.Marshal(err)
		check(t, failure)
		field, of, _ := strings.Cut(want, ": ")
		if err == nil || !strings.Contains(string(text), field) || !strings.Contains(string(text), of) {
			t.Errorf("got %s, want an error with %q", text, want)
		}
	}
}

// loaded is a value that a loader makes of a file.
type loaded struct{ class, field, file string }

// runH3Node runs a node with values of any type and returns its outputs: the one that is no latent, and the latent.
func runH3Node(t *testing.T, engine *parallel.Pool, root, class string, inputs map[string]any,
) (other any, latent *value.Latent, err error) {
	t.Helper()
	g, values := newGraph(), map[string]given{}
	var list []any
	for name, v := range inputs {
		kind := ""
		switch v := v.(type) {
		case *picture.Image:
			kind = "IMAGE"
		case *value.Audio:
			kind = "AUDIO"
		case value.Conditioning:
			kind = "CONDITIONING"
		case *value.Latent:
			kind = "LATENT"
		case loaded:
			more := []any{v.field, v.file + ".safetensors"}
			if v.class == "CLIPLoader" {
				more = append(more, "type", "minimax")
			}
			list = append(list, name, g.add(v.class, more...))
			continue
		default:
			list = append(list, name, v)
			continue
		}
		as := strings.ReplaceAll(name, ".", "_")
		values[as] = given{kind, v}
		list = append(list, name, g.add(as))
	}
	node := g.add(class, list...)
	sinks := map[string][]any{}
	all := All().Class(class)
	for i, slot := range all.Outputs {
		sinks[slot.Type] = []any{node[0], int64(i)}
	}
	var kept []graph.Class
	for kind, link := range sinks {
		kept = append(kept, graph.Class{
			Name: "Keep" + kind, Output: true, Inputs: []graph.Input{graph.Bare("v", kind)},
			Run: func(c *graph.Call) ([]any, error) {
				if l, ok := c.Raw("v").(*value.Latent); ok {
					latent = l
				} else {
					other = c.Raw("v")
				}
				return nil, nil
			},
		})
		g.add("Keep"+kind, "v", link)
	}
	run, err := graph.NewRunner(graph.Config{
		Engine: engine, Roots: files.Roots{Models: []string{root}}, Catalogue: All(append(giving(values, nil), kept...)...),
	})
	check(t, err)
	defer run.Close()
	_, err = run.Run(t.Context(), graph.Job{ID: "h", Workflow: g.workflow(t)}, nil)
	return other, latent, err
}
