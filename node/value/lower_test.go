package value

import (
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/sampling"
	"patchbay/models/tiny"
	"patchbay/node/picture"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// TestTellsTheWholePicture checks that PixArt-Alpha and HunyuanDiT get the size of the whole image even if an entry
// covers a part of it, or the size set by CLIPTextEncodePixArtAlpha.
func TestTellsTheWholePicture(t *testing.T) {
	latent := request.NewLatent(1, 4, 16, 24)
	for _, c := range []struct {
		family string
		pixels [2]int
		want   []float32
	}{
		{"hunyuandit", [2]int{}, []float32{128, 192, 128, 192, 0, 0}},
		{"hunyuandit", [2]int{512, 256}, []float32{512, 256, 512, 256, 0, 0}},
		{"pixart", [2]int{}, []float32{128, 192, 128. / 192}},
		{"pixart", [2]int{512, 256}, []float32{512, 256, 2}},
		{"flux", [2]int{512, 256}, nil},
	} {
		m := tinyModel(t, c.family)
		n := m.Spec.ContextDim
		var given *family.Sizes
		if c.pixels != [2]int{} {
			s := family.Uncropped(c.pixels[0], c.pixels[1])
			given = &s
		}
		b, err := m.branch(GuiderBranch{"positive", Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}},
			Area:  request.Area{H: 8, W: 8}, Sizes: given,
		}}}, latent, &Latent{}, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Entries[0].Size; !slices.Equal(got, c.want) {
			t.Errorf("%s told %v: size %v, want %v", c.family, c.pixels, got, c.want)
		}
	}
}

