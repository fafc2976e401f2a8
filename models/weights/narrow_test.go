package weights_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"patchbay/engine"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// narrowTensors returns a layer (see packed) in a format of ComfyUI, with random codes.
func narrowTensors(format string) map[string]weights.Stored {
	r, tensors := rand.New(rand.NewPCG(1, 2)), map[string]weights.Stored{}
	fill := func(n int, next func() byte) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = next()
		}
		return out
	}
	anyByte := func() byte { return byte(r.Uint32()) }
	fp8 := func() byte { return byte(r.IntN(2)<<7 | r.IntN(0x7c)) } // finite in both formats
	put := func(name string, d engine.DType, data []byte, shape ...int) {
		tensors[name] = weights.Stored{DType: d, Shape: shape, Data: data}
	}
	matrix := func(x string, n, k int) {
		tiles := (n + 127) / 128 * 512
		mark := ""
		tensors[x+".weight_scale"] = weights.Floats([]float32{0.375}, 1)
		switch format {
		case "float8_e4m3fn":
			put(x+".weight", engine.F8E4M3, fill(n*k, fp8), n, k)
		case "float8_e5m2":
			put(x+".weight", engine.F8E5M2, fill(n*k, fp8), n, k)
		case "nvfp4":
			put(x+".weight", engine.U8, fill(n*k/2, anyByte), n, k/2)
			put(x+".weight_scale", engine.F8E4M3, fill(tiles*k/64, func() byte { return byte(r.IntN(0x7f)) }), tiles*k/64)
			tensors[x+".weight_scale_2"] = weights.Floats([]float32{0.375}, 1)
			mark = `{"format": "nvfp4"}`
		case "mxfp8":
			put(x+".weight", engine.F8E4M3, fill(n*k, fp8), n, k)
			put(x+".weight_scale", engine.U8, fill(tiles*k/128, func() byte { return byte(110 + r.IntN(20)) }), tiles*k/128)
			mark = `{"format": "mxfp8"}`
		case "asym_w4a8_int8":
			put(x+".weight", engine.I8, fill(n*k/2, anyByte), n, k/2)
			put(x+".weight_s_rel", engine.F8E4M3, fill(n*k/16, func() byte { return byte(r.IntN(0x58)) }), n, k/16)
			tensors[x+".weight_s_channel"] = weights.Floats(golden.Fill("narrow/rows", n, 0.01, 0.02), n)
			delete(tensors, x+".weight_scale")
			mark = `{"format": "asym_w4a8_int8"}`
		default:
			put(x+".weight", engine.I8, fill(n*k, anyByte), n, k)
			scales := make([]float32, n)
			for i := range scales {
				scales[i] = r.Float32() / 64
			}
			tensors[x+".weight_scale"] = weights.Floats(scales, n, 1)
			mark = `{"format": "int8_tensorwise"}`
			if format == "convrot" {
				mark = `{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}`
			}
		}
		if mark != "" {
			put(x+".comfy_quant", engine.U8, []byte(mark), len(mark))
		}
	}
	matrix("qkv", 3*512, 512)
	matrix("out", 512, 512)
	matrix("head", 48, 512)
	tensors["out.bias"] = weights.Floats(golden.Fill("narrow/bias", 512, 1, 0), 512)
	return tensors
}

// widenedBefore returns the same tensors as bf16 with their scales, made of the values of single elements.
func widenedBefore(set *weights.Set) *weights.Set {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		if len(s.Shape) == 2 {
			scale := s.Scale
			s.Scale = 0
			v := s.F32()
			data := bytes.Repeat([]byte{0}, 2*len(v))
			engine.Narrow(data, v, engine.BF16)
			s = weights.Stored{DType: engine.BF16, Shape: s.Shape, Data: data, Scale: scale}
		}
		out[name] = s
	}
	return weights.FromMap(out)
}

// TestNarrowFormsStayInMemory checks that fp8, nvfp4, mxfp8 and, for activations that are not rounded, int8 stay as the
// file has them, cut in every way that models cut them: products have the bits of weights that were widened before, at
// every CPU level, and the weights take at most 5 % more memory than the file. asym_w4a8_int8 is made int8 first.
func TestNarrowFormsStayInMemory(t *testing.T) {
	x := golden.Input("blocks", 7*512)
	for _, format := range []string{
		"float8_e4m3fn", "float8_e5m2", "nvfp4", "mxfp8", "int8_tensorwise", "convrot", "asym_w4a8_int8",
	} {
		set := weights.FromMap(narrowTensors(format)).Unrounded()
		wide := widenedBefore(set)
		goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) {
			for _, ranks := range []int{1, 2} {
				for rank := range ranks {
					comparePacked(t, fmt.Sprintf("%s, rank %d of %d", format, rank, ranks), ops, set, wide, x, rank, ranks)
				}
			}
		})
		var p struct {
			QKV  *engine.Weight `weight:"qkv,nobias" shape:"3E,E"`
			Out  *engine.Weight `weight:"out" shape:"E,E"`
			Head *engine.Weight `weight:"head,nobias" shape:"H,E"`
		}
		loaded, err := weights.Load(goldenrun.NewOps(), set, &p, packedOptions(0, 1))
		if err != nil {
			t.Fatal(err)
		}
		// The scales that were joined to their matrices are more; asym_w4a8_int8 counts with 8 bits for its 4.
		file := set.Bytes()
		if took := float64(loaded.Bytes()) / float64(file); !(took <= 1.05) {
			t.Errorf("%s: weights take %d bytes, %.3f of the file's %d", format, loaded.Bytes(), took, file)
		}
		rotated := format == "convrot" || format == "asym_w4a8_int8"
		if took := float64(set.WideBytes()) / float64(file); !rotated && !(took <= 1.07) {
			t.Errorf("%s: weights are said to take %.3f of the file on GPUs", format, took)
		}
		if _, quantised := set.Form(); !quantised {
			t.Errorf("%s is not said to be quantised", format)
		}
		loaded.Close()
	}
}
