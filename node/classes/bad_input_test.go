package classes

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// zeros returns a tensor of zeros.
func zeros(shape ...int) *array.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return array.New(make([]float32, n), shape...)
}

func latentIn(shape ...int) *pyjson.Object { return pyjson.NewObject("samples", zeros(shape...)) }

func condIn(tokens, channels int, more ...any) []any {
	return []any{[]any{zeros(1, tokens, channels), pyjson.NewObject(more...)}}
}

// TestBadInputsAreRefusedInWords checks that the error for a bad input names the field and says what is allowed.
func TestBadInputsAreRefusedInWords(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	pixels := run.Hold(&value.VAE{Name: value.PixelSpace, Key: value.PixelSpace, Channels: 3}, 0)
	model := run.Hold(analyticModel(t), 0)
	of16, spoken := *analyticModel(t), *analyticModel(t)
	of16.Format.Channels = 16
	spoken.Sampling, err = spoken.Sampling.WithSound(1)
	check(t, err)
	wide, sound := run.Hold(&of16, 0), run.Hold(&spoken, 0)
	type in = map[string]any
	for _, c := range []struct {
		class string
		in    in
		field string
		code  string
		want  string
	}{
		{
			"KarrasScheduler",
			in{"steps": int64(4), "sigma_max": 1.0, "sigma_min": 0.1, "rho": 0.0},
			"rho",
			fault.BadInput, "above 0",
		},
		{
			"KarrasScheduler",
			in{"steps": int64(0), "sigma_max": 1.0, "sigma_min": 0.1, "rho": 7.0},
			"steps",
			"value_smaller_than_min", "min of 1",
		},
		{
			"ExponentialScheduler",
			in{"steps": int64(4), "sigma_max": 1.0, "sigma_min": 0.0},
			"sigma_min",
			fault.BadInput, "above 0",
		},
		{
			"BetaSamplingScheduler",
			in{"model": model, "steps": int64(4), "alpha": 0.0, "beta": 0.6},
			"alpha",
			fault.BadInput, "above 0",
		},
		{"SetFirstSigma", in{"sigmas": zeros(0), "sigma": 1.0}, "sigmas", fault.BadInput, "empty"},
		{"ManualSigmas", in{"sigmas": "1..5"}, "sigmas", fault.BadInput, "not a number"},
		{
			"ModelSamplingContinuousEDM",
			in{"model": model, "sampling": "eps", "sigma_max": 80.0, "sigma_min": 0.0},
			"sigma_min", fault.BadInput, "above 0",
		},
		{
			"ModelSamplingContinuousV",
			in{"model": model, "sampling": "v_prediction", "sigma_max": 2.0, "sigma_min": 3.0},
			"sigma_min", fault.BadInput, "below sigma_max, which is 2",
		},
		{
			"ModelSamplingContinuousEDM",
			in{"model": wide, "sampling": "edm_playground_v2.5", "sigma_max": 80.0, "sigma_min": 0.002},
			"model", fault.WrongFamily, "latents of 4 channels",
		},
		{
			"ModelSamplingContinuousEDM",
			in{"model": sound, "sampling": "eps", "sigma_max": 80.0, "sigma_min": 0.002},
			"model", fault.WrongFamily, "two schedules",
		},
		{"ModelSamplingSD3", in{"model": model, "shift": 0.0}, "shift", fault.BadInput, "shift"},
		{
			"SamplerDPMPP_SDE",
			in{"eta": 1.0, "s_noise": 1.0, "r": 0.0, "noise_device": "cpu"},
			"r",
			fault.BadInput, "0.01",
		},
		{
			"SamplerER_SDE",
			in{"solver_type": "RK4", "max_stage": int64(3), "eta": 1.0, "s_noise": 1.0},
			"solver_type",
			"value_not_in_list", "Value not in list",
		},
		{
			"ConditioningConcat",
			in{"conditioning_to": condIn(3, 4), "conditioning_from": []any{}},
			"conditioning_from",
			fault.BadInput, "no entries",
		},
		{
			"ConditioningConcat",
			in{"conditioning_to": condIn(3, 4), "conditioning_from": condIn(3, 5)},
			"conditioning_from",
			fault.WrongFamily, "5 channels",
		},
		{
			"ConditioningConcat",
			in{"conditioning_to": condIn(3, 4, "context_len", 2.0), "conditioning_from": condIn(3, 4)},
			"conditioning_to", fault.WrongFamily, "ConditioningCombine",
		},
		{
			"ConditioningConcat",
			in{"conditioning_to": condIn(40000, 1), "conditioning_from": condIn(40000, 1)},
			"conditioning_from", fault.BadInput, "80000 tokens",
		},
		{
			"ConditioningAverage",
			in{
				"conditioning_to":   condIn(3, 4, "pooled_output", zeros(1, 2)),
				"conditioning_from": condIn(3, 4, "pooled_output", zeros(1, 3)), "conditioning_to_strength": 0.5,
			},
			"conditioning_from", fault.WrongFamily, "3 pooled",
		},
		{"ConditioningSetMask", in{
			"conditioning": condIn(3, 4), "mask": zeros(0, 4, 4), "strength": 1.0,
			"set_cond_area": "default",
		}, "mask", fault.BadInput, "empty"},
		{"LatentUpscale", in{
			"samples": latentIn(1, 4, 0, 4), "upscale_method": "area", "width": int64(64),
			"height": int64(64), "crop": "disabled",
		}, "samples", fault.BadInput, "empty"},
		{"LatentUpscale", in{
			"samples": latentIn(1, 4, 1, 300), "upscale_method": "area", "width": int64(64),
			"height": int64(2048), "crop": "center",
		}, "width", fault.BadInput, "crop"},
		{
			"LatentUpscaleBy",
			in{"samples": latentIn(1, 4, 4, 4), "upscale_method": "area", "scale_by": 0.01},
			"scale_by",
			fault.BadInput, "at least 1",
		},
		{
			"LatentBlend",
			in{"samples1": latentIn(1, 4, 4, 4), "samples2": latentIn(1, 16, 4, 4), "blend_factor": 0.5},
			"samples2", fault.WrongFamily, "16 channels",
		},
		{
			"LatentBlend",
			in{"samples1": latentIn(2, 4, 4, 4), "samples2": latentIn(3, 4, 4, 4), "blend_factor": 0.5},
			"samples2", fault.BadInput, "batch of 3",
		},
		{"LatentComposite", in{
			"samples_to": latentIn(1, 4, 4, 4), "samples_from": latentIn(2, 4, 4, 4), "x": int64(0),
			"y": int64(0), "feather": int64(0),
		}, "samples_from", fault.BadInput, "batch of 2"},
		{"LatentComposite", in{
			"samples_to": latentIn(1, 4, 4, 4), "samples_from": latentIn(1, 4, 4, 4), "x": int64(40),
			"y": int64(0), "feather": int64(0),
		}, "x", fault.BadInput, "outside"},
		{"LatentCrop", in{
			"samples": latentIn(1, 4, 2, 15), "width": int64(64), "height": int64(64), "x": int64(0),
			"y": int64(64),
		}, "", "", ""},
		{"RepeatLatentBatch", in{"samples": pyjson.NewObject("samples", zeros(2, 1, 1, 1), "batch_index",
			[]any{int64(0), int64(1 << 20)}), "amount": int64(2)}, "amount", fault.BadInput, "batch_index"},
		{"ImageBlend", in{
			"image1": zeros(1, 2, 2, 4), "image2": zeros(1, 2, 2, 3), "blend_factor": 0.5,
			"blend_mode": "normal",
		}, "image2", fault.WrongFamily, "channels"},
		{"ImageScaleToTotalPixels", in{
			"image": zeros(1, 1, 3000, 3), "upscale_method": "area", "megapixels": 0.01,
			"resolution_steps": int64(256),
		}, "megapixels", fault.BadInput, "at least 1"},
		{"ImagePadForOutpaint", in{
			"image": zeros(1, 1, 1, 3), "left": int64(16384), "right": int64(16384),
			"top": int64(16384), "bottom": int64(16384), "feathering": int64(0),
		}, "left", fault.BadInput, "at most"},
		{
			"EmptyImage",
			in{"width": int64(16384), "height": int64(16384), "batch_size": int64(4096), "color": int64(0)},
			"batch_size", fault.BadInput, "at most",
		},
		{"ImageToMask", in{"image": zeros(1, 2, 2, 3), "channel": "alpha"}, "channel", fault.BadInput, "no alpha"},
		{"VAEEncodeForInpaint", in{
			"pixels": zeros(1, 4, 4, 3), "vae": pixels, "mask": zeros(2, 4, 4),
			"grow_mask_by": int64(6),
		}, "mask", fault.BadInput, "batch of 2"},
		{"VAEEncodeForInpaint", in{
			"pixels": zeros(1, 4, 4, 3), "vae": pixels, "mask": zeros(0, 4, 4),
			"grow_mask_by": int64(6),
		}, "mask", fault.BadInput, "empty"},
		{"PrimitiveFloat", in{"value": "much"}, "value", "invalid_input_type", "FLOAT"},
	} {
		_, err := run.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.in}, nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got %v, want no error", c.class, err)
			}
			continue
		}
		var f *fault.Error
		if !errors.As(err, &f) || f.Field != c.field || f.Code != c.code ||
			!strings.Contains(f.Text+" "+f.Details, c.want) {
			t.Errorf("%s: got %#v, want code %s, field %s and %q", c.class, err, c.code, c.field, c.want)
		}
	}
}

