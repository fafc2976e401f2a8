package value

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/array"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/parallel/request"
)

// rows returns an array of 0, 0.5, 1 ...
func rows(n, cols int) dit.Array {
	a := dit.Array{Rows: n, Cols: cols, Data: make([]float32, n*cols)}
	for i := range a.Data {
		a.Data[i] = float32(i) / 2
	}
	return a
}

func exported(t *testing.T, v any) any {
	t.Helper()
	out, travels := Export(v)
	if !travels {
		t.Fatalf("%T does not travel", v)
	}
	return out
}

func TestValuesTravel(t *testing.T) {
	g := float32(2.5)
	list := Conditioning{
		{
			Entry: dit.Entry{Context: rows(2, 3), Pooled: []float32{1, 2}, Guidance: &g}, Start: 0.25,
			End: 0.5, Ranged: true, Strength: 0.5,
			HasStrength: true, MaskStrength: 1,
		},
		{
			Entry:      dit.Entry{Context: rows(1, 3), ContextLen: 1, Context2: rows(2, 2), Context2Len: 2},
			NoGuidance: true, AreaPart: &[4]float64{0.5, 0.25, 0, 1},
			Mask:         &picture.Mask{B: 2, Y: 1, X: 2, Data: []float32{0, 1, 1, 0}},
			MaskStrength: 0.75, MaskBounds: true,
		},
	}
	back, err := importConditioning(exported(t, list))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, list) {
		t.Errorf("conditioning came back as\n%+v\nwant\n%+v", back, list)
	}
	l := &Latent{NoiseMask: &picture.Mask{B: 2, Y: 1, X: 2, Data: []float32{0, 1, 1, 0}}, BatchIndex: []int{3, 1}}
	l.Scale = 16
	l.Samples.B, l.Samples.C, l.Samples.Y, l.Samples.X, l.Samples.Data = 2, 1, 1, 2, []float32{1, 2, 3, 4}
	if got, err := importLatent(exported(t, l)); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("latent came back as %+v, %v", got, err)
	}
	l = &Latent{Samples: request.Latent{B: 1, C: 1, T: 2, Y: 2, X: 2, Data: []float32{1, 2, 3, 4}}}
	if got, err := importLatent(exported(t, l)); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("latent of two layers came back as %+v, %v", got, err)
	}
	sound := &Audio{B: 1, C: 2, N: 3, Rate: 44100, Data: []float32{1, 2, 3, 4, 5, 6}}
	if got, err := ImportValue("AUDIO", "audio", exported(t, sound)); err != nil || !reflect.DeepEqual(got, sound) {
		t.Errorf("a sound came back as %+v, %v", got, err)
	}
	if _, travels := Export((*Audio)(nil)); travels {
		t.Error("the sound of a silent video travels")
	}
	if _, err := importConditioning([]any{[]any{
		array.New([]float32{1}, 1, 1, 1),
		pyjson.NewObject("hooks", 1),
	}}); err == nil {
		t.Error("a key that is not known was taken")
	}
}

// TestOrderOfKeys checks that the end of a range does not depend on the order of its keys, even if it is 0.
func TestOrderOfKeys(t *testing.T) {
	context := array.New([]float32{1}, 1, 1, 1)
	for end, keys := range map[float64][]any{0: {"end_percent", 0.0, "start_percent", 0.0}, 1: {"start_percent", 0.5}} {
		c, err := importCond(context, pyjson.NewObject(keys...))
		if err != nil || !c.Ranged || c.End != end {
			t.Errorf("%v: ends at %g, %v, want %g", keys, c.End, err, end)
		}
	}
}

