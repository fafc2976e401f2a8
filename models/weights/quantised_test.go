package weights_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/deferred"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// layer is one case of modern33/quant.json or w4a8.json: a linear layer as stored in ComfyUI's files.
type layer struct {
	key        string
	Format     string                        `json:"format"`
	ComfyQuant string                        `json:"comfy_quant"`
	Tensors    map[string][2]json.RawMessage `json:"tensors"`
	Hex        map[string]string             `json:"hex"`
	Shape      []int                         `json:"shape"`
	Compute    string                        `json:"compute"`
	X          []int                         `json:"x"`
	XScale     float64                       `json:"x_scale"`
	Bias       bool                          `json:"bias"`
}

// layers returns the cases whose formats are supported, in order.
func layers(t *testing.T) []layer {
	t.Helper()
	var all map[string]json.RawMessage // of both files, whose keys differ
	for _, file := range []string{"modern33/quant.json", "modern33/w4a8.json"} {
		if err := golden.JSON(file, &all); err != nil {
			t.Fatal(err)
		}
	}
	kinds := []string{"int8_tensorwise", "int8_convrot", "fp8", "nvfp4", "mxfp8", "asym_w4a8_int8"}
	var out []layer
	for key, text := range all {
		kind, _, numbered := strings.Cut(key, "/")
		if !numbered || !slices.Contains(kinds, kind) {
			continue
		}
		l := layer{key: key}
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b layer) int { return strings.Compare(a.key, b.key) })
	if len(out) != 39 {
		t.Fatalf("%d layers, want 39", len(out))
	}
	return out
}

// dtype returns the type that the layer computes in.
func (l layer) dtype() engine.DType {
	if l.Compute == "bfloat16" {
		return engine.BF16
	}
	return engine.F32
}

// rounded returns the input of that name, rounded to the type that the layer computes in.
func (l layer) rounded(name string, n int, scale float64) []float32 {
	v := golden.Fill("input:quant/"+l.key+"/"+name, n, scale, 0)
	if l.dtype() == engine.BF16 {
		for i := range v {
			v[i] = engine.F32FromBF16(engine.BF16FromF32(v[i]))
		}
	}
	return v
}