// tinyModel describes the tiny model of a family.
func tinyModel(t *testing.T, family string) *Model {
	t.Helper()
	d, err := tiny.Describe(family)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewModel(family, family, d, 0, request.LoadFunc(d.Load))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTellsTheScore checks that the refiner is told the score of an entry, else that of a prompt of its branch.
func TestTellsTheScore(t *testing.T) {
	m, given := tinyModel(t, "sdxl_refiner"), 0.
	entry := dit.Entry{Context: dit.Array{Rows: 1, Cols: 48, Data: make([]float32, 48)}}
	for branch, c := range map[string]struct {
		score *float64
		want  float32
	}{"positive": {nil, 6}, "negative": {nil, 2.5}, "middle": {nil, 6}, "positive of 0": {&given, 0}} {
		name, _, _ := strings.Cut(branch, " ")
		list := Conditioning{{Entry: entry, Score: c.score}}
		b, err := m.branch(GuiderBranch{name, list}, request.NewLatent(1, 4, 16, 24), &Latent{}, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := b.Entries[0].Size, []float32{128, 192, 0, 0, c.want}; !slices.Equal(got, want) {
			t.Errorf("%s: told %v, want %v", branch, got, want)
		}
	}
}

// TestEmptyLatentsAreResized checks that an empty latent made for a size in pixels is converted to the model's shape
// for that size. The latent of an encoded image stays as it is and must have the model's channels.
func TestEmptyLatentsAreResized(t *testing.T) {
	m, picture := tinyModel(t, "flux2"), request.NewLatent(1, 128, 4, 6)
	picture.Data[0] = 1
	other := request.NewLatent(1, 16, 4, 6)
	other.Data[0] = 1
	for name, c := range map[string]struct {
		l    Latent
		want [4]int // all 0: refused
	}{
		"of FLUX.2":            {Latent{Samples: request.NewLatent(2, 128, 4, 6), Scale: 16}, [4]int{2, 128, 4, 6}},
		"of 4 channels":        {Latent{Samples: request.NewLatent(1, 4, 8, 13), Scale: 8}, [4]int{1, 128, 4, 6}},
		"nobody said for what": {Latent{Samples: request.NewLatent(1, 4, 8, 12)}, [4]int{1, 128, 8, 12}},
		"a picture":            {Latent{Samples: picture, Scale: 8}, [4]int{1, 128, 4, 6}},
		"another's picture":    {Latent{Samples: other}, [4]int{}},
	} {
		got, err := m.widen(&c.l)
		shape, refused := [4]int{got.B, got.C, got.Y, got.X}, c.want == [4]int{}
		if (err != nil) != refused || err == nil && shape != c.want {
			t.Errorf("%s: got %v, %v; want %v", name, shape, err, c.want)
		}
	}
}

// TestShortTextsAreFilled checks that texts for FLUX.2 are padded with leading zeros to 512 rows, and that longer texts
// and those of other families are not.
func TestShortTextsAreFilled(t *testing.T) {
	m, flux := tinyModel(t, "flux2"), tinyModel(t, "flux")
	text := dit.Array{Rows: 2, Cols: 3, Data: []float32{1, 2, 3, 4, 5, 6}}
	got := m.filled(text)
	front := 510 * 3
	if got.Rows != 512 || len(got.Data) != front+6 || !slices.Equal(got.Data[front:], text.Data) ||
		!allZero(got.Data[:front]) {
		t.Errorf("got %d rows that end with %v, want 512 with %v", got.Rows, got.Data[len(got.Data)-6:], text.Data)
	}
	long := dit.Array{Rows: 600, Cols: 1, Data: make([]float32, 600)}
	if got := m.filled(long); got.Rows != 600 {
		t.Errorf("a text of 600 rows has %d now", got.Rows)
	}
	if got := flux.filled(text); got.Rows != 2 {
		t.Errorf("FLUX.1's text of 2 rows has %d now", got.Rows)
	}
}

// TestLowerLeavesItsInputs checks that Lower converts latents to model space in memory of its own: values that travel
// along links are read by other nodes too. The numbers are FLUX's: model = (vae - 0.1159) * 0.3611.
func TestLowerLeavesItsInputs(t *testing.T) {
	filled := func(b, c, y, x int, first float32) request.Latent {
		l := request.NewLatent(b, c, y, x)
		for i := range l.Data {
			l.Data[i] = first + float32(i%97)/16
		}
		return l
	}
	converted := func(what string, got, vae []float32) {
		t.Helper()
		if len(got) != len(vae) {
			t.Errorf("%s: %d values, want %d", what, len(got), len(vae))
			return
		}
		for i, v := range vae {
			if want := (float64(v) - 0.1159) * 0.3611; !(math.Abs(float64(got[i])-want) < 1e-6) {
				t.Errorf("%s: value %d is %v in model space, want %v for %v", what, i, got[i], want, v)
				return
			}
		}
	}
	for _, name := range []string{"kontext-a", "fill-a"} {
		m := tinyModel(t, name)
		start, image := filled(1, 16, 4, 6, 1), filled(1, 16, 4, 6, 2)
		references := []request.Latent{filled(1, 16, 4, 6, 3), filled(1, 16, 2, 4, 4)}
		mask := &picture.Mask{B: 1, Y: 4, X: 6, Data: slices.Repeat([]float32{0.5}, 24)}
		n := m.Spec.ContextDim
		c := Cond{
			Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}}, ConcatImage: image,
			Mask: mask, MaskStrength: 1,
		}
		if m.Spec.References {
			c.Latents = references
		}
		all := [][]float32{start.Data, image.Data, references[0].Data, references[1].Data, mask.Data}
		var before [][]float32
		for _, v := range all {
			before = append(before, slices.Clone(v))
		}
		for range 2 { // a second run gets the same values
			req, err := Lower(Lowering{
				Guider: Guider{Model: m, Branches: []GuiderBranch{{"positive", Conditioning{c}}}}, Noise: Noise{Seed: 3},
				Sampler: Sampler{Name: "euler"}, Sigmas: []float32{1, 0.5, 0}, Latent: &Latent{Samples: start, NoiseMask: mask},
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range all {
				if !slices.Equal(v, before[i]) {
					t.Errorf("%s: Lower has changed input %d of its caller", name, i)
				}
			}
			e := req.Branches[0].Entries[0]
			converted(name+": latent", req.Latent.Data, before[0])
			if m.Spec.Concat > 0 {
				converted(name+": concat_latent_image", e.Concat.Data[:len(image.Data)], before[1])
			}
			if len(e.References) != len(c.Latents) {
				t.Fatalf("%s: %d references, want %d", name, len(e.References), len(c.Latents))
			}
			for i, r := range e.References {
				converted(name+": reference", r.Data, before[2+i])
			}
		}
	}
}

// TestMasksOfEntriesKeepTheirBatch checks that every picture of a batch gets the mask of its number. As in ComfyUI
// (comfy/samplers.py, get_area_and_mult) masks beyond the batch are dropped, and fewer masks are repeated where they
// are used.
func TestMasksOfEntriesKeepTheirBatch(t *testing.T) {
	m := tinyModel(t, "flux")
	n := m.Spec.ContextDim
	for _, c := range []struct{ masks, pictures, want int }{{3, 3, 3}, {3, 2, 2}, {2, 3, 2}, {1, 3, 1}, {3, 1, 1}} {
		mask := &picture.Mask{B: c.masks, Y: 4, X: 6}
		for i := range c.masks {
			mask.Data = append(mask.Data, slices.Repeat([]float32{float32(i+1) / 8}, 24)...)
		}
		b, err := m.branch(GuiderBranch{"positive", Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}}, Mask: mask, MaskStrength: 1,
		}}}, request.NewLatent(c.pictures, 16, 4, 6), &Latent{}, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Entries[0].Mask; got.B != c.want || !slices.Equal(got.Data, mask.Data[:24*c.want]) {
			t.Errorf("%d masks for %d pictures: got %d, want the first %d", c.masks, c.pictures, got.B, c.want)
		}
	}
}