// TestWrongKindsAreRefused checks that errors name the field and what it accepts.
func TestWrongKindsAreRefused(t *testing.T) {
	one := array.New([]float32{1}, 1, 1, 1, 1)
	for _, c := range []struct {
		kind, want string
		v          any
	}{
		{
			"LATENT", "batch_index is '0, 1': want a list of numbers from 0 to",
			pyjson.NewObject("samples", one, "batch_index", "0, 1"),
		},
		{
			"LATENT", "downscale_ratio_spacial is 0: want a number from 1 to 64",
			pyjson.NewObject("samples", one, "downscale_ratio_spacial", int64(0)),
		},
		{
			"CONDITIONING", "reference_latents_method: is 1: want offset, index, uxo or index_timestep_zero",
			[]any{[]any{array.New([]float32{1}, 1, 1, 1), pyjson.NewObject("reference_latents_method", int64(1))}},
		},
		{
			"CONDITIONING", "image_slots: is [-1]: want the number of text rows before each reference",
			[]any{[]any{array.New([]float32{1}, 1, 1, 1), pyjson.NewObject("image_slots", []any{int64(-1)})}},
		},
		{
			"AUDIO", "sample_rate is 0: want a number from 1 to 768000",
			pyjson.NewObject("waveform", array.New([]float32{1}, 1, 1, 1), "sample_rate", int64(0)),
		},
	} {
		if v, err := ImportValue(c.kind, "samples", c.v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want a refusal with %q", c.kind, v, err, c.want)
		}
	}
}

// TestConditioningsTravelWhole checks that no field of an entry is lost in export and import, and that an entry with
// control nets, which have no serialized form, cannot be exported.
func TestConditioningsTravelWhole(t *testing.T) {
	plane := func(n int) request.Latent {
		return request.Latent{B: 1, C: n, Y: 1, X: 2, Data: rows(n, 2).Data}
	}
	mask, g, score := &picture.Mask{B: 1, Y: 1, X: 2, Data: []float32{0, 1}}, float32(2.5), 0.
	list := Conditioning{
		{
			Entry: dit.Entry{
				Context: rows(2, 3), Pooled: []float32{1, 2}, ContextLen: 1, Context2: rows(2, 2), Context2Len: 2,
				Biases: []dit.Bias{{Rows: dit.Range{Start: 0, End: 1}, Value: 0.5}, {Rows: dit.Range{Start: 1, End: 2}, Value: -2}},
				Size:   []float32{4, 5}, Method: "index", Guidance: &g,
				Slots: []int{0, 2}, Vision: rows(3, 2), FrameRate: 23.976, Connected: true,
			},
			Sizes:       &family.Sizes{Height: 64, Width: 96, Top: 1, Left: 2, TargetHeight: 32, TargetWidth: 48},
			Score:       &score,
			Latents:     []request.Latent{plane(2), plane(1)},
			ConcatImage: plane(3), ConcatGiven: plane(1), ConcatMask: mask, Start: 0.25, End: 0.5, Ranged: true, Strength: 0.5,
			HasStrength: true, Area: request.Area{H: 1, W: 2, Y: 3, X: 4}, Mask: mask, MaskStrength: 0.75, MaskBounds: true,
		},
		{Entry: dit.Entry{Context: rows(1, 3)}, NoGuidance: true, AreaPart: &[4]float64{0.5, 0.25, 0, 1}, MaskStrength: 1},
	}
	// fields that no node sets, and what is checked below
	others := []string{
		"Controls", "Guides", "Keyframes", "Pictures", "Entry", "Concat", "References", "Prefix", "Hint", "Mode", "Schedule",
		"Frames", "SoundRatio", "SoundRows", "SoundReference",
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Cond]()) {
		zero := func(c Cond) bool { return reflect.ValueOf(c).FieldByIndex(f.Index).IsZero() }
		if name := f.Name; !slices.Contains(others, name) && zero(list[0]) && zero(list[1]) {
			t.Errorf("%s is not tried", name)
		}
	}
	if back, err := importConditioning(exported(t, list)); err != nil || !reflect.DeepEqual(back, list) {
		t.Errorf("came back as\n%+v, %v, want\n%+v", back, err, list)
	}
	for name, c := range map[string]Cond{
		"control nets": {Controls: []*Control{{Image: &picture.Image{}}}}, "guides": {Guides: []Guide{{}}},
		"reference sounds": {Entry: dit.Entry{SoundReference: rows(1, 2)}},
		"keyframes":        {Entry: dit.Entry{Keyframes: []dit.Keyframes{{}}}},
		"rows of pictures": {Entry: dit.Entry{Pictures: []dit.Range{{Start: 0, End: 1}}}},
	} {
		if out, travels := Export(Conditioning{list[0], c}); travels {
			t.Errorf("%s are dropped: %v", name, out)
		}
	}
}
