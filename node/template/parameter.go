package template

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// Parameter is one named input of a template.
type Parameter struct {
	Name     string
	Default  any // nil: there is none
	Required bool

	kind     string // of object_info: INT, FLOAT, STRING, BOOLEAN or COMBO
	file     bool   // its value is a file
	options  *pyjson.Object
	choices  []any // of a COMBO
	targets  []target
	describe string
}

// schemaTypes are the types of JSON Schema of the types that a parameter may have.
func schemaTypes() map[string]string {
	return map[string]string{"INT": "integer", "FLOAT": "number", "STRING": "string", "BOOLEAN": "boolean"}
}

// parameter reads one row of a template's parameters.
func (t *Template) parameter(name string, v any, describe Describe) (Parameter, error) {
	p := Parameter{Name: name}
	var ok bool
	if p.targets, ok = targets(v); !ok {
		return p, fmt.Errorf("want \"node.input\" or a list of them, as in \"6.text\"")
	}
	for i, at := range p.targets {
		class := t.graph.Class(at.node)
		if class == "" {
			return p, fmt.Errorf("there is no node %s; there are %s", at.node, fault.List(t.graph.IDs()))
		}
		entry, _ := describe(class)[class].(*pyjson.Object)
		if entry == nil {
			return p, fmt.Errorf("class %s of node %s is not known here", class, at.node)
		}
		config, needed, have := inputOf(entry, at.input)
		if config == nil {
			return p, fmt.Errorf("node %s (%s) has no input %s; it has %s", at.node, class, at.input, fault.List(have))
		}
		was, given := t.graph.Input(at.node, at.input)
		if given && graph.IsLink(was) {
			return p, fmt.Errorf("input %s of node %s (%s) is linked to another node", at.input, at.node, class)
		}
		one := Parameter{}
		one.read(config)
		if one.kind != "COMBO" && schemaTypes()[one.kind] == "" {
			return p, fmt.Errorf("input %s of node %s (%s) is of type %s, which is no value", at.input, at.node, class, one.kind)
		}
		if i > 0 {
			if one.kind != p.kind {
				return p, fmt.Errorf("its inputs are of the types %s and %s", p.kind, one.kind)
			}
			continue
		}
		p.kind, p.file, p.options, p.choices, p.describe = one.kind, one.file, one.options, one.choices, one.describe
		if p.Default = was; !given {
			p.Default = p.options.At("default")
		}
		p.Required = needed && (p.Default == nil || p.file && p.Default == "")
	}
	return p, nil
}

// inputOf returns what an object_info entry says of an input, whether a node needs it, and the names of all.
func inputOf(entry *pyjson.Object, name string) (config []any, needed bool, all []string) {
	for _, group := range []string{"required", "optional"} {
		in := entry.In("input").In(group)
		all = append(all, in.Keys()...)
		if list, ok := in.At(name).([]any); ok && len(list) > 0 {
			config, needed = list, group == "required"
		}
	}
	return config, needed, all
}

// read reads what object_info says of an input: [type, options], where the type of an older COMBO is its choices.
func (p *Parameter) read(config []any) {
	if len(config) > 1 {
		p.options, _ = config[1].(*pyjson.Object)
	}
	switch kind := config[0].(type) {
	case string:
		p.kind = kind
		p.choices, _ = p.options.At("options").([]any)
	case []any:
		p.kind, p.choices = "COMBO", kind
	}
	for _, k := range p.options.Keys() {
		p.file = p.file || strings.HasSuffix(k, "_upload") && p.options.At(k) == true
	}
	p.describe = p.options.Text("tooltip")
}

// Schema describes a parameter as a JSON Schema.
func (p *Parameter) Schema() *pyjson.Object {
	o, describe := pyjson.NewObject("type", schemaTypes()[p.kind]), p.describe
	switch {
	case p.file:
		o.SetAll("type", "string", "format", "file")
		describe = "a file: a part of a form, a data: URL, or the name of one in the input folder"
	case p.kind == "COMBO":
		o.SetAll("type", "string", "enum", p.choices)
	}
	for _, k := range [][2]string{{"min", "minimum"}, {"max", "maximum"}} {
		if v, ok := p.options.Get(k[0]); ok {
			o.Set(k[1], v)
		}
	}
	if p.Default != nil && !p.Required {
		o.Set("default", p.Default)
	}
	if describe != "" {
		o.Set("description", describe)
	}
	return o
}

// example returns a value that a parameter may have.
func (p *Parameter) example() any {
	switch p.kind {
	case "INT", "FLOAT":
		if v := p.options.At("min"); v != nil {
			return v
		}
		return int64(0)
	case "BOOLEAN":
		return false
	case "COMBO":
		if len(p.choices) > 0 {
			return p.choices[0]
		}
	}
	return "x"
}

