package weights

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// metadataKey is the metadata entry in which files that have no `X.comfy_quant` say how layers are quantized.
const metadataKey = "_quantization_metadata"

// quantisation says how one layer is stored: the JSON of `X.comfy_quant`, or of the layer's entry in the metadata. The
// options may also be in the object Params.
type quantisation struct {
	Format string `json:"format"`
	quantOptions
	Params json.RawMessage `json:"params"`
}

type quantOptions struct {
	Rotated *bool `json:"convrot"`           // int8 only
	Turned  *int  `json:"convrot_groupsize"` // inputs that were rotated together
	Group   *int  `json:"group_size"`        // inputs that share a scale, of asym_w4a8_int8
}

// options returns those of the layer, none of them nil.
func (q *quantisation) options() quantOptions {
	inner, no, turned, group := quantOptions{}, false, 256, 16
	_ = json.Unmarshal(q.Params, &inner) // anything but an object counts as absent
	return quantOptions{
		cmp.Or(q.Rotated, inner.Rotated, &no), cmp.Or(q.Turned, inner.Turned, &turned), cmp.Or(q.Group, inner.Group, &group),
	}
}

// formats returns the quantizations of safetensors files that are supported (ComfyUI QUANTIZATION.md), each with the
// function that joins the tensors of layer X. Input scales of fp8, nvfp4 and mxfp8 are for products in these types,
// which are not computed here.
func formats() map[string]func(s *Set, x string, q *quantisation) error {
	return map[string]func(s *Set, x string, q *quantisation) error{
		"float8_e4m3fn": nil, "float8_e5m2": nil, // joinOldFP8 handles their names too
		"int8_tensorwise": joinInt8, "asym_w4a8_int8": joinW4A8, "nvfp4": joinNVFP4, "mxfp8": joinMXFP8,
	}
}

// foreign are the quantizations of other programs, by a part of the names of their tensors behind that of the layer.
var foreign = []struct{ part, name string }{
	{".weight.quant_state.bitsandbytes__nf4", "NF4 by bitsandbytes"},
	{".weight.quant_state.bitsandbytes__fp4", "FP4 by bitsandbytes"},
	{".weight.absmax", "4 bits by bitsandbytes"},
	{".SCB", "LLM.int8 by bitsandbytes"},
	{".wscales", "SVDQuant by Nunchaku"},
	{".weight._data", "8 or 4 bits by quanto"},
	{".scaled_zeros", "AWQ"},
	{".qzeros", "GPTQ or AWQ"},
}

// foreign returns an error that names the program that quantized a layer, if the set holds one of another program.
func (s *Set) foreign() error {
	names := slices.Sorted(maps.Keys(s.tensors))
	for _, f := range foreign {
		for _, name := range names {
			if x, _, ok := strings.Cut(name, f.part); ok {
				return notRead(x, f.name)
			}
		}
	}
	return nil
}

func notRead(layer, format string) error {
	return fmt.Errorf("layer %s is quantised as %s, which is not read (read are: %s, and GGUF files)", layer, format,
		strings.Join(Supported(), ", "))
}

// Supported returns the names of the quantizations of safetensors files that can be read, sorted.
func Supported() []string {
	return slices.Sorted(maps.Keys(formats()))
}

// join turns each quantized layer's tensors (weight, scales, markers) into one. The first layer whose format is not
// supported or whose scales are missing becomes the error that Open and Load return.
func (s *Set) join(metadata string) {
	layers, err := s.layers(metadata)
	if err = cmp.Or(err, s.foreign()); err != nil {
		s.refused = err
		return
	}
	for _, x := range slices.Sorted(maps.Keys(layers)) {
		q := layers[x]
		join, ok := formats()[q.Format]
		if !ok {
			s.refused = notRead(x, strconv.Quote(q.Format))
			return
		}
		if _, ok := s.tensors[x+".weight"]; !ok || join == nil {
			continue // Load reports a missing weight
		}
		if err := join(s, x, q); err != nil {
			s.refused = fmt.Errorf("layer %s, quantised as %s: %w", x, q.Format, err)
			return
		}
	}
	s.refused = s.joinOldFP8()
}

// maxMarker bounds the JSON of a layer; real ones have about 30 bytes.
const maxMarker = 1 << 16

