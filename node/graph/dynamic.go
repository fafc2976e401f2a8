package graph

import (
	"slices"
	"strconv"
	"strings"

	"patchbay/node/fault"
	"patchbay/node/pyjson"
)

// Types of inputs that bring others, and of those that take whatever type is linked.
const (
	typeGrow   = "COMFY_AUTOGROW_V3"
	typeBranch = "COMFY_DYNAMICCOMBO_V3"
	typeMatch  = "COMFY_MATCHTYPE_V3"
)

// Alternative is one choice of an input that brings inputs of its own with every choice.
type Alternative struct {
	Key    string
	Inputs []Input
}

// Branch is a choice that brings inputs of its own: "name.input".
func Branch(name, tip string, alternatives ...Alternative) Input {
	return Input{Name: name, Type: typeBranch, Options: pyjson.NewObject(), Tip: tip, Alternatives: alternatives}
}

// Grow is a list of inputs of one form, "name.prefix0" and so on, that gets longer in the editor; at least one is
// there, and at most so many.
func Grow(name, prefix string, most int, each Input) Input {
	in := Input{Name: name, Type: typeGrow, each: &each}
	for i := range most {
		in.grown = append(in.grown, prefix+strconv.Itoa(i))
	}
	return in.template("prefix", prefix, "min", int64(1), "max", int64(most))
}

// GrowNamed is a list of inputs as Grow makes it, with these names.
func GrowNamed(name string, names []string, each Input) Input {
	return Input{Name: name, Type: typeGrow, each: &each, grown: names}.template("names", anys(names), "min", int64(1))
}

func (in Input) template(options ...any) Input {
	config := in.each.config(true, nil)
	template := pyjson.NewObject("input", pyjson.NewObject("required", pyjson.NewObject(in.each.Name, config)))
	template.SetAll(options...)
	in.Options = pyjson.NewObject("template", template)
	return in
}

// Match is an input that takes any type, which an output of MatchSlot then has; allowed is what the editor offers.
func Match(name, template, allowed string) Input {
	return Number(name, typeMatch, "",
		"template", pyjson.NewObject("template_id", template, "allowed_types", allowed))
}

// MatchSlot is the output whose type is that of the inputs of a template.
func MatchSlot(name, template string) Slot { return Slot{Name: name, Type: typeMatch, match: template} }

// alternatives are the choices as object_info shows them.
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

// declared returns the inputs of a node that is given these values: those of its class, and behind those that bring
// others what they bring.
func (k *Class) declared(given func(name string) (any, bool)) []Input {
	var out []Input
	for i := range k.Inputs {
		in := k.Inputs[i]
		switch in.Type {
		case typeGrow:
			for n, name := range in.grown {
				one := *in.each
				one.Name, one.Optional = in.Name+"."+name, n > 0
				if _, ok := given(one.Name); ok || n == 0 {
					out = append(out, one)
				}
			}
			continue
		case typeBranch:
			at := slices.IndexFunc(in.Alternatives, func(a Alternative) bool {
				key, _ := given(in.Name)
				return a.Key == key
			})
			if at < 0 { // not even the choice counts then
				continue
			}
			for _, one := range in.Alternatives[at].Inputs {
				one.Name = in.Name + "." + one.Name
				out = append(out, one)
			}
		}
		out = append(out, in)
	}
	return out
}

// Declared returns the inputs that a node of a workflow has: those of its class, with those that dynamic ones bring.
func (k *Class) Declared(w *Workflow, id string) []Input {
	return k.declared(func(name string) (any, bool) { return w.Input(id, name) })
}

// takesAny reports whether validation takes any literal of an input: wildcards and unions, the key of a choice, and
// what the editor draws itself. The class looks at it.
func (in *Input) takesAny() bool {
	return strings.ContainsAny(in.Type, "*,") || in.Type == typeMatch || in.Type == typeBranch || in.drawn()
}

// drawn reports whether the editor draws the value of an input itself.
func (in *Input) drawn() bool { return in.Options.At("socketless") == true }

// find finds a declared input of a node, by its whole name.
func find(inputs []Input, name string) *Input {
	if i := slices.IndexFunc(inputs, func(in Input) bool { return in.Name == name }); i >= 0 {
		return &inputs[i]
	}
	return nil
}

// Chosen returns the choice of an input that brings others. A choice that the class does not have passes validation,
// as in ComfyUI, and is refused here.
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

// beyond refuses a link of a list of inputs that grows to a name that the list does not have.
func (k *Class) beyond(name string) error {
	list, rest, ok := strings.Cut(name, ".")
	if in := k.Input(list); ok && in != nil && in.Type == typeGrow {
		return fault.Bad(name, "%s has no %s, but %s to %s", list, rest, in.grown[0], in.grown[len(in.grown)-1])
	}
	return nil
}

// Grown returns the values of a list of inputs that grows, in order, with their names.
func (c *Call) Grown(name string) (names []string, values []any) {
	for _, n := range c.Class.Input(name).grown {
		if v, ok := c.in[name+"."+n]; ok {
			names, values = append(names, n), append(values, v)
		}
	}
	return names, values
}