// value checks the value that a client gives: as JSON has it, text as forms have it, or the bytes of a file. data are
// those of a file.
func (p *Parameter) value(given any) (v any, data []byte, err error) {
	if b, isFile := given.([]byte); isFile {
		if !p.file {
			return nil, nil, p.wrong(fault.InvalidInput, "is no file: want %s", p.want())
		}
		return nil, b, nil
	}
	text, isText := given.(string)
	switch {
	case p.file && isText && strings.HasPrefix(text, "data:"):
		_, body, ok := strings.Cut(text, ";base64,")
		if data, err = base64.StdEncoding.DecodeString(body); err != nil || !ok || len(data) == 0 {
			return nil, nil, p.wrong(fault.InvalidInput, "want a data: URL with base64, as in data:image/png;base64,...")
		}
		return nil, data, nil
	case p.file:
		if !isText || text == "" {
			return nil, nil, p.wrong(fault.InvalidInput, "want a file, a data: URL, or the name of one in the input folder")
		}
		return text, nil, nil // the workflow's check says whether it is there
	case p.kind == "COMBO":
		if !slices.ContainsFunc(p.choices, func(c any) bool { return c == given }) {
			return nil, nil, allowed(p.wrong(fault.NotInList, "%s is not among the values that are allowed: %s",
				pyjson.Excerpt(fmt.Sprint(given)), listed(p.choices)), p.choices)
		}
		return given, nil, nil
	}
	if v = typed(p.kind, given); v == nil {
		return nil, nil, p.wrong(fault.InvalidInput, "want %s, got %s", p.want(), pyjson.Excerpt(fmt.Sprint(given)))
	}
	return v, nil, p.within(v)
}

// typed returns a value as one of a type, nil if it is none.
func typed(kind string, given any) any {
	text, isText := given.(string)
	switch kind {
	case "STRING":
		if isText {
			return text
		}
	case "BOOLEAN":
		if b, err := strconv.ParseBool(text); isText && err == nil {
			return b
		}
		if b, ok := given.(bool); ok {
			return b
		}
	case "INT":
		if n, err := strconv.ParseInt(text, 10, 64); isText && err == nil {
			return n
		}
		if n, err := strconv.ParseUint(text, 10, 64); isText && err == nil { // seeds
			return n
		}
		switch n := given.(type) {
		case int64, uint64:
			return n
		case float64:
			if n == math.Trunc(n) && math.Abs(n) < 1<<53 {
				return int64(n)
			}
		}
	case "FLOAT":
		if _, isBool := given.(bool); isBool {
			return nil
		}
		f, err := pyjson.Float(given)
		if err != nil {
			return nil
		}
		if !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f
		}
	}
	return nil
}

// within checks a number against the limits of object_info.
func (p *Parameter) within(v any) error {
	if p.kind != "INT" && p.kind != "FLOAT" {
		return nil
	}
	f, _ := pyjson.Float(v) // typed has made it a number
	limits := map[string]any{}
	limit := func(key, name string) (float64, bool) {
		bound, err := pyjson.Float(p.options.At(key))
		if err == nil {
			limits[name] = p.options.At(key)
		}
		return bound, err == nil
	}
	least, hasLeast := limit("min", "minimum")
	most, hasMost := limit("max", "maximum")
	code := ""
	switch {
	case hasLeast && !(f >= least):
		code = fault.TooSmall
	case hasMost && !(f <= most):
		code = fault.TooBig
	default:
		return nil
	}
	e := p.wrong(code, "want %s, got %v", p.want(), v)
	e.Extra = map[string]any{"allowed": limits}
	return e
}

// want says what a value must be.
func (p *Parameter) want() string {
	if p.file {
		return "a file"
	}
	text := map[string]string{
		"INT": "a whole number", "FLOAT": "a number", "STRING": "text", "BOOLEAN": "true or false", "COMBO": "a choice",
	}[p.kind]
	least, most := p.options.At("min"), p.options.At("max")
	switch {
	case least != nil && most != nil:
		text += fmt.Sprintf(" from %v to %v", least, most)
	case least != nil:
		text += fmt.Sprintf(" of %v or more", least)
	case most != nil:
		text += fmt.Sprintf(" of %v or less", most)
	}
	return text
}

func (p *Parameter) wrong(code, format string, args ...any) *fault.Error {
	return fault.At(code, p.Name, "parameter %s: %s", p.Name, fmt.Sprintf(format, args...))
}

func listed(values []any) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return fault.List(out)
}

// endings are the endings of files by what they begin with, for classes that go by the name.
func endings() map[string]string {
	return map[string]string{
		"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/gif": ".gif", "video/mp4": ".mp4",
		"video/webm": ".webm", "audio/mpeg": ".mp3", "audio/wave": ".wav", "application/ogg": ".ogg",
	}
}

// extension returns the ending of a file's name by its bytes; PNG if they say nothing.
func extension(data []byte) string {
	if bytes.HasPrefix(data, []byte("fLaC")) {
		return ".flac"
	}
	kind := http.DetectContentType(data)
	for _, known := range slices.Sorted(maps.Keys(endings())) {
		if strings.HasPrefix(kind, known) {
			return endings()[known]
		}
	}
	return ".png"
}