// layers reads and removes the quantization markers of layers.
func (s *Set) layers(metadata string) (map[string]*quantisation, error) {
	var listed struct {
		Layers map[string]*quantisation `json:"layers"`
	}
	if metadata != "" {
		if err := json.Unmarshal([]byte(metadata), &listed); err != nil {
			return nil, fmt.Errorf("metadata %s: %w", metadataKey, err)
		}
	}
	out := map[string]*quantisation{}
	for x, q := range listed.Layers {
		if q == nil {
			return nil, fmt.Errorf("metadata %s: layer %s has no object", metadataKey, x)
		}
		out[x] = q
	}
	for name, t := range s.tensors {
		x, ok := strings.CutSuffix(name, ".comfy_quant")
		if !ok {
			continue
		}
		q := new(quantisation)
		data := t.raw()
		text := data.Slice(0, min(data.Len(), maxMarker)).Bytes()
		if err := json.Unmarshal(text, q); err != nil || q.Format == "" {
			return nil, fmt.Errorf("tensor %s is no JSON object with a format (%.80q)", name, text)
		}
		out[x] = q
		delete(s.tensors, name)
	}
	return out, nil
}

// take returns a tensor and removes it from the set.
func (s *Set) take(name string) (Stored, bool) {
	t, ok := s.tensors[name]
	delete(s.tensors, name)
	return t, ok
}

// joinInt8 joins 8-bit weights, which may be rotated, with their scale: one for the matrix or one per row.
func joinInt8(s *Set, x string, q *quantisation) error {
	w := s.tensors[x+".weight"]
	scale, ok := s.take(x + ".weight_scale")
	switch {
	case w.DType != engine.I8 || len(w.Shape) != 2:
		return fmt.Errorf("weight is %s %v, want a matrix of i8", w.DType, w.Shape)
	case !ok || scale.DType > engine.F64 || scale.Len() != 1 && scale.Len() != w.Shape[0]:
		return fmt.Errorf("weight_scale is missing or has another size than 1 or %d", w.Shape[0])
	}
	if o := q.options(); *o.Rotated {
		w.Rotated = *o.Turned
	}
	w.Scales = scale.F32()
	if len(w.Scales) == 1 {
		w.Scales = slices.Repeat(w.Scales, w.Shape[0])
	}
	return s.storeInt8(x, w)
}

// storeInt8 replaces the weight of a layer by a matrix of i8.
func (s *Set) storeInt8(x string, w Stored) error {
	if rule := engine.RotationRule(w.Rotated, w.Shape[1]); rule != "" {
		return fmt.Errorf("rotated in groups of %d of %d inputs: %s", w.Rotated, w.Shape[1], rule)
	}
	s.tensors[x+".weight"] = w
	return nil
}

// blockScales holds the scales of groups of inputs in the order of cuBLAS: tiles of 128 rows and 4 groups.
type blockScales struct {
	data   datafile.Span
	groups int // per row
}

// tileBytes returns the bytes of the scales of 128 rows.
func (b blockScales) tileBytes() int { return (b.groups + 3) / 4 * 512 }

// rows reads the scales of rows [first, last] and returns the function that gives the scale of a group of a row.
func (b blockScales) rows(first, last int) func(row, group int) byte {
	from := first / 128
	data := b.data.Slice(from*b.tileBytes(), (last/128+1)*b.tileBytes()).Bytes()
	return func(row, group int) byte {
		return data[(row/128-from)*b.tileBytes()+group/4*512+row%32*16+row%128/32*4+group%4]
	}
}

// blocks returns a matrix [n, k] whose codes are in data, with b as the scales of its groups, as blocks of that form,
// which have two groups; nil if k ends inside a block.
func (b blockScales) blocks(data datafile.Span, n, k int, form *engine.Blocks) *blocks {
	if n == 0 || k == 0 || k%form.Elements != 0 {
		return nil
	}
	row, codes := data.Len()/n, form.Bytes-2
	return &blocks{form: form, k: k, pieces: []lines{{count: n, make: func(dst []byte, first, count int) {
		if count == 0 {
			return
		}
		from, scale := data.Slice(first*row, (first+count)*row).Bytes(), b.rows(first, first+count-1)
		for r := first; r < first+count; r++ {
			for g := 0; g < b.groups; g += 2 {
				dst[0], dst[1] = scale(r, g), scale(r, g+1)
				copy(dst[2:], from[:codes])
				dst, from = dst[form.Bytes:], from[codes:]
			}
		}
	}}}}
}

