package graph

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// literal coerces and checks a value; the problem is nil if the value is valid.
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
		return nil, v.wrong(k, in, val, fault.ExpectedLink,
			fmt.Sprintf("Input %s takes a link [node id, slot] to a node that gives %s", in.Name, in.Type),
			fmt.Sprintf("%s, got %s", in.Name, pyjson.Excerpt(pyjson.Repr(val))))
	}
	if err != nil {
		why := pyjson.Excerpt(err.Error())
		return nil, v.wrong(k, in, given, fault.InvalidInput, "Failed to convert an input value to a "+in.Type+" value",
			fmt.Sprintf("%s, %s, %s", in.Name, pyjson.Excerpt(pyjson.Str(given)), why), "exception_message", why)
	}
	if slices.Contains(k.SelfChecked, in.Name) && val != FirstFile {
		return val, nil
	}
	if p := v.limits(k, in, val); p != nil {
		return nil, p
	}
	if in.Type != "COMBO" || len(in.Choices) == 0 && in.Files == "" {
		return val, nil
	}
	choices := v.choices(in)
	if slices.Contains(choices, val) {
		return val, nil
	}
	allowed := pyjson.Repr(choices)
	if len(choices) > 20 {
		allowed = fmt.Sprintf("(list of length %d)", len(choices))
	}
	p := v.wrong(k, in, val, fault.NotInList, messageNotInList,
		fmt.Sprintf("%s: %s not in %s%s", in.Name, pyjson.Excerpt(pyjson.Repr(val)), allowed, unlisted(in, val)))
	if len(choices) > 20 {
		p.extra.Set("input_config", nil)
	}
	return nil, p
}

// wrong returns a problem with the value of an input; more is added to what ComfyUI reports for each of them.
func (v *validation) wrong(k *Class, in *Input, val any, code, message, details string, more ...any) *problem {
	extra := []any{"input_name", in.Name, "input_config", v.config(k, in), "received_value", val}
	return &problem{code, message, details, pyjson.NewObject(append(extra, more...)...)}
}

// unlisted explains why a file is in no list: the graph names none and there is none, or Python would have to unpickle
// it; "" for others.
func unlisted(in *Input, val any) string {
	name, _ := val.(string)
	if in.Files != "" && name == FirstFile {
		return ": the graph was saved without a file, for which the first one stands, and there is none"
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".pth", ".pt", ".ckpt", ".bin", ".pkl":
		if in.Files != "" && in.Files != files.KindUpscale {
			return ": pickled files could run code and are never opened; get or make the safetensors form"
		}
	}
	return ""
}

// limits checks min and max, and that a float is not NaN.
func (v *validation) limits(k *Class, in *Input, val any) *problem {
	if f, ok := val.(float64); ok && in.Type == "FLOAT" && in.Options != nil && math.IsNaN(f) {
		return v.wrong(k, in, val, fault.InvalidInput, "Failed to convert an input value to a FLOAT value",
			in.Name+", nan, not a number")
	}
	beyond := func(key string, side int, code, message string) *problem {
		limit, ok := in.Options.Get(key)
		if !ok || compare(val, limit) != side {
			return nil
		}
		return v.wrong(k, in, val, code, fmt.Sprintf(message, pyjson.Excerpt(pyjson.Str(val)), pyjson.Str(limit)), in.Name)
	}
	return cmp.Or(beyond("min", -1, fault.TooSmall, "Value %s smaller than min of %s"),
		beyond("max", 1, fault.TooBig, "Value %s bigger than max of %s"))
}

// compare compares two numbers of any type exactly; 0 if one is not a number.
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
	if v.lists[in.Files] == nil {
		v.lists[in.Files] = in.choices(v.roots)
	}
	return v.lists[in.Files]
}

// config returns the [type, options] pair as ComfyUI puts it into error bodies: always two items, and combos of
// new-style classes show their options.
func (v *validation) config(k *Class, in *Input) any {
	c := in.config(k.NewStyle(), v.roots)
	if len(c) == 1 {
		c = append(c, pyjson.NewObject())
	}
	return c
}
