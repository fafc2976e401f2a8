package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"patchbay/models/dit"
	"patchbay/parallel"
)

// zeros is a tensor of that shape.
func zeros(shape ...int) *Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return NewTensor(make([]float32, n), shape...)
}

func latentIn(shape ...int) *Object { return NewObject("samples", zeros(shape...)) }

func condIn(tokens, channels int, more ...any) []any {
	return []any{[]any{zeros(1, tokens, channels), NewObject(more...)}}
}

// TestBadInputsAreRefusedInWords: every failure names the field and says what is allowed.
func TestBadInputsAreRefusedInWords(t *testing.T) {
	run, err := NewRunner(Config{})
	check(t, err)
	pixels := run.handles.grant(&VAE{Name: pixelSpace, Key: pixelSpace, Channels: 3}, 0)
	model := run.handles.grant(analyticModel(t), 0)
	type in = map[string]any
	for _, c := range []struct {
		class string
		in    in
		field string
		code  string
		want  string
	}{
		{"KarrasScheduler", in{"steps": int64(4), "sigma_max": 1.0, "sigma_min": 0.1, "rho": 0.0}, "rho", CodeBadInput, "above 0"},
		{"KarrasScheduler", in{"steps": int64(0), "sigma_max": 1.0, "sigma_min": 0.1, "rho": 7.0}, "steps", codeTooSmall, "min of 1"},
		{"ExponentialScheduler", in{"steps": int64(4), "sigma_max": 1.0, "sigma_min": 0.0}, "sigma_min", CodeBadInput, "above 0"},
		{"BetaSamplingScheduler", in{"model": model, "steps": int64(4), "alpha": 0.0, "beta": 0.6}, "alpha", CodeBadInput, "above 0"},
		{"SetFirstSigma", in{"sigmas": zeros(0), "sigma": 1.0}, "sigmas", CodeBadInput, "empty"},
		{"ManualSigmas", in{"sigmas": "1..5"}, "sigmas", CodeBadInput, "not a number"},
		{"ModelSamplingSD3", in{"model": model, "shift": 0.0}, "shift", CodeBadInput, "shift"},
		{"SamplerDPMPP_SDE", in{"eta": 1.0, "s_noise": 1.0, "r": 0.0, "noise_device": "cpu"}, "r", CodeBadInput, "0.01"},
		{"SamplerER_SDE", in{"solver_type": "RK4", "max_stage": int64(3), "eta": 1.0, "s_noise": 1.0}, "solver_type", codeNotInList, "Value not in list"},
		{"ConditioningConcat", in{"conditioning_to": condIn(3, 4), "conditioning_from": []any{}}, "conditioning_from", CodeBadInput, "no entries"},
		{"ConditioningConcat", in{"conditioning_to": condIn(3, 4), "conditioning_from": condIn(3, 5)}, "conditioning_from", CodeWrongFamily, "5 channels"},
		{"ConditioningConcat", in{"conditioning_to": condIn(3, 4, "context_len", 2.0), "conditioning_from": condIn(3, 4)}, "conditioning_to", CodeWrongFamily, "ConditioningCombine"},
		{"ConditioningConcat", in{"conditioning_to": condIn(40000, 1), "conditioning_from": condIn(40000, 1)}, "conditioning_from", CodeBadInput, "80000 tokens"},
		{
			"ConditioningAverage",
			in{"conditioning_to": condIn(3, 4, "pooled_output", zeros(1, 2)), "conditioning_from": condIn(3, 4, "pooled_output", zeros(1, 3)), "conditioning_to_strength": 0.5},
			"conditioning_from", CodeWrongFamily, "3 pooled",
		},
		{"ConditioningSetMask", in{"conditioning": condIn(3, 4), "mask": zeros(0, 4, 4), "strength": 1.0, "set_cond_area": "default"}, "mask", CodeBadInput, "empty"},
		{"LatentUpscale", in{"samples": latentIn(1, 4, 0, 4), "upscale_method": "area", "width": int64(64), "height": int64(64), "crop": "disabled"}, "samples", CodeBadInput, "empty"},
		{"LatentUpscale", in{"samples": latentIn(1, 4, 1, 300), "upscale_method": "area", "width": int64(64), "height": int64(2048), "crop": "center"}, "width", CodeBadInput, "crop"},
		{"LatentUpscaleBy", in{"samples": latentIn(1, 4, 4, 4), "upscale_method": "area", "scale_by": 0.01}, "scale_by", CodeBadInput, "at least 1"},
		{"LatentBlend", in{"samples1": latentIn(1, 4, 4, 4), "samples2": latentIn(1, 16, 4, 4), "blend_factor": 0.5}, "samples2", CodeWrongFamily, "16 channels"},
		{"LatentBlend", in{"samples1": latentIn(2, 4, 4, 4), "samples2": latentIn(3, 4, 4, 4), "blend_factor": 0.5}, "samples2", CodeBadInput, "batch of 3"},
		{"LatentComposite", in{"samples_to": latentIn(1, 4, 4, 4), "samples_from": latentIn(2, 4, 4, 4), "x": int64(0), "y": int64(0), "feather": int64(0)}, "samples_from", CodeBadInput, "batch of 2"},
		{"LatentComposite", in{"samples_to": latentIn(1, 4, 4, 4), "samples_from": latentIn(1, 4, 4, 4), "x": int64(80), "y": int64(0), "feather": int64(0)}, "x", CodeBadInput, "outside"},
		{"LatentCrop", in{"samples": latentIn(1, 4, 2, 15), "width": int64(64), "height": int64(64), "x": int64(0), "y": int64(64)}, "", "", ""},
		{"RepeatLatentBatch", in{"samples": NewObject("samples", zeros(2, 1, 1, 1), "batch_index", []any{int64(0), int64(1 << 20)}), "amount": int64(2)}, "amount", CodeBadInput, "batch_index"},
		{"ImageBlend", in{"image1": zeros(1, 2, 2, 4), "image2": zeros(1, 2, 2, 3), "blend_factor": 0.5, "blend_mode": "normal"}, "image2", CodeWrongFamily, "channels"},
		{"ImageScaleToTotalPixels", in{"image": zeros(1, 1, 3000, 3), "upscale_method": "area", "megapixels": 0.01, "resolution_steps": int64(256)}, "megapixels", CodeBadInput, "at least 1"},
		{"ImagePadForOutpaint", in{"image": zeros(1, 1, 1, 3), "left": int64(16384), "right": int64(16384), "top": int64(16384), "bottom": int64(16384), "feathering": int64(0)}, "left", CodeBadInput, "at most"},
		{"EmptyImage", in{"width": int64(16384), "height": int64(16384), "batch_size": int64(4096), "color": int64(0)}, "batch_size", CodeBadInput, "at most"},
		{"ImageToMask", in{"image": zeros(1, 2, 2, 3), "channel": "alpha"}, "channel", CodeBadInput, "no alpha"},
		{"VAEEncodeForInpaint", in{"pixels": zeros(1, 4, 4, 3), "vae": pixels, "mask": zeros(2, 4, 4), "grow_mask_by": int64(6)}, "mask", CodeBadInput, "batch of 2"},
		{"VAEEncodeForInpaint", in{"pixels": zeros(1, 4, 4, 3), "vae": pixels, "mask": zeros(0, 4, 4), "grow_mask_by": int64(6)}, "mask", CodeBadInput, "empty"},
		{"PrimitiveFloat", in{"value": "much"}, "value", codeInvalidInput, "FLOAT"},
	} {
		_, err := run.Exec(t.Context(), ExecRequest{Class: c.class, Inputs: c.in}, nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got %v, want no error", c.class, err)
			}
			continue
		}
		var f *Failure
		if !errors.As(err, &f) || f.Field != c.field || f.Code != c.code || !strings.Contains(f.Message+" "+f.Details, c.want) {
			t.Errorf("%s: got %#v, want code %s, field %s and %q", c.class, err, c.code, c.field, c.want)
		}
	}
}

