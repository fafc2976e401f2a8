package graph

import (
	"fmt"
	"math"
	"math/big"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// literal coerces and checks a value; the problem is nil if it may be used.
func (v *validation) literal(k *Class, in *Input, val any) (any, *problem) {
	given := val
	var err error
	switch in.Type {
	case "INT":
		val, err = pyjson.Int(val)
	case "FLOAT":
		val, err = pyjson.Float(val)
	case "STRING":
		val = pyjson.Str(val)
	case "BOOLEAN":
		val = pyjson.Bool(val)
	case "COMBO":
	default:
		if in.takesAny() {
			return val, nil
		}
		return nil, &problem{
			codeExpectedLink, fmt.Sprintf("Input %s takes a link [node id, slot] to a node that gives %s", in.Name, in.Type),
			fmt.Sprintf("%s, got %s", in.Name, pyjson.Excerpt(pyjson.Repr(val))),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", val),
		}
	}
	if err != nil {
		return nil, &problem{
			codeInvalidInput, "Failed to convert an input value to a " + in.Type + " value",
			fmt.Sprintf("%s, %s, %s", in.Name, pyjson.Excerpt(pyjson.Str(given)), pyjson.Excerpt(err.Error())),
			pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", given,
				"exception_message", pyjson.Excerpt(err.Error())),
		}
	}
	if slices.Contains(k.Own, in.Name) {
		return val, nil
	}
	if p := v.limits(k, in, val); p != nil {
		return nil, p
	}
	if in.Type != "COMBO" {
		return val, nil
	}
	choices := v.choices(in)
	if slices.Contains(choices, val) {
		return val, nil
	}
	config := v.config(k, in)
	allowed := pyjson.Repr(choices)
	if len(choices) > 20 {
		config, allowed = nil, fmt.Sprintf("(list of length %d)", len(choices))
	}
	return nil, &problem{
		codeNotInList, messageNotInList,
		fmt.Sprintf("%s: %s not in %s%s", in.Name, pyjson.Excerpt(pyjson.Repr(val)), allowed, pickled(in, val)),
		pyjson.NewObject("input_name", in.Name, "input_config", config, "received_value", val),
	}
}

// pickled tells who names a model file that Python would have to run why it is in no list, "" for others.
func pickled(in *Input, val any) string {
	name, _ := val.(string)
	switch strings.ToLower(filepath.Ext(name)) {
	case ".pth", ".pt", ".ckpt", ".bin", ".pkl":
		if in.Files != "" && in.Files != files.KindUpscale {
			return ": pickled files could run code and are never opened; get or make the safetensors form"
		}
	}
	return ""
}

// limits checks min and max, and that a float is a number at all.
func (v *validation) limits(k *Class, in *Input, val any) *problem {
	if in.Options == nil {
		return nil
	}
	extra := func() *pyjson.Object {
		return pyjson.NewObject("input_name", in.Name, "input_config", v.config(k, in), "received_value", val)
	}
	if f, ok := val.(float64); ok && in.Type == "FLOAT" && math.IsNaN(f) {
		return &problem{
			codeInvalidInput, "Failed to convert an input value to a FLOAT value",
			in.Name + ", nan, not a number", extra(),
		}
	}
	if lo, ok := in.Options.Get("min"); ok && compare(val, lo) < 0 {
		return &problem{codeTooSmall, fmt.Sprintf("Value %s smaller than min of %s", pyjson.Excerpt(pyjson.Str(val)),
			pyjson.Str(lo)), in.Name, extra()}
	}
	if hi, ok := in.Options.Get("max"); ok && compare(val, hi) > 0 {
		return &problem{codeTooBig, fmt.Sprintf("Value %s bigger than max of %s", pyjson.Excerpt(pyjson.Str(val)),
			pyjson.Str(hi)), in.Name, extra()}
	}
	return nil
}

// compare orders two numbers of any type exactly; text is never out of limits.
func compare(a, b any) int {
	x, okx := toBig(a)
	y, oky := toBig(b)
	if !okx || !oky {
		return 0
	}
	return x.Cmp(y)
}

func toBig(v any) (*big.Float, bool) {
	f := new(big.Float).SetPrec(16384)
	switch n := v.(type) {
	case int64:
		return f.SetInt64(n), true
	case uint64:
		return f.SetUint64(n), true
	case *big.Int:
		return f.SetInt(n), true
	case float64:
		return f.SetFloat64(n), true
	}
	return nil, false
}

func (v *validation) choices(in *Input) []any {
	if in.Files == "" {
		return in.choices(v.roots)
	}
	if l, ok := v.lists[in.Files]; ok {
		return l
	}
	l := in.choices(v.roots)
	v.lists[in.Files] = l
	return l
}

// config is the [type, options] pair as ComfyUI puts it into error bodies: always two items; combos of new-style
// classes show their options.
func (v *validation) config(k *Class, in *Input) any {
	c := in.config(k, v.roots)
	if len(c) == 1 {
		c = append(c, pyjson.NewObject())
	}
	return c
}