// TestLinkedNumbersAreChecked checks that a node refuses bad numbers from links, whose values validation cannot see.
func TestLinkedNumbersAreChecked(t *testing.T) {
	var received []any
	keep := graph.Class{
		Name: "Keep", Output: true, Inputs: []graph.Input{graph.Bare("value", "*")},
		Run: func(c *graph.Call) ([]any, error) {
			received = append(received, c.Raw("value"))
			return nil, nil
		},
	}
	run, err := graph.NewRunner(graph.Config{Catalogue: All(keep)})
	check(t, err)
	for _, c := range []struct {
		side  int64
		value float64
		bad   string
	}{{8, 0.25, ""}, {0, 0.25, "height"}, {-3, 0.25, "height"}, {1 << 40, 0.25, "height"}, {8, 1.5, "value"}} {
		g := newGraph()
		side, value := g.add("PrimitiveInt", "value", c.side), g.add("PrimitiveFloat", "value", c.value)
		mask := g.add("SolidMask", "value", value, "width", int64(4), "height", side)
		g.add("Keep", "value", mask)
		_, err := run.Run(t.Context(), graph.Job{Workflow: g.workflow(t)}, nil)
		var f *fault.Error
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%+v: %v", c, err)
		case c.bad != "" && (!errors.As(err, &f) || f.Field != c.bad || f.Class != "SolidMask" ||
			f.Code != fault.BadInput || !strings.Contains(f.Text, "between")):
			t.Errorf("%+v: got %v, want a failure of SolidMask at %s", c, err, c.bad)
		}
	}
	if m, ok := received[0].(*picture.Mask); len(received) != 1 || !ok || m.Y != 8 || m.X != 4 || m.Data[0] != 0.25 {
		t.Errorf("kept %v, want one mask of 4 x 8", received)
	}
}

