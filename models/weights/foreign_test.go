package weights_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/weights"
)

// TestQuantisationsThatAreNotRead checks that errors for unsupported quantizations name them, and the errors for
// incomplete files.
func TestQuantisationsThatAreNotRead(t *testing.T) {
	text := func(s string) weights.Stored {
		return weights.Stored{DType: engine.U8, Shape: []int{len(s)}, Data: []byte(s)}
	}
	number := weights.Stored{DType: engine.F32, Shape: []int{1}, Data: make([]byte, 4)}
	w := weights.Stored{DType: engine.I8, Shape: []int{4, 16}, Data: make([]byte, 64)}
	packed := weights.Stored{DType: engine.U8, Shape: []int{4, 8}, Data: make([]byte, 32)}
	scales := weights.Stored{DType: engine.F8E4M3, Shape: []int{128, 4}, Data: make([]byte, 512)}
	for _, c := range []struct {
		want string
		set  map[string]weights.Stored
	}{
		{`"awq_w4a16"`, map[string]weights.Stored{"x.weight": w, "x.comfy_quant": text(`{"format": "awq_w4a16"}`)}},
		{
			"read are: asym_w4a8_int8, float8_e4m3fn, float8_e5m2, int8_tensorwise, mxfp8, nvfp4, and GGUF",
			map[string]weights.Stored{"x.weight": w, "x.comfy_quant": text(`{"format": "convrot_w4a4"}`)},
		},
		{"no JSON object with a format", map[string]weights.Stored{"x.weight": w, "x.comfy_quant": text("{}")}},
		{"weight_scale is missing", map[string]weights.Stored{
			"x.weight": w, "x.comfy_quant": text(`{"format": "int8_tensorwise"}`),
		}},
		{"must divide K", map[string]weights.Stored{
			"x.weight": w, "x.weight_scale": number,
			"x.comfy_quant": text(`{"format": "int8_tensorwise", "convrot": true}`),
		}},
		{"powers of 4", map[string]weights.Stored{
			"x.weight": w, "x.weight_scale": number,
			"x.comfy_quant": text(`{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 8}`),
		}},
		{"weight is i8 [4 16], want a matrix of f8_e4m3", map[string]weights.Stored{
			"x.weight": w, "x.comfy_quant": text(`{"format": "mxfp8"}`),
		}},
		{"weight_scale is missing or has another size than 512 bytes", map[string]weights.Stored{
			"x.weight": w, "x.comfy_quant": text(`{"format": "nvfp4"}`),
		}},
		{"pre_quant_scale is f32 [17], want at most 16 numbers", map[string]weights.Stored{
			"x.weight": packed, "x.weight_scale": scales, "x.weight_scale_2": number,
			"x.comfy_quant": text(`{"format": "nvfp4"}`), "x.pre_quant_scale": weights.Floats(make([]float32, 17), 17),
		}},
		{"pre_quant_scale is i8 [16], want at most 16 numbers", map[string]weights.Stored{
			"x.weight": packed, "x.weight_scale": scales, "x.weight_scale_2": number,
			"x.comfy_quant":     text(`{"format": "nvfp4"}`),
			"x.pre_quant_scale": {DType: engine.I8, Shape: []int{16}, Data: make([]byte, 16)},
		}},
		{"element type of this tensor is not supported", map[string]weights.Stored{"x.weight": w}},
	} {
		var n net
		opt := weights.Options{Model: "test", Dims: map[string]int{"N": 4, "K": 16}}
		if _, err := weights.Load(ref.New(), weights.FromMap(c.set), &n, opt); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

// TestOtherProgramsQuantisations checks that files that other programs quantized are refused by what they are. The
// names of the tensors are those that the programs write.
func TestOtherProgramsQuantisations(t *testing.T) {
	of := func(kind engine.DType, shape ...int) weights.Stored {
		n := kind.Size()
		for _, d := range shape {
			n *= d
		}
		return weights.Stored{DType: kind, Shape: shape, Data: make([]byte, n)}
	}
	const u8, i8, f8, f32, bf16 = engine.U8, engine.I8, engine.F8E4M3, engine.F32, engine.BF16
	for want, set := range map[string]map[string]weights.Stored{
		"layer a.x is quantised as NF4 by bitsandbytes": {
			"a.x.weight": of(u8, 32, 1), "a.x.weight.absmax": of(u8, 1), "a.x.weight.quant_map": of(f32, 16),
			"a.x.weight.nested_absmax": of(f32, 1), "a.x.weight.nested_quant_map": of(f32, 256),
			"a.x.weight.quant_state.bitsandbytes__nf4": of(u8, 90),
		},
		"FP4 by bitsandbytes": {
			"x.weight": of(u8, 32, 1), "x.weight.absmax": of(f32, 1), "x.weight.quant_map": of(f32, 16),
			"x.weight.quant_state.bitsandbytes__fp4": of(u8, 90),
		},
		"LLM.int8 by bitsandbytes": {"x.weight": of(i8, 4, 16), "x.SCB": of(f32, 4), "x.weight_format": of(u8)},
		"SVDQuant by Nunchaku": {
			"x.qweight": of(i8, 4, 8), "x.wscales": of(bf16, 1, 4), "x.smooth_factor": of(bf16, 16),
			"x.smooth_factor_orig": of(bf16, 16), "x.proj_down": of(bf16, 16, 2), "x.proj_up": of(bf16, 4, 2),
		},
		"8 or 4 bits by quanto": {
			"x.weight._data": of(i8, 4, 16), "x.weight._scale": of(bf16, 4, 1), "x.input_scale": of(bf16),
			"x.output_scale": of(bf16),
		},
		"f8_e4m3 [4 16] with scales of f32 [2 2 2]": {"x.weight": of(f8, 4, 16), "x.weight_scale": of(f32, 2, 2, 2)},
		"layer x is quantised as f8_e4m3 [4 16] with scales of i8 [4]": {
			"x.weight": of(f8, 4, 16), "x.scale_weight": of(i8, 4), "scaled_fp8": of(f8, 2),
		},
		"f8_e4m3 [4 16] with scales of f32 [2 1]": {"x.weight": of(f8, 4, 16), "x.weight_scale_inv": of(f32, 2, 1)},
		"GPTQ or AWQ": {
			"x.qweight": of(i8, 4, 8), "x.qzeros": of(i8, 1, 2), "x.scales": of(bf16, 1, 4),
		},
		"as AWQ": {
			"x.qweight": of(i8, 4, 8), "x.scaled_zeros": of(bf16, 1, 4), "x.scales": of(bf16, 1, 4),
		},
	} {
		set["x.bias"] = of(f32, 4)
		var n net
		opt := weights.Options{Model: "test", Dims: map[string]int{"N": 4, "K": 16}}
		_, err := weights.Load(ref.New(), weights.FromMap(set), &n, opt)
		if err == nil || !strings.Contains(err.Error(), want+", which is not read (read are: ") {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
		var entries []safetensors.Tensor
		for name, e := range set {
			types := map[engine.DType]string{u8: "U8", i8: "I8", f8: "F8_E4M3", f32: "F32", bf16: "BF16"}
			entries = append(entries, safetensors.Tensor{
				Name: name, FileType: types[e.DType], Shape: e.Shape, Data: datafile.Of(e.Data),
			})
		}
		var file bytes.Buffer
		if err := safetensors.Write(&file, nil, entries); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "x.safetensors")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := weights.Open(path, engine.F32); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("opening a file: %v, want an error that says %q", err, want)
		}
	}
}
