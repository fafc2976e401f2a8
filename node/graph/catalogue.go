package graph

import (
	"fmt"
	"sort"
	"strings"

	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Compat is the ComfyUI version whose classes, texts and defaults the catalogue reproduces.
const Compat = "0.33.0"

// Catalogue is the table of node classes. It is built once and never changes; safe for concurrent use.
type Catalogue struct {
	classes map[string]*Class
	order   []string
}

// Class describes one node class: the row of the table.
type Class struct {
	Name, Display, Module, Category, Description string
	// Aliases are further words under which ComfyUI's editor finds the class, separated by ", ".
	Aliases string
	// Essential is the class's place in the editor's short menu; most have none.
	Essential string
	// NewStyle classes are written with ComfyUI's newer node API: their object_info entry has other keys and combos look
	// different.
	NewStyle bool
	// Experimental marks classes whose meaning may change.
	Experimental bool
	// Deprecated classes are left out of ComfyUI's menus; workflows that have them still run.
	Deprecated bool
	// Output classes are where execution starts; they need no outputs of their own.
	Output  bool
	Inputs  []Input // in order, required ones first
	Hidden  []Hidden
	Outputs []Slot
	// Heavy is which part of Timings the class counts for.
	Heavy Stage
	// Check is the class's own validation of literal inputs, after types, limits and lists: it returns the input at fault
	// and what is wrong with it, or "". Inputs named in Own are not checked against their list.
	Check func(job *Job, roots *files.Roots, in *pyjson.Object) (field, text string)
	Own   []string
	// Change returns a text that joins the cache signature: what the inputs do not say, such as the content of a file.
	// nil: nothing.
	Change func(c *Call) (string, error)
	// Fresh classes run every time.
	Fresh bool
	// Shows: the class tells what it made though execution does not start there.
	Shows bool
	// Wants returns the lazy inputs that a node needs, once the others are there; nil: the class has none.
	Wants func(c *Call) []string
	Run   func(c *Call) ([]any, error)
}

// Stage is a part of a job's time.
type Stage uint8

// The stages: loading weights, text encoders, sampling, autoencoders, and everything else.
const (
	StageOther Stage = iota
	StageLoad
	StageText
	StageDenoise
	StageVAE
)

// Hidden is a value that the server gives to a node: name and kind (PROMPT, EXTRA_PNGINFO).
type Hidden struct{ Name, Kind string }

// Slot is an output of a class.
type Slot struct {
	Name, Type string
	match      string // template of a MatchSlot
}

// Input is one declared input.
type Input struct {
	Name     string
	Type     string // MODEL, LATENT, INT, FLOAT, STRING, BOOLEAN, COMBO ...
	Optional bool
	// required, but workflows saved by older versions lack it: they get the default, or the first choice
	Later   bool
	Options *pyjson.Object // default, min, max, step ...; nil: the entry has none at all
	Choices []string       // of a COMBO
	Files   string         // of a COMBO whose choices are files: a folder kind of Roots
	Tip     string
	// Advanced inputs are folded away in the editor.
	Advanced bool
	// Lazy inputs are computed when Class.Wants names them.
	Lazy         bool
	Alternatives []Alternative // of a Branch
	grown        []string      // names of a Grow
	each         *Input        // what they are
}

// NewCatalogue builds the table of some groups of classes; a name that comes twice panics.
func NewCatalogue(groups ...[]Class) *Catalogue {
	c := &Catalogue{classes: map[string]*Class{}}
	for _, group := range groups {
		for i := range group {
			k := &group[i]
			if _, twice := c.classes[k.Name]; twice {
				panic("node class " + k.Name + " is in the catalogue twice")
			}
			if k.Display == "" && !k.NewStyle {
				k.Display = k.Name
			}
			c.classes[k.Name] = k
			c.order = append(c.order, k.Name)
		}
	}
	sort.Strings(c.order)
	return c
}

// Classes returns the names of all classes, sorted.
func (c *Catalogue) Classes() []string { return append([]string(nil), c.order...) }

// Class returns a row of the table, or nil.
func (c *Catalogue) Class(name string) *Class { return c.classes[name] }

// ObjectInfo returns what ComfyUI's GET /object_info returns: class name -> entry, for one class or, with "", for all.
// File lists come from roots. An unknown class gives an empty map. Values are *Object, which keep ComfyUI's key order
// in JSON and msgpack.
func (c *Catalogue) ObjectInfo(roots files.Roots, class string) map[string]any {
	out := map[string]any{}
	for _, name := range c.order {
		if class == "" || class == name {
			out[name] = c.classes[name].info(&roots)
		}
	}
	return out
}

// info builds one object_info entry.
func (k *Class) info(roots *files.Roots) *pyjson.Object {
	input, order := pyjson.NewObject(), pyjson.NewObject()
	for _, optional := range []bool{false, true} {
		group, names := pyjson.NewObject(), []any{}
		for i := range k.Inputs {
			if in := &k.Inputs[i]; in.Optional == optional {
				group.Set(in.Name, in.config(k, roots))
				names = append(names, in.Name)
			}
		}
		if key := map[bool]string{false: "required", true: "optional"}[optional]; len(names) > 0 || !optional {
			input.Set(key, group)
			order.Set(key, names)
		}
	}
	if len(k.Hidden) > 0 {
		group, names := pyjson.NewObject(), []any{}
		for _, h := range k.Hidden {
			if group.Set(h.Name, h.Kind); k.NewStyle {
				group.Set(h.Name, []any{h.Kind})
			}
			names = append(names, h.Name)
		}
		input.Set("hidden", group)
		order.Set("hidden", names)
	}
	types, names, lists := []any{}, []any{}, []any{}
	var matches any
	for _, s := range k.Outputs {
		types, names, lists = append(types, s.Type), append(names, s.Name), append(lists, false)
		if s.match != "" {
			matches = []any{s.match}
		}
	}
	o := pyjson.NewObject("input", input, "input_order", order, "is_input_list", false, "output", types,
		"output_is_list", lists, "output_name", names)
	if k.NewStyle {
		o.Set("output_matchtypes", matches)
	}
	o.Set("name", k.Name)
	o.Set("display_name", nil)
	if k.Display != "" {
		o.Set("display_name", k.Display)
	}
	o.Set("description", k.Description)
	o.Set("python_module", k.Module)
	o.Set("category", k.Category)
	o.Set("output_node", k.Output)
	aliases := k.aliases()
	if k.NewStyle {
		o.Set("deprecated", k.Deprecated)
		o.Set("experimental", k.Experimental)
		o.Set("dev_only", false)
		o.Set("api_node", false)
		o.Set("price_badge", nil)
		o.Set("search_aliases", nil)
		if len(aliases) > 0 {
			o.Set("search_aliases", aliases)
		}
		o.Set("essentials_category", nil)
		if k.Essential != "" {
			o.Set("essentials_category", k.Essential)
		}
		o.Set("has_intermediate_output", k.Shows)
		return o
	}
	o.Set("has_intermediate_output", k.Shows)
	if k.Deprecated {
		o.Set("deprecated", true)
	}
	if k.Experimental {
		o.Set("experimental", true)
	}
	o.Set("search_aliases", aliases)
	if k.Essential != "" {
		o.Set("essentials_category", k.Essential)
	}
	return o
}

func (k *Class) aliases() []any {
	out := []any{}
	for word := range strings.SplitSeq(k.Aliases, ", ") {
		if word != "" {
			out = append(out, word)
		}
	}
	return out
}

// config is the [type, options] pair of an input as object_info shows it.
func (in *Input) config(k *Class, roots *files.Roots) []any {
	options := in.Options
	if options != nil && in.Tip != "" {
		options = pyjson.Clone(options).(*pyjson.Object)
		options.Set("tooltip", in.Tip)
	}
	if in.Lazy {
		given := options
		options = pyjson.NewObject("lazy", true)
		for _, key := range given.Keys() {
			options.Set(key, given.At(key))
		}
	}
	if in.Advanced {
		given := options
		options = pyjson.NewObject()
		if k.NewStyle {
			options.Set("advanced", true)
		}
		if given != nil {
			for _, key := range given.Keys() {
				options.Set(key, given.At(key))
			}
		}
		options.Set("advanced", true) // a key that is there keeps its place
	}
	if in.Type == typeBranch {
		options = pyjson.Clone(options).(*pyjson.Object)
		options.Set("options", in.alternatives(k))
	}
	var kind any = in.Type
	if in.Type == "COMBO" {
		choices := in.choices(roots)
		if k.NewStyle {
			o := pyjson.NewObject()
			if in.Advanced {
				o.Set("advanced", true)
			}
			if options != nil {
				if d, ok := options.Get("default"); ok {
					o.Set("default", d)
				}
			}
			o.Set("multiselect", false)
			o.Set("options", choices)
			if options != nil {
				for _, key := range options.Keys() {
					o.Set(key, options.At(key))
				}
			}
			return []any{"COMBO", o}
		}
		kind = choices
	}
	if options == nil {
		return []any{kind}
	}
	return []any{kind, options}
}

// choices returns the allowed values of a COMBO.
func (in *Input) choices(roots *files.Roots) []any {
	names := in.Choices
	if in.Files != "" {
		names = append(roots.List(in.Files), names...)
	}
	out := make([]any, len(names))
	for i := range names {
		out[i] = names[i]
	}
	return out
}

// Input finds a declared input.
func (k *Class) Input(name string) *Input { return find(k.Inputs, name) }

// Link is an input that takes a link and has an options object. Old classes have some without one, Bare, and
// object_info shows the difference.
func Link(name, kind, tip string) Input {
	return Input{Name: name, Type: kind, Options: pyjson.NewObject(), Tip: tip}
}

// Bare is an input that takes a link and has no options object.
func Bare(name, kind string) Input { return Input{Name: name, Type: kind} }

// Number is an INT, FLOAT or BOOLEAN; the rest are alternating option names and values, in order.
func Number(name, kind, tip string, options ...any) Input {
	return Input{Name: name, Type: kind, Options: pyjson.NewObject(options...), Tip: tip}
}

// Int is a whole number of lo to hi; step 0: none is told.
func Int(name, tip string, preset, lo, hi, step int64) Input {
	in := Number(name, "INT", tip, "default", preset, "min", lo, "max", hi)
	if step != 0 {
		in.Options.Set("step", step)
	}
	return in
}

// Float is a number of lo to hi; step 0: none is told.
func Float(name, tip string, preset, lo, hi, step float64) Input {
	in := Number(name, "FLOAT", tip, "default", preset, "min", lo, "max", hi)
	if step != 0 {
		in.Options.Set("step", step)
	}
	return in
}

// Bool is a switch.
func Bool(name, tip string, preset bool) Input {
	return Number(name, "BOOLEAN", tip, "default", preset)
}

// Combo is a choice with an options object.
func Combo(name, tip string, choices ...string) Input {
	return Input{Name: name, Type: "COMBO", Options: pyjson.NewObject(), Choices: choices, Tip: tip}
}

// BareCombo is a choice without an options object.
func BareCombo(name string, choices ...string) Input {
	return Input{Name: name, Type: "COMBO", Choices: choices}
}

// File is a choice among the files of a folder kind.
func File(name, kind string) Input { return Input{Name: name, Type: "COMBO", Files: kind} }

// Prompt is a prompt.
func Prompt(name, tip string) Input {
	return Input{
		Name: name, Type: "STRING",
		Options: pyjson.NewObject("multiline", true, "dynamicPrompts", true), Tip: tip,
	}
}

// With returns the input with further options.
func (in Input) With(options ...any) Input {
	o := pyjson.NewObject()
	if in.Options != nil {
		o = pyjson.Clone(in.Options).(*pyjson.Object)
	}
	for i := 0; i+1 < len(options); i += 2 {
		o.Set(fmt.Sprint(options[i]), options[i+1])
	}
	in.Options = o
	return in
}

// AsOptional marks the input as optional.
func (in Input) AsOptional() Input {
	in.Optional = true
	return in
}

// AsLater marks a required input that came after the class: workflows that lack it get its default, or its first
// choice.
func (in Input) AsLater() Input {
	in.Later = true
	return in
}

// AsLazy marks an input that is computed only if the class wants it.
func (in Input) AsLazy() Input {
	in.Lazy = true
	return in
}

// AsAdvanced marks an input that the editor folds away.
func (in Input) AsAdvanced() Input {
	in.Advanced = true
	return in
}

// preset is the value that a widget starts with.
func (in *Input) preset() any {
	if in.Options != nil {
		if v, ok := in.Options.Get("default"); ok {
			return v
		}
	}
	if len(in.Choices) > 0 {
		return in.Choices[0]
	}
	return nil
}

// SeedInput is the seed widget that KSampler, KSamplerAdvanced and RandomNoise share.
func SeedInput(name string) Input {
	return Number(name, "INT", "seed of the noise: same seed, same picture", "default", int64(0), "min", int64(0), "max",
		uint64(1<<64-1), "control_after_generate", true)
}

// Slots makes outputs whose names are their types.
func Slots(types ...string) []Slot {
	out := make([]Slot, len(types))
	for i, t := range types {
		out[i] = Slot{Name: t, Type: t}
	}
	return out
}