// file writes the layer "net.x" as a safetensors file and opens it. If marked is set, a tensor names the format,
// otherwise the metadata does.
func (l layer) file(t *testing.T, marked bool) *weights.Set {
	t.Helper()
	types := map[string]string{
		"int8": "I8", "uint8": "U8", "float32": "F32", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
		"float8_e8m0fnu": "F8_E8M0",
	}
	var entries []safetensors.Tensor
	for name, info := range l.Tensors {
		var kind string
		e := safetensors.Tensor{Name: "net.x." + name}
		if json.Unmarshal(info[0], &kind) != nil || json.Unmarshal(info[1], &e.Shape) != nil || types[kind] == "" {
			t.Fatalf("%s: tensor %s is %s", l.key, name, info)
		}
		e.FileType = types[kind]
		var data []byte
		switch name {
		case "comfy_quant":
			if !marked {
				continue
			}
			data = []byte(l.ComfyQuant)
		case "bias":
			data = make([]byte, 4*l.Shape[0])
			engine.Narrow(data, l.rounded("b", l.Shape[0], 0.4), engine.F32)
		case "pre_quant_scale":
			data = make([]byte, 4*l.Shape[1])
			engine.Narrow(data, golden.Fill("input:quant/"+l.key+"/pre", l.Shape[1], 0.5, 1), engine.F32)
		default:
			var err error
			if data, err = hex.DecodeString(l.Hex[name]); err != nil {
				t.Fatal(err)
			}
		}
		e.Data = datafile.Of(data)
		entries = append(entries, e)
	}
	meta := map[string]string{}
	if !marked {
		meta["_quantization_metadata"] = `{"format_version": "1.0", "layers": {"net.x": ` + l.ComfyQuant + `}}`
	}
	var out bytes.Buffer
	if err := safetensors.Write(&out, meta, entries); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.OpenBytes(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return weights.FromFile(f).Prefix("net.")
}

// net is the layer as a model declares it.
type net struct {
	X *engine.Weight `weight:"x,optbias" shape:"N,K"`
}

func (l layer) options() weights.Options {
	return weights.Options{Model: "test", Dims: map[string]int{"N": l.Shape[0], "K": l.Shape[1]}}
}

// run loads the layer and multiplies the case's x.
func (l layer) run(t *testing.T, ops engine.Ops, set *weights.Set) []float32 {
	t.Helper()
	var n net
	loaded, err := weights.Load(ops, set, &n, l.options())
	if err != nil {
		t.Fatalf("%s: %v", l.key, err)
	}
	defer loaded.Close()
	k := l.Shape[1]
	rows := 1
	for _, d := range l.X[:len(l.X)-1] {
		rows *= d
	}
	tensor := func(n int) engine.Tensor {
		buf, err := ops.Alloc(rows * n * 4)
		if err != nil {
			t.Fatal(err)
		}
		return engine.NewTensor(buf, l.dtype(), rows, n)
	}
	x, y := tensor(k), tensor(l.Shape[0])
	ops.Upload(x, l.rounded("x", rows*k, l.XScale))
	ops.Linear(y, x, n.X, engine.Epilogue{})
	out := make([]float32, y.Len())
	if err := ops.Download(out, y).Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// near fails the test unless got is within tol of want, relative to the largest value.
func near(t *testing.T, what string, got, want []float32, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	largest, worst := 0.0, 0.0
	for i := range want {
		largest = max(largest, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst = d
		}
	}
	if !(worst <= tol*largest) {
		t.Errorf("%s: off by %.3g of the largest value, bound %g", what, worst/largest, tol)
	}
}

// results returns a function that reads what one of those files has under a key.
func results(t *testing.T, names ...string) func(key string) []float32 {
	t.Helper()
	var files []*safetensors.File
	for _, name := range names {
		f, err := golden.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	return func(key string) []float32 {
		var e safetensors.Tensor
		ok := false
		for i := 0; i < len(files) && !ok; i++ {
			e, ok = files[i].Entry(key)
		}
		if !ok {
			t.Fatalf("no recorded %s", key)
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestQuantisedLayersMatchComfyUI compares weights and products of every supported quantization with those that ComfyUI
// 0.33.0 computed from the same bytes on a CPU: int8, also that made of 4 bits, with rounded activations, all others
// with the dequantized weights.
func TestQuantisedLayersMatchComfyUI(t *testing.T) {
	want := results(t, "modern33/quant.safetensors", "modern33/w4a8.safetensors")
	for _, l := range layers(t) {
		for _, marked := range []bool{true, false} {
			set := l.file(t, marked)
			if names := slices.DeleteFunc(slices.Clone(set.Names()), func(n string) bool {
				return n == "x.weight" || n == "x.bias"
			}); len(names) > 0 {
				t.Errorf("%s: %v are left beside the weight", l.key, names)
			}
			stored, _ := set.Get("x.weight")
			values := weights.Corner(stored, l.Shape).F32()
			tol := 2e-6
			if l.dtype() == engine.BF16 {
				tol = 1.0 / 256
				if l.Format == "asym_w4a8_int8" {
					tol *= 2 // it is rounded to bf16 before it is rotated back, too
				}
			}
			expected := want(l.key + "#dequantised")
			if _, scaled := l.Tensors["pre_quant_scale"]; scaled { // it is part of our weight
				for i, by := range golden.Fill("input:quant/"+l.key+"/pre", l.Shape[1], 0.5, 1) {
					for row := range l.Shape[0] {
						expected[row*l.Shape[1]+i] *= by
					}
				}
			}
			near(t, l.key+" dequantised", values, expected, tol)
		}
		y, tol := l.key+"#y_dequantised", 2e-6
		if strings.Contains(l.Format, "int8") {
			y = l.key + "#y_default"
		}
		if l.dtype() == engine.BF16 {
			tol = 8e-3
		}
		goldenrun.EachOps(t, func(t *testing.T, ops engine.Ops) {
			near(t, l.key, l.run(t, ops, l.file(t, true)), want(y), tol)
		})
		near(t, l.key+" on ref", l.run(t, ref.New(), l.file(t, true)), want(y), tol)
		near(t, l.key+" deferred", l.run(t, deferred.New(goldenrun.NewOps()), l.file(t, true)), want(y), tol)
		near(t, l.key+" widened", l.run(t, goldenrun.NewOps(), l.file(t, true).Dequantized(engine.F32)),
			want(l.key+"#y_dequantised"), tol)
	}
}

// TestEarlierQuantisedLayersMatchComfyUI does the same with the layers recorded from ComfyUI 0.8.0, those of FP8 also
// in the form of older files, whose scale is named scale_weight.
func TestEarlierQuantisedLayersMatchComfyUI(t *testing.T) {
	var all map[string]json.RawMessage
	if err := golden.JSON("modern/quant.json", &all); err != nil {
		t.Fatal(err)
	}
	want, seen := results(t, "modern/quant.safetensors"), 0
	for key, text := range all {
		var c struct {
			Format      string
			Shape       []int
			Bytes       string          `json:"bytes_hex"`
			Scale       float32         `json:"weight_scale"`
			Scale2      float32         `json:"weight_scale_2"`
			Scales      string          `json:"weight_scale_hex"`
			ScalesShape json.RawMessage `json:"weight_scale_shape"`
			Bias        any
			OldForm     *struct {
				Elements int `json:"scaled_fp8_elements"`
			} `json:"old_form"`
		}
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if c.Format == "" {
			continue
		}
		seen++
		number := func(v float32) string {
			return hex.EncodeToString(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
		}
		raw := func(text string, args ...any) json.RawMessage { return json.RawMessage(fmt.Sprintf(text, args...)) }
		l := layer{
			key: key, Format: c.Format, ComfyQuant: fmt.Sprintf(`{"format": %q}`, c.Format), Shape: c.Shape,
			Compute: "float32", X: []int{3, c.Shape[1]}, XScale: golden.InputScale, Bias: c.Bias != nil,
		}
		l.Hex = map[string]string{"weight": c.Bytes, "weight_scale": number(c.Scale)}
		l.Tensors = map[string][2]json.RawMessage{
			"weight":       {raw("%q", c.Format), raw("[%d, %d]", c.Shape[0], c.Shape[1])},
			"weight_scale": {raw(`"float32"`), raw("[]")},
			"comfy_quant":  {raw(`"uint8"`), raw("[%d]", len(l.ComfyQuant))},
		}
		if c.Scales != "" {
			l.Hex["weight_scale"], l.Hex["weight_scale_2"] = c.Scales, number(c.Scale2)
			l.Tensors["weight"] = [2]json.RawMessage{raw(`"uint8"`), raw("[%d, %d]", c.Shape[0], c.Shape[1]/2)}
			l.Tensors["weight_scale"] = [2]json.RawMessage{raw(`"float8_e4m3fn"`), c.ScalesShape}
			l.Tensors["weight_scale_2"] = [2]json.RawMessage{raw(`"float32"`), raw("[]")}
		}
		if l.Bias {
			l.Tensors["bias"] = [2]json.RawMessage{raw(`"float32"`), raw("[%d]", c.Shape[0])}
		}
		sets := map[string]*weights.Set{"": l.file(t, true)}
		if c.OldForm != nil {
			data, _ := hex.DecodeString(c.Bytes)
			scale, _ := hex.DecodeString(number(c.Scale))
			old := map[string]weights.Stored{
				"x.weight":       {DType: engine.F8E4M3, Shape: c.Shape, Data: data},
				"x.scale_weight": {DType: engine.F32, Data: scale},
				"scaled_fp8":     {DType: engine.F8E4M3, Shape: []int{c.OldForm.Elements}, Data: make([]byte, c.OldForm.Elements)},
			}
			if l.Bias {
				bias, _ := sets[""].Get("x.bias")
				old["x.bias"] = bias
			}
			sets[", older form"] = weights.FromMap(old)
		}
		for form, set := range sets {
			stored, _ := set.Get("x.weight")
			near(t, key+form+" dequantised", weights.Corner(stored, c.Shape).F32(), want(key+"#dequantised"), 1e-7)
			near(t, key+form, l.run(t, goldenrun.NewOps(), set), want(key+"#y"), 2e-6)
		}
	}
	if seen != 6 {
		t.Errorf("%d layers, want 6", seen)
	}
}

// TestEmbeddingsOf8Bits compares rows of embedding tables that are quantized like weights with ComfyUI's.
func TestEmbeddingsOf8Bits(t *testing.T) {
	var all map[string]json.RawMessage
	if err := golden.JSON("modern33/quant.json", &all); err != nil {
		t.Fatal(err)
	}
	want := results(t, "modern33/quant.safetensors")
	for _, key := range []string{"embedding/0", "embedding/1", "embedding/3"} {
		var c struct {
			Quant string            `json:"comfy_quant"`
			Shape []int             `json:"shape"`
			IDs   [][]int           `json:"ids"`
			Hex   map[string]string `json:"hex"`
		}
		if err := json.Unmarshal(all[key], &c); err != nil {
			t.Fatal(err)
		}
		data, _ := hex.DecodeString(c.Hex["weight"])
		scale, _ := hex.DecodeString(c.Hex["weight_scale"])
		table, ok := weights.FromMap(map[string]weights.Stored{
			"x.weight":       {DType: engine.I8, Shape: c.Shape, Data: data},
			"x.weight_scale": {DType: engine.F32, Shape: []int{len(scale) / 4}, Data: scale},
			"x.comfy_quant":  {DType: engine.U8, Shape: []int{len(c.Quant)}, Data: []byte(c.Quant)},
		}).Get("x.weight")
		if !ok {
			t.Fatal("no table")
		}
		var got []float32
		for _, id := range slices.Concat(c.IDs...) {
			row, err := table.Rows(id, 1)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, row.F32()...)
		}
		near(t, key, got, want(key+"#rows"), 2e-6)
	}
}

// TestScalesOfWidthsThatAreNoMultipleOfATile reads layers whose scales fill their tiles of 128 rows and 4 groups only
// in part. The scales are written in the order in which PyTorch's to_blocked writes them (torchao,
// mx_formats/utils.py): tile after tile, along the rows first. All numbers are 1, so that every weight is its scale.
func TestScalesOfWidthsThatAreNoMultipleOfATile(t *testing.T) {
	const rows = 150
	exponent := func(row, group int) int { return (row*5+group*3)%13 - 6 }
	for _, c := range []struct {
		format string
		dtype  engine.DType
		per    int  // inputs of a group
		packed int  // numbers of a byte
		ones   byte // a byte of ones
		scale  func(exponent int) byte
	}{
		{"mxfp8", engine.F8E4M3, 32, 1, 0x38, func(e int) byte { return byte(127 + e) }},
		{"nvfp4", engine.U8, 16, 2, 0x22, func(e int) byte { return byte((7 + e) << 3) }},
	} {
		for _, groups := range []int{1, 3, 4, 5, 6, 8, 10} {
			var scales []byte
			for tile := 0; tile < rows; tile += 128 {
				for first := 0; first < groups; first += 4 {
					for lane := range 32 {
						for i := range 16 {
							row, group := tile+i/4*32+lane, first+i%4
							if row >= rows || group >= groups {
								scales = append(scales, 0)
								continue
							}
							scales = append(scales, c.scale(exponent(row, group)))
						}
					}
				}
			}
			k := groups * c.per
			mark := `{"format": "` + c.format + `"}`
			s, ok := weights.FromMap(map[string]weights.Stored{
				"x.weight": {
					DType: c.dtype, Shape: []int{rows, k / c.packed},
					Data: bytes.Repeat([]byte{c.ones}, rows*k/c.packed),
				},
				"x.weight_scale":   {DType: engine.U8, Shape: []int{len(scales)}, Data: scales},
				"x.weight_scale_2": weights.Floats([]float32{1}, 1),
				"x.comfy_quant":    {DType: engine.U8, Shape: []int{len(mark)}, Data: []byte(mark)},
			}).Get("x.weight")
			if !ok {
				t.Fatal("no weight")
			}
			for _, part := range [][2]int{{0, rows}, {0, 1}, {100, 40}, {128, 22}, {149, 1}} {
				cut, err := s.Rows(part[0], part[1])
				if err != nil {
					t.Fatal(err)
				}
				for i, got := range cut.F32() {
					row, col := part[0]+i/k, i%k
					if want := float32(math.Pow(2, float64(exponent(row, col/c.per)))); got != want {
						t.Fatalf("%s, %d groups, rows from %d on: element [%d, %d] is %v, want %v", c.format, groups, part[0], row,
							col, got, want)
					}
				}
			}
		}
	}
}

// TestSlicesOf8Bits cuts a rotated matrix as tensor groups do: by rows, by columns in whole rotation groups, which
// stay 8 bits, and by columns inside rotation groups, which do not. The products of column slices must add up to the
// product with unrounded x, within the error of rounding x.
func TestSlicesOf8Bits(t *testing.T) {
	const n, k, rows = 6, 128, 5
	codes, scales := make([]byte, n*k), make([]float32, n)
	for i := range codes {
		codes[i] = byte(i*89 + i/11)
	}
	for i := range scales {
		scales[i] = float32(i+1) / 1000
	}
	set := weights.FromMap(map[string]weights.Stored{
		"x.weight": {DType: engine.I8, Shape: []int{n, k}, Data: codes, Scales: scales, Rotated: 16},
	})
	ops := goldenrun.NewOps()
	x := golden.Input("slices of 8 bits", rows*k)
	product := func(dst any, w func() *engine.Weight, x []float32, rank, ranks int) ([]float32, engine.DType) {
		opt := weights.Options{Model: "test", Dims: map[string]int{"N": n, "K": k}, Rank: rank, Ranks: ranks}
		loaded, err := weights.Load(ops, set, dst, opt)
		if err != nil {
			t.Fatal(err)
		}
		defer loaded.Close()
		y := make([]float32, rows*w().N())
		ops.Linear(engine.FromF32(y, rows, w().N()), engine.FromF32(x, rows, w().K()), w(), engine.Epilogue{})
		return y, w().Base.DType
	}
	var whole net
	want, _ := product(&whole, func() *engine.Weight { return whole.X }, x, 0, 1)

	var byRows struct {
		X *engine.Weight `weight:"x,nobias" shape:"N,K" split:"rows N"`
	}
	for rank := range 3 {
		got, d := product(&byRows, func() *engine.Weight { return byRows.X }, x, rank, 3)
		for i := range rows {
			if !slices.Equal(got[2*i:2*i+2], want[n*i+2*rank:n*i+2*rank+2]) || d != engine.I8 {
				t.Fatalf("rows of rank %d, as %s, are not those of the whole", rank, d)
			}
		}
	}
	for ranks, stored := range map[int]engine.DType{2: engine.I8, 3: engine.BF16} {
		sum := make([]float32, rows*n)
		for rank := range ranks {
			var byCols struct {
				X *engine.Weight `weight:"x,nobias" shape:"N,K" split:"cols K"`
			}
			lo, hi := k*rank/ranks, k*(rank+1)/ranks
			var part []float32
			for i := range rows {
				part = append(part, x[i*k+lo:i*k+hi]...)
			}
			got, d := product(&byCols, func() *engine.Weight { return byCols.X }, part, rank, ranks)
			if d != stored {
				t.Errorf("column slice %d of %d is stored as %s, want %s", rank, ranks, d, stored)
			}
			for i, v := range got {
				sum[i] += v
			}
		}
		near(t, "columns", sum, want, 2e-2)
	}
}

// TestFormsHaveNames checks the name of the format of a file with 8-bit layers.
func TestFormsHaveNames(t *testing.T) {
	for rotated, want := range map[int]string{0: "int8", 16: "rotated int8"} {
		form, quantised := weights.FromMap(map[string]weights.Stored{
			"x.weight": {
				DType: engine.I8, Shape: []int{4, 16}, Data: make([]byte, 64), Scales: make([]float32, 4), Rotated: rotated,
			},
			"x.bias": {DType: engine.F32, Shape: []int{4}, Data: make([]byte, 16)},
		}).Form()
		if form != want || !quantised {
			t.Errorf("rotated in groups of %d: said to be %s, quantised: %v", rotated, form, quantised)
		}
	}
}

// TestWideBytes checks that a tensor counts with its bytes on a device whose only type narrower than bf16 is i8.
func TestWideBytes(t *testing.T) {
	set := weights.FromMap(map[string]weights.Stored{
		"i8":     {DType: engine.I8, Shape: []int{4, 64}, Data: make([]byte, 256), Scales: make([]float32, 4)},
		"fp8":    {DType: engine.F8E4M3, Shape: []int{8}, Data: make([]byte, 8), Scale: 0.5},
		"f16":    {DType: engine.F16, Shape: []int{8}, Data: make([]byte, 16)},
		"scaled": {DType: engine.F16, Shape: []int{8}, Data: make([]byte, 16), Scale: 0.5},
		"bias":   {DType: engine.F32, Shape: []int{4}, Data: make([]byte, 16)},
	})
	if n := set.WideBytes(); n != 4*(64+16)+16+16+32+16 || set.Bytes() != 256+8+16+16+16 {
		t.Errorf("%d bytes, %d wide: want 312 and 400", set.Bytes(), n)
	}
}
