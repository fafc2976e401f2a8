package value

import (
	"math"
	"slices"
	"testing"

	"patchbay/models/dit"
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
		b, err := m.branch(GuiderBranch{"positive", Conditioning{{
			Entry: dit.Entry{Context: dit.Array{Rows: 1, Cols: n, Data: make([]float32, n)}},
			Area:  request.Area{H: 8, W: 8}, Pixels: c.pixels,
		}}}, latent, nil, nil)
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
