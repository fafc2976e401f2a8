package weights

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"patchbay/models/dit"
)

// tag is the parsed struct tags of one field.
//
//	weight:"img_attn.qkv"            *engine.Weight: tensors img_attn.qkv.weight and img_attn.qkv.bias
//	weight:"norm.query_norm.scale"   engine.Tensor: the tensor of exactly that name, as f32
//	weight:"double_blocks"           struct or *struct (nil: not part of this model): names below it get "double_blocks."
//	                                 slice of them (made by the caller): names get "double_blocks.0." and so on
//	weight:"img_"                    struct: a trailing underscore joins without a dot: "img_attn.qkv"
//	weight:""                        struct: its names join those of the outer struct
//
// Flags after the name: nobias (there is none), optbias (there may be one), optional (the tensor may be missing
// altogether), conv ([N, C, KY, KX] is stored, [N, KY*KX*C] is packed), keep (a Tensor stored as bf16 stays bf16),
// minus1 (1 is subtracted from a Tensor: a norm weight as the scale of AdaLN), plus1 (1 is added), alt=NAME (another
// accepted name), perm=NAME (row i of the weight, element i of a vector, is stored row Options.Perms[NAME][i]).
//
// Further keys: shape:"3E+F,E" is the stored shape in Options.Dims; rows:"0:3E" selects a range of stored rows (fused
// matrices); split:"rows 3E" or split:"cols E+F" says how a tensor group splits the matrix: each named group of rows or
// columns is shared among the ranks in balanced ranges of whole Options.Units; use:"embed" says what the weight, or
// everything in the struct, is for (dit.Use).
type tag struct {
	name     string
	alt      string
	noBias   bool
	optBias  bool
	optional bool
	conv     bool
	keep     bool
	add      float32 // to every element of a Tensor
	perm     string
	shape    []string
	rows     string
	split    string
	use      dit.Use
}

func parseTag(f reflect.StructField) (tag, bool, error) {
	text, ok := f.Tag.Lookup("weight")
	if !ok {
		return tag{}, false, nil
	}
	parts := strings.Split(text, ",")
	t := tag{name: parts[0], rows: f.Tag.Get("rows"), split: f.Tag.Get("split"), use: dit.Use(f.Tag.Get("use"))}
	if s := f.Tag.Get("shape"); s != "" {
		t.shape = strings.Split(s, ",")
	}
	flags := map[string]*bool{
		"nobias": &t.noBias, "optbias": &t.optBias, "optional": &t.optional, "conv": &t.conv, "keep": &t.keep,
	}
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		if flag := flags[key]; flag != nil {
			*flag = true
			continue
		}
		switch key {
		case "minus1":
			t.add = -1
		case "plus1":
			t.add = 1
		case "alt":
			t.alt = value
		case "perm":
			t.perm = value
		default:
			return tag{}, false, fmt.Errorf("field %s: unknown option %q in weight tag", f.Name, p)
		}
	}
	return t, true, nil
}

// dims evaluates sums of products such as "3E+F" or "4C*p*p" over named sizes.
type dims map[string]int

func (d dims) eval(expr string) (int, error) {
	sum := 0
	for term := range strings.SplitSeq(expr, "+") {
		product := 1
		for factor := range strings.SplitSeq(term, "*") {
			v, err := d.factor(strings.TrimSpace(factor))
			if err != nil {
				return 0, fmt.Errorf("dimension %q: %w", expr, err)
			}
			product *= v
		}
		sum += product
	}
	return sum, nil
}

// factor evaluates "3", "E" or "3E".
func (d dims) factor(s string) (int, error) {
	n, size := coefficient(s)
	v, ok := d[size]
	switch {
	case s == "":
		return 0, fmt.Errorf("empty factor")
	case size == "":
		return n, nil
	case !ok:
		return 0, fmt.Errorf("size %q is not in Options.Dims", size)
	}
	return n * v, nil
}

// coefficient splits "3E" into 3 and "E"; a missing number is 1.
func coefficient(s string) (n int, size string) {
	size = strings.TrimLeft(s, "0123456789")
	if digits := s[:len(s)-len(size)]; digits != "" {
		n, _ = strconv.Atoi(digits) // only digits
		return n, size
	}
	return 1, size
}

// shape evaluates every dimension.
func (d dims) shape(exprs []string) ([]int, error) {
	out := make([]int, len(exprs))
	for i, e := range exprs {
		v, err := d.eval(e)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// span is a half-open range of rows or columns.
type span struct{ lo, hi int }

// rowRange evaluates "lo:hi".
func (d dims) rowRange(expr string) (span, error) {
	lo, hi, ok := strings.Cut(expr, ":")
	if !ok {
		return span{}, fmt.Errorf("rows %q: want lo:hi", expr)
	}
	a, err := d.eval(lo)
	if err != nil {
		return span{}, err
	}
	b, err := d.eval(hi)
	return span{a, b}, err
}

// term is rows or columns that a tensor group shares in whole units.
type term struct{ size, unit, units int }

// groups evaluates "3E+F".
func (d dims) groups(expr string, units map[string]int) (out []term, err error) {
	for text := range strings.SplitSeq(expr, "+") {
		count, letter := coefficient(text)
		size, ok := d[letter]
		if !ok {
			return nil, fmt.Errorf("split %q: size %q is not in Options.Dims", expr, letter)
		}
		unit := max(units[letter], 1)
		out = append(out, slices.Repeat([]term{{size, unit, size / unit}}, count)...)
	}
	return out, nil
}