// expiring is a context that ends at the call of Done or Err number left.
type expiring struct {
	context.Context
	left atomic.Int64
	done chan struct{}
}

func (c *expiring) asked() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

func (c *expiring) Done() <-chan struct{} { c.asked(); return c.done }

func (c *expiring) Err() error {
	if c.asked(); c.left.Load() > 0 {
		return nil
	}
	return context.Canceled
}

// TestGrowingAMaskCanBeCancelled checks that growing a mask can be canceled: it checks its context now and
// then, and does not go on afterwards. A gradient of 2^23 pixels takes minutes to grow by 16384.
func TestGrowingAMaskCanBeCancelled(t *testing.T) {
	m := &picture.Mask{B: 1, Y: 1 << 11, X: 1 << 12, Data: make([]float32, 1<<23)}
	for i := range m.Data {
		m.Data[i] = float32(i)
	}
	ctx := &expiring{Context: t.Context(), done: make(chan struct{})}
	ctx.left.Store(8)
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	_, err = run.Exec(ctx, graph.ExecRequest{
		Class:  "GrowMask",
		Inputs: map[string]any{"mask": run.Hold(m, 0), "expand": int64(-16384), "tapered_corners": true},
	}, nil)
	if after := -ctx.left.Load(); !errors.Is(err, context.Canceled) || after < 0 || after > 64 {
		t.Errorf("got %v, and %d questions after the end; want it to stop at once", err, after)
	}
}

// TestMixedFamiliesFailBeforeSampling checks that the sampling node refuses an entry of another family with an error
// that names its branch.
func TestMixedFamiliesFailBeforeSampling(t *testing.T) {
	m := analyticModel(t)
	of := func(text dit.Array) value.Conditioning { return value.Conditioning{{Entry: dit.Entry{Context: text}}} }
	g := &value.Guider{
		Model: m, Rule: request.Guider{Kind: request.GuideDual, CFG: 1, CFG2: 1},
		Branches: []value.GuiderBranch{
			{Name: "cond1", Conditioning: of(dit.Array{Rows: 1, Cols: 1, Data: []float32{1}})},
			{Name: "cond2", Conditioning: of(dit.Array{Rows: 1, Cols: 2, Data: []float32{1, 2}})},
			{Name: "negative", Conditioning: nil},
		},
	}
	_, err := value.Lower(value.Lowering{
		Guider: *g, Sampler: value.Sampler{Name: "euler"}, Sigmas: value.Sigmas{1, 0},
		Latent: &value.Latent{Samples: request.NewLatent(1, 4, 2, 2)},
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.WrongFamily || f.Field != "cond2" {
		t.Errorf("got %v, want wrong_family at cond2", err)
	}
}