// TestLinkedNumbersAreChecked: validation does not see what a link brings, so the node refuses it.
func TestLinkedNumbersAreChecked(t *testing.T) {
	var kept []any
	keep := Class{Name: "Keep", Output: true, Inputs: []Input{bareIn("value", "*")}, Run: func(c *Call) ([]any, error) {
		kept = append(kept, c.in["value"])
		return nil, nil
	}}
	run, err := NewRunner(Config{Catalogue: NewCatalogue(keep)})
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
		_, err := run.Run(t.Context(), Job{Workflow: g.workflow(t)}, nil)
		var f *Failure
		switch {
		case c.bad == "" && err != nil:
			t.Errorf("%+v: %v", c, err)
		case c.bad != "" && (!errors.As(err, &f) || f.Field != c.bad || f.Class != "SolidMask" || f.Code != CodeBadInput || !strings.Contains(f.Message, "between")):
			t.Errorf("%+v: got %v, want a failure of SolidMask at %s", c, err, c.bad)
		}
	}
	if m, ok := kept[0].(*Mask); len(kept) != 1 || !ok || m.Y != 8 || m.X != 4 || m.Data[0] != 0.25 {
		t.Errorf("kept %v, want one mask of 4 x 8", kept)
	}
}

// TestGrowingAMaskCanBeCancelled: a gradient of 2^23 pixels takes minutes to grow by 16384.
func TestGrowingAMaskCanBeCancelled(t *testing.T) {
	m := &Mask{B: 1, Y: 1 << 11, X: 1 << 12, Data: make([]float32, 1<<23)}
	for i := range m.Data {
		m.Data[i] = float32(i)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	k := NewCatalogue().Class("GrowMask")
	began := time.Now()
	_, err := k.Run(&Call{Context: ctx, Class: k, in: map[string]any{"mask": m, "expand": int64(-16384), "tapered_corners": true}})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
		t.Errorf("got %v after %s, want the deadline soon", err, time.Since(began))
	}
}

// TestMixedFamiliesFailBeforeSampling: an entry of another family is refused by the sampling node, by its branch.
func TestMixedFamiliesFailBeforeSampling(t *testing.T) {
	m := analyticModel(t)
	g := &Guider{Model: m, Rule: parallel.Guider{Kind: parallel.GuideDual, CFG: 1, CFG2: 1}, Branches: []GuiderBranch{
		{"cond1", Conditioning{{Context: dit.Array{Rows: 1, Cols: 1, Data: []float32{1}}}}}, {"cond2", Conditioning{{Context: dit.Array{Rows: 1, Cols: 2, Data: []float32{1, 2}}}}}, {"negative", nil},
	}}
	_, err := lowerCustom(Noise{}, g, Sampler{Name: "euler"}, Sigmas{1, 0}, &Latent{Samples: parallel.NewLatent(1, 4, 2, 2)})
	var f *Failure
	if !errors.As(err, &f) || f.Code != CodeWrongFamily || f.Field != "cond2" {
		t.Errorf("got %v, want wrong_family at cond2", err)
	}
}