// TestNoiseOfSamplersContinuesAfterBatchIndex checks how many numbers count as drawn before a sampler's own noise, when
// that continues the generator. ComfyUI (comfy/sample.py, prepare_noise) draws a batch at once, but with a batch_index
// one picture after the other up to the largest index, the last one included.
func TestNoiseOfSamplersContinuesAfterBatchIndex(t *testing.T) {
	const seed, item = 11, 16 * 4 * 6
	m := tinyModel(t, "flux")
	n := m.Spec.ContextDim
	for _, c := range []struct {
		index []int
		want  []int // draws
	}{
		{nil, []int{2 * item}},
		{[]int{0, 1}, []int{item, item}},
		{[]int{3, 1}, []int{item, item, item, item}},
		{[]int{2, 2}, []int{item, item, item}},
	} {
		req, err := Lower(Lowering{
			Guider: Guider{Model: m, Branches: []GuiderBranch{{"positive", Conditioning{{
				Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}},
			}}}}},
			Noise: Noise{Seed: seed}, Sampler: Sampler{Name: "euler"}, Sigmas: []float32{1, 0},
			Latent: &Latent{Samples: request.NewLatent(2, 16, 4, 6), BatchIndex: c.index},
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(req.NoiseDraws, c.want) {
			t.Errorf("batch_index %v: draws of %v numbers, want %v", c.index, req.NoiseDraws, c.want)
		}
		g, drawn := sampling.NewGenerator(seed), [][]float32(nil)
		for _, size := range c.want {
			drawn = append(drawn, g.Randn(size))
		}
		want := drawn[0]
		if c.index != nil {
			want = slices.Concat(drawn[c.index[0]], drawn[c.index[1]])
		}
		if !slices.Equal(req.Noise.Data, want) {
			t.Errorf("batch_index %v: the noise is not made of these draws", c.index)
		}
	}
}

// TestMasksOfFrames compares masks of Qwen-Image and Krea 2, whose latents have an axis of frames, with those of
// ComfyUI 0.33.0, which reads the masks of a batch as frames of one and scales them to the one frame there is.
func TestMasksOfFrames(t *testing.T) {
	var all struct {
		Cases []struct {
			Masks, Latent []int
			Values        []float32 `json:"of_every_item_and_channel"`
		}
	}
	if err := golden.JSON("modern33/frame_masks.json", &all); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"qwenimage", "krea2"} {
		m := tinyModel(t, family)
		for _, c := range all.Cases {
			n, y, x := c.Masks[0], c.Masks[1], c.Masks[2]
			mask := &picture.Mask{B: n, Y: y, X: x, Data: golden.Fill("input:masks", n*y*x, 1, 0.5)}
			b, rows, columns := c.Latent[0], c.Latent[3], c.Latent[4]
			req, err := Lower(Lowering{
				Guider: Guider{Model: m}, Noise: Noise{None: true}, Sampler: Sampler{Name: "euler"}, Sigmas: Sigmas{1, 0},
				Latent: &Latent{Samples: request.NewLatent(b, 16, rows, columns), NoiseMask: mask},
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, got := range req.Mask.Data {
				if want := c.Values[i%len(c.Values)]; !(math.Abs(float64(got-want)) <= 1e-6) {
					t.Errorf("%s, masks %v: value %d is %v, want %v", family, c.Masks, i, got, want)
					break
				}
			}
			if len(req.Mask.Data) != b*len(c.Values) {
				t.Errorf("%s, masks %v: %d values, want %d for each of %d items", family, c.Masks, len(req.Mask.Data),
					len(c.Values), b)
			}
		}
	}
}
