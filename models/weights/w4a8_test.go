package weights_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/weights"
)

// TestCodesOf4Bits compares the codes of 8 bits that are made of 4 with those that comfy_kitchen makes, all at once and
// in pieces that begin and end anywhere.
func TestCodesOf4Bits(t *testing.T) {
	want := results(t, "modern33/w4a8.safetensors")
	seen := 0
	for _, l := range layers(t) {
		if l.Format != "asym_w4a8_int8" {
			continue
		}
		seen++
		stored, _ := l.file(t, true).Get("x.weight")
		if stored.DType != engine.I8 || !slices.Equal(stored.Shape, l.Shape) {
			t.Fatalf("%s is %s %v", l.key, stored.DType, stored.Shape)
		}
		codes := want(l.key + "#codes")
		for _, size := range []int{len(codes), 1, 7, 33} {
			for at := 0; at < len(codes); at += size {
				for i, b := range stored.Elements(at, min(at+size, len(codes))) {
					if got := float32(int8(b)); got != codes[at+i] {
						t.Fatalf("%s, in pieces of %d: code %d is %v, want %v", l.key, size, at+i, got, codes[at+i])
					}
				}
			}
		}
	}
	if seen != 10 {
		t.Errorf("%d layers, want 10", seen)
	}
}

// TestLongRowsOf4Bits checks a matrix without a codebook that is read in several pieces, from an odd element on.
func TestLongRowsOf4Bits(t *testing.T) {
	const n, k = 3, 3 << 18
	mark := `{"format": "asym_w4a8_int8"}`
	pairs, scales := make([]byte, n*k/2), make([]byte, n*k/16)
	for i := range pairs {
		pairs[i] = byte(i*7 + i/500)
	}
	for i := range scales {
		scales[i] = byte(0x30 + i%61%24) // 0.5 to 3.75
	}
	s, _ := weights.FromMap(map[string]weights.Stored{
		"x.weight":           {DType: engine.I8, Shape: []int{n, k / 2}, Data: pairs},
		"x.weight_s_rel":     {DType: engine.F8E4M3, Shape: []int{n, k / 16}, Data: scales},
		"x.weight_s_channel": weights.Floats(make([]float32, n), n),
		"x.comfy_quant":      {DType: engine.U8, Shape: []int{len(mark)}, Data: []byte(mark)},
	}).Get("x.weight")
	const lo = 777
	for i, got := range s.Elements(lo, n*k-5) {
		at := lo + i
		want := math.RoundToEven(float64(int(pairs[at/2]>>(at%2*4))%16-8) * float64(engine.F32FromF8E4M3(scales[at/16])))
		if int8(got) != int8(want) {
			t.Fatalf("code %d is %d, want %v", at, int8(got), want)
		}
	}
}

// TestDamagedW4A8 checks that the errors for incomplete layers of 4 bits name the tensor or the option, and what is
// allowed.
func TestDamagedW4A8(t *testing.T) {
	of := func(d engine.DType, shape ...int) weights.Stored {
		n := d.Size()
		for _, k := range shape {
			n *= k
		}
		return weights.Stored{DType: d, Shape: shape, Data: make([]byte, n)}
	}
	const good = `"group_size": 16, "convrot_groupsize": 16`
	for _, c := range []struct {
		want, options, name string
		change              weights.Stored // no shape: the tensor is missing
	}{
		{"", good, "", weights.Stored{}},
		{"", good, "weight", of(engine.U8, 4, 16)},
		{"", good, "weight_s_rel", of(engine.F32, 4, 2)},
		{"", good, "weight_codebook", weights.Stored{}},
		{"weight is f32 [4 16], want a matrix of i8", good, "weight", of(engine.F32, 4, 16)},
		{"weight is i8 [64], want a matrix of i8", good, "weight", of(engine.I8, 64)},
		{
			"weight_s_rel is missing, want numbers of shape [4 2], for a weight of [4, 32] in groups of 16", good,
			"weight_s_rel",
			weights.Stored{},
		},
		{"weight_s_rel is f8_e4m3 [2 4], want numbers of shape [4 2]", good, "weight_s_rel", of(engine.F8E4M3, 2, 4)},
		{"weight_s_rel is i8 [4 2]", good, "weight_s_rel", of(engine.I8, 4, 2)},
		{"weight_s_channel is missing, want numbers of shape [4]", good, "weight_s_channel", weights.Stored{}},
		{"weight_s_channel is f32 [4 1], want", good, "weight_s_channel", of(engine.F32, 4, 1)},
		{"weight_codebook is f32 [15], want numbers of shape [16]", good, "weight_codebook", of(engine.F32, 15)},
		{
			"weight_correction, which has the zero points of groups, is not read", good, "weight_correction",
			of(engine.BF16, 2, 4),
		},
		{
			"group_size is 24, must be 4, 8 or a multiple of 16 that divides the 32 inputs",
			`"group_size": 24, "convrot_groupsize": 16`, "",
			weights.Stored{},
		},
		{"group_size is 0, must be", `"params": {"group_size": 0, "convrot_groupsize": 16}`, "", weights.Stored{}},
		{"group_size is 2, must be", `"group_size": 2, "convrot_groupsize": 16`, "", weights.Stored{}},
		{"group_size is 64, must be", `"group_size": 64, "convrot_groupsize": 16`, "", weights.Stored{}},
		{"group_size is -16, must be", `"group_size": -16, "convrot_groupsize": 16`, "", weights.Stored{}},
		{
			"rotated in groups of 256 of 32 inputs: groups of a rotation must divide K", `"group_size": 16`, "",
			weights.Stored{},
		},
		{
			"rotated in groups of 8 of 32 inputs: groups of a rotation are powers of 4",
			`"group_size": 16, "convrot_groupsize": 8`, "",
			weights.Stored{},
		},
		{"convrot_groupsize is 0, must be a power of 4", `"group_size": 16, "convrot_groupsize": 0`, "", weights.Stored{}},
	} {
		mark := `{"format": "asym_w4a8_int8", ` + c.options + `}`
		set := map[string]weights.Stored{
			"weight": of(engine.I8, 4, 16), "weight_s_rel": of(engine.F8E4M3, 4, 2), "weight_s_channel": of(engine.F32, 4),
			"weight_codebook": of(engine.F32, 16),
			"comfy_quant":     {DType: engine.U8, Shape: []int{len(mark)}, Data: []byte(mark)},
		}
		if set[c.name] = c.change; c.change.Shape == nil {
			delete(set, c.name)
		}
		named := map[string]weights.Stored{}
		for name, s := range set {
			named["x."+name] = s
		}
		var n net
		opt := weights.Options{Model: "test", Dims: map[string]int{"N": 4, "K": 32}}
		loaded, err := weights.Load(ref.New(), weights.FromMap(named), &n, opt)
		switch {
		case err == nil && c.want == "":
			loaded.Close()
		case err == nil || c.want == "" || !strings.Contains(err.Error(), "layer x, quantised as asym_w4a8_int8: "+c.want):
			t.Errorf("%s without or with another %q: got error %v, want one that says %q", mark, c.name, err, c.want)
		}
	}
}