// takeBlockScales takes x's scales, one per group of per inputs, from the set and checks their size for a weight of
// [n, k].
func (s *Set) takeBlockScales(x string, n, k, per int) (blockScales, error) {
	b := blockScales{groups: k / per}
	scale, ok := s.take(x + ".weight_scale")
	b.data = scale.raw()
	if want := (n + 127) / 128 * b.tileBytes(); !ok || b.data.Len() != want || scale.Len() != want || k%per != 0 {
		return b, fmt.Errorf("weight_scale is missing or has another size than %d bytes, for a weight of [%d, %d]", want,
			n, k)
	}
	return b, nil
}

// joinNVFP4 joins 4-bit numbers, two per byte with the first one in the high half, with an E4M3 scale per 16 inputs and
// one scale for the matrix. Number times E4M3 scale is exact in bf16.
func joinNVFP4(s *Set, x string, _ *quantisation) error {
	w := s.tensors[x+".weight"]
	if len(w.Shape) != 2 || w.DType.Size() != 1 {
		return fmt.Errorf("weight is %s %v, want a matrix of u8", w.DType, w.Shape)
	}
	n, k, data := w.Shape[0], 2*w.Shape[1], w.raw()
	if 2*data.Len() != n*k {
		return fmt.Errorf("weight of shape %v has %d bytes", w.Shape, data.Len())
	}
	b, err := s.takeBlockScales(x, n, k, 16)
	if err != nil {
		return err
	}
	whole, ok := s.take(x + ".weight_scale_2")
	if !ok || whole.DType > engine.F64 || whole.Len() != 1 {
		return fmt.Errorf("weight_scale_2 is missing or is no single number")
	}
	codes := [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	s.take(x + ".input_scale")
	return s.store(x, Stored{
		DType: engine.BF16, Shape: []int{n, k}, Scale: whole.F32()[0], file: w.file,
		packed: b.blocks(data, n, k, engine.NVFP4()),
		make: eachBF16(func(lo, hi int) func(i int) float32 {
			pairs, scale := data.Slice(lo/2, (hi+1)/2).Bytes(), b.rows(lo/k, (hi-1)/k)
			return func(i int) float32 {
				code := pairs[i/2-lo/2] >> (4 * (1 - i%2))
				v := codes[code&7] * engine.F32FromF8E4M3(scale(i/k, i%k/16))
				if code&8 != 0 {
					v = -v
				}
				return v
			}
		}),
	})
}

// eachBF16 returns a Stored.make whose element i is value(i). What value needs for elements [lo, hi), at least one, is
// read first.
func eachBF16(read func(lo, hi int) (value func(i int) float32)) func(dst []byte, lo, hi int) {
	return func(dst []byte, lo, hi int) {
		if lo >= hi {
			return
		}
		value := read(lo, hi)
		for i := lo; i < hi; i++ {
			engine.Narrow(dst[2*(i-lo):], []float32{value(i)}, engine.BF16)
		}
	}
}

// scaledFP8 returns an fp8 matrix with its scales: one for each row, or of E4M3 one for each block of 128 x 128 or for
// each 128 inputs of a row. ok is false for others.
func (s Stored) scaledFP8(scale Stored) (_ Stored, ok bool) {
	const block = 128
	n, k, tiles := s.Shape[0], s.Shape[1], (s.Shape[1]+block-1)/block
	rows := block // that share a scale
	switch {
	case scale.DType > engine.F64 || s.DType != engine.F8E4M3 && s.DType != engine.F8E5M2:
		return s, false
	case scale.Len() == n && scale.Shape[0] == n:
		s.Scales = scale.F32()
		return s, true
	case s.DType == engine.F8E5M2 || !slices.Equal(scale.Shape, []int{n, tiles}) &&
		!slices.Equal(scale.Shape, []int{(n + block - 1) / block, tiles}):
		return s, false
	case scale.Shape[0] == n:
		rows = 1
	}
	data, scales, form := s.raw(), scale.F32(), engine.F8Blocks()
	s.DType, s.Data, s.span = engine.BF16, nil, datafile.Span{}
	s.make = eachBF16(func(lo, hi int) func(i int) float32 {
		codes := data.Slice(lo, hi).Bytes()
		return func(i int) float32 {
			return engine.F32FromF8E4M3(codes[i-lo]) * scales[i/k/rows*tiles+i%k/block]
		}
	})
	if k%block != 0 {
		return s, true
	}
	s.packed = &blocks{form: form, k: k, pieces: []lines{{count: n, make: func(dst []byte, first, count int) {
		codes := data.Slice(first*k, (first+count)*k).Bytes()
		for row := first; row < first+count; row++ {
			for t := range tiles {
				binary.LittleEndian.PutUint32(dst, math.Float32bits(scales[row/rows*tiles+t]))
				copy(dst[4:form.Bytes], codes[:block])
				dst, codes = dst[form.Bytes:], codes[block:]
			}
		}
	}}}}
	return s, true
}

// joinMXFP8 joins E4M3 numbers with a power of two per 32 inputs; the product is exact in bf16.
func joinMXFP8(s *Set, x string, _ *quantisation) error {
	w := s.tensors[x+".weight"]
	if len(w.Shape) != 2 || w.DType != engine.F8E4M3 {
		return fmt.Errorf("weight is %s %v, want a matrix of f8_e4m3", w.DType, w.Shape)
	}
	k := w.Shape[1]
	b, err := s.takeBlockScales(x, w.Shape[0], k, 32)
	if err != nil {
		return err
	}
	data := w.raw()
	s.take(x + ".input_scale")
	w.DType, w.Data, w.span = engine.BF16, nil, datafile.Span{}
	w.packed = b.blocks(data, w.Shape[0], k, engine.MXFP8())
	w.make = eachBF16(func(lo, hi int) func(i int) float32 {
		codes, scale := data.Slice(lo, hi).Bytes(), b.rows(lo/k, (hi-1)/k)
		return func(i int) float32 {
			e := scale(i/k, i%k/32)
			if e == 0 {
				return 0
			}
			return engine.F32FromF8E4M3(codes[i-lo]) * engine.F32FromBF16(uint16(e)<<7)
		}
	})
	return s.store(x, w)
}

// store replaces the weight of a layer by the joined one, which may be padded with zeros. Input scales that belong to
// the weights themselves (AWQ) become factors of its columns.
func (s *Set) store(x string, w Stored) error {
	w.padded = true
	pre, ok := s.take(x + ".pre_quant_scale")
	switch {
	case !ok:
		s.tensors[x+".weight"] = w
		return nil
	case pre.Len() > w.Shape[1] || pre.DType > engine.F64:
		return fmt.Errorf("pre_quant_scale is %s %v, want at most %d numbers", pre.DType, pre.Shape, w.Shape[1])
	}
	w = w.within([]int{w.Shape[0], pre.Len()})
	w.inputs = pre.F32()
	s.tensors[x+".weight"] = w
	return nil
}

// within returns the corner of the given shape of a padded matrix, and other tensors unchanged.
func (s Stored) within(shape []int) Stored {
	if !s.padded || len(shape) != 2 || shape[0] > s.Shape[0] || shape[1] > s.Shape[1] || slices.Equal(shape, s.Shape) {
		return s
	}
	wide := s.Shape[1]
	out := s.gathered(slices.Clone(shape), shape[1], func(row int) int { return row * wide })
	out.packed = s.packed.rows(0, shape[0]).columns(shape[1])
	if s.inputs != nil {
		out.inputs = s.inputs[:shape[1]]
	}
	return out
}

// wideRows is wide for a matrix with scales of rows: these are applied and rotations undone.
func (s Stored) wideRows(dst []float32, lo int) {
	k, group := s.Len()/s.Shape[0], max(s.Rotated, 1)
	var line []float32
	var scratch []byte
	for at := 0; at < len(dst); {
		row, from := (lo+at)/k, (lo+at)%k
		to := min(k, from+len(dst)-at)
		a, b := from/group*group, (to+group-1)/group*group
		line = slices.Grow(line[:0], b-a)[:b-a]
		engine.Widen(line, s.elements(&scratch, row*k+a, row*k+b), s.DType)
		for i := range line {
			line[i] *= s.Scales[row]
		}
		if s.Rotated > 0 {
			engine.Rotate(line, s.Rotated)
		}
		at += copy(dst[at:], line[from-a:to-a])
	}
}

// as returns the values of s, with scales applied, as a tensor of type d that is computed on demand.
func (s Stored) as(d engine.DType) Stored {
	from := s
	s.DType, s.Data, s.span, s.Scale, s.Scales, s.Rotated, s.packed = d, nil, datafile.Span{}, 0, nil, 0, nil
	s.unrounded, s.inputs = false, nil
	s.make = func(dst []byte, lo, hi int) {
		v := make([]float32, min(hi-lo, wideChunk))
		for at := lo; at < hi; at += len(v) {
			v = v[:min(len(v), hi-at)]
			from.wide(v, at)
			engine.Narrow(dst[d.Size()*(at-lo):], v, d)
		}
	}
	return s
}

// usable reports whether Load can handle the elements.
func (s Stored) usable() bool {
	return s.DType <= engine.F64 || s.DType == engine.I8 && s.Scales != nil
}
