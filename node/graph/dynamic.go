package graph

import (
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// Types of inputs that add other inputs, and of inputs that take any linked type.
const (
	typeGrow   = "COMFY_AUTOGROW_V3"
	typeBranch = "COMFY_DYNAMICCOMBO_V3"
	typeMatch  = "COMFY_MATCHTYPE_V3"
)

// Alternative is one choice of a Branch, with the inputs that it adds.
type Alternative struct {
	Key    string
	Inputs []Input
}

// Branch declares a choice that adds inputs of its own, named "name.input".
func Branch(name, tip string, alternatives ...Alternative) Input {
	return Input{Name: name, Type: typeBranch, Options: pyjson.NewObject(), Tip: tip, Alternatives: alternatives}
}

// Grow declares a list of 1 to most inputs of one form, "name.prefix0" and so on, that gets longer in the editor.
func Grow(name, prefix string, most int, each Input) Input { return grow(name, prefix, 1, most, each) }

// GrowAny is Grow of an optional list, which may be empty.
func GrowAny(name, prefix string, most int, each Input) Input {
	return grow(name, prefix, 0, most, each).AsOptional()
}

func grow(name, prefix string, least, most int, each Input) Input {
	in := Input{Name: name, Type: typeGrow, each: &each, least: least}
	for i := range most {
		in.grown = append(in.grown, prefix+strconv.Itoa(i))
	}
	return in.template("prefix", prefix, "min", int64(least), "max", int64(most))
}

// GrowNamed is Grow with the given names of inputs, of which the first least must be given.
func GrowNamed(name string, names []string, least int, each Input) Input {
	in := Input{Name: name, Type: typeGrow, each: &each, grown: names, least: least}
	return in.template("names", anys(names), "min", int64(least))
}

func (in Input) template(options ...any) Input {
	config := in.each.config(true, nil)
	template := pyjson.NewObject("input", pyjson.NewObject("required", pyjson.NewObject(in.each.Name, config)))
	template.SetAll(options...)
	in.Options = pyjson.NewObject("template", template)
	return in
}

// Match declares an input of any type, which the outputs of MatchSlot then have; allowed is what the editor offers.
func Match(name, template, allowed string) Input {
	return Number(name, typeMatch, "",
		"template", pyjson.NewObject("template_id", template, "allowed_types", allowed))
}

// MatchSlot declares an output with the type of the inputs of a template.
func MatchSlot(name, template string) Slot { return Slot{Name: name, Type: typeMatch, match: template} }

// alternatives returns the choices as object_info shows them.
func (in *Input) alternatives(newStyle bool) []any {
	var out []any
	for _, a := range in.Alternatives {
		inputs, optional := pyjson.NewObject("required", pyjson.NewObject()), pyjson.NewObject()
		for i := range a.Inputs {
			group := inputs.In("required")
			if a.Inputs[i].Optional {
				group = optional
				inputs.Set("optional", optional)
			}
			group.Set(a.Inputs[i].Name, a.Inputs[i].config(newStyle, nil))
		}
		out = append(out, pyjson.NewObject("key", a.Key, "inputs", inputs))
	}
	return out
}

// declared returns the inputs of a node that is given these values: those of its class, with the inputs of a Grow in
// its place, those of the chosen alternative before their Branch, and the unlisted ones.
func (k *Class) declared(given func(name string) (any, bool)) []Input {
	var out []Input
	for _, in := range k.Inputs {
		out = in.expand(out, given)
	}
	return append(out, k.Unlisted...)
}

// expand appends an input to a list, with those that it adds.
func (in Input) expand(out []Input, given func(name string) (any, bool)) []Input {
	switch in.Type {
	case typeGrow:
		for n, name := range in.grown {
			one := *in.each
			one.Name, one.Optional = in.Name+"."+name, n >= in.least
			if _, ok := given(one.Name); ok || n < in.least {
				out = append(out, one)
			}
		}
		return out
	case typeBranch:
		key, _ := given(in.Name)
		at := slices.IndexFunc(in.Alternatives, func(a Alternative) bool { return a.Key == key })
		if at < 0 { // the choice itself is left out then
			return out
		}
		for _, one := range in.Alternatives[at].Inputs {
			one.Name = in.Name + "." + one.Name
			out = one.expand(out, given)
		}
	}
	return append(out, in)
}

// Declared returns the inputs of a node of a workflow: those of its class, and those that dynamic ones add.
func (k *Class) Declared(w *Workflow, id string) []Input {
	return k.declared(func(name string) (any, bool) { return w.Input(id, name) })
}

// takesAny reports whether validation accepts any literal for an input: wildcards and unions, the key of a choice, and
// what the editor draws itself. The class checks those.
func (in *Input) takesAny() bool {
	return strings.ContainsAny(in.Type, "*,") || in.Type == typeMatch || in.Type == typeBranch || in.drawn()
}

// drawn reports whether the editor draws the value of an input itself.
func (in *Input) drawn() bool { _, ok := in.Options.Get("socketless"); return ok }

// find returns the declared input of a name, dots included; nil if there is none.
func find(inputs []Input, name string) *Input {
	if i := slices.IndexFunc(inputs, func(in Input) bool { return in.Name == name }); i >= 0 {
		return &inputs[i]
	}
	return nil
}

// Chosen returns the choice of a Branch. A choice that the class does not have passes validation, as in ComfyUI, and
// makes Chosen panic with a failure.
func (c *Call) Chosen(name string) string {
	if key, ok := c.in[name].(string); ok {
		return key
	}
	var got any
	if c.Job.Workflow != nil {
		got, _ = c.Job.Workflow.Input(c.ID, name)
	}
	var allowed []string
	for _, a := range c.Class.Input(name).Alternatives {
		allowed = append(allowed, a.Key)
	}
	panic(fault.Bad(name, "%s is not one of %s", pyjson.Excerpt(pyjson.Repr(got)), strings.Join(allowed, ", ")))
}

// beyond returns an error if name is an input that the list of a Grow does not have.
func (k *Class) beyond(name string) error {
	list, rest, ok := strings.Cut(name, ".")
	if in := k.Input(list); ok && in != nil && in.Type == typeGrow {
		return fault.Bad(name, "%s has no %s, but %s to %s", list, rest, in.grown[0], in.grown[len(in.grown)-1])
	}
	return nil
}

// Grown returns the values of a Grow in order, with their names.
func (c *Call) Grown(name string) (names []string, values []any) {
	for _, n := range c.Class.Input(name).grown {
		if v, ok := c.in[name+"."+n]; ok {
			names, values = append(names, n), append(values, v)
		}
	}
	return names, values
}
