package graph

import (
	"cmp"
	"slices"
	"strings"

	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// Compat is the ComfyUI version whose classes, texts and defaults the catalogue reproduces.
const Compat = "0.33.0"

// Catalogue is the table of node classes. It never changes once built and is safe for concurrent use.
type Catalogue struct {
	classes map[string]*Class
	order   []string
}

// Class describes one node class: a row of the table.
type Class struct {
	Name, Display, Module, Category, Description string // Module: "nodes" where it is empty
	// Aliases are further terms under which ComfyUI's editor finds the class, separated by ", ".
	Aliases string
	// Essential is the class's category in the editor's short menu; most have none.
	Essential string
	// Experimental marks classes whose meaning may change.
	Experimental bool
	// Deprecated classes are left out of ComfyUI's menus; workflows that have them still run.
	Deprecated bool
	// Output classes are where execution starts; they need no outputs of their own.
	Output bool
	Inputs []Input // in order, required ones first
	// Unlisted inputs are taken, but not shown by object_info: the editor makes their widgets itself.
	Unlisted []Input
	Hidden   []Hidden
	Outputs  []Slot
	// Stage is the part of Timings that the class's time counts towards.
	Phase Phase
	// Check is the class's own validation of literal inputs, after types, limits and lists: it returns the input at
	// fault and what is wrong with it, or an empty text. SelfChecked inputs are checked for neither limits nor lists;
	// Check takes texts only.
	Check       func(job *Job, roots *files.Roots, in *pyjson.Object) (field, text string)
	SelfChecked []string
	// Change returns a text for the cache signature that covers what the inputs do not show, such as the content of a
	// file. nil: nothing.
	Change func(c *Call) (string, error)
	// Fresh classes run every time, never taken from the cache.
	Fresh bool
	// Shows: nodes emit an executed event although execution does not start at them.
	Shows bool
	// Wants returns the lazy inputs that a node needs, once the others are computed; nil: the class has none.
	Wants func(c *Call) []string
	Run   func(c *Call) ([]any, error)
}

// NewStyle reports whether a class is written with ComfyUI's newer node API, as most of comfy_extras are: its
// object_info entry has other keys, and its combos look different.
func (k *Class) NewStyle() bool {
	switch name, extra := strings.CutPrefix(k.Module, "comfy_extras."); name {
	case "nodes_model_advanced", "nodes_model_patch", "nodes_preview_any":
		return false
	default:
		return extra
	}
}

// Rows fills in what classes have in common: module, category, stage and outputs of base, where a row has none.
func Rows(base Class, rows []Class) []Class {
	for i := range rows {
		k := &rows[i]
		k.Module, k.Category = cmp.Or(k.Module, base.Module), cmp.Or(k.Category, base.Category)
		if k.Phase = cmp.Or(k.Phase, base.Phase); k.Outputs == nil {
			k.Outputs = base.Outputs
		}
	}
	return rows
}

// Phase is a part of a job's time.
type Phase uint8

// The phases: loading weights, text encoders, sampling, autoencoders, and everything else.
const (
	PhaseOther Phase = iota
	PhaseLoad
	PhaseText
	PhaseDenoise
	PhaseVAE
)

// String returns the name of the phase in metrics.
func (p Phase) String() string {
	return [...]string{"other", "load", "text", "denoise", "vae"}[p]
}

// Hidden is a value that the server passes to a node: name and kind (PROMPT, EXTRA_PNGINFO, UNIQUE_ID).
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
	// required, but missing in workflows of older versions, which get the default or else the first choice
	Later   bool
	Options *pyjson.Object // default, min, max, step ...; nil: object_info shows no options
	Choices []string       // of a COMBO; if it has neither these nor Files, the editor makes them
	Files   string         // of a COMBO whose choices are files: a folder kind of Roots
	Tip     string
	// Advanced inputs are folded away in the editor.
	Advanced bool
	// Lazy inputs are computed when Class.Wants names them.
	Lazy         bool
	Alternatives []Alternative // of a Branch
	grown        []string      // names of the inputs of a Grow
	least        int           // so many of them must be given
	each         *Input        // what each of them is
}

// NewCatalogue builds the table from groups of classes. It panics if a name occurs twice.
func NewCatalogue(groups ...[]Class) *Catalogue {
	c := &Catalogue{classes: map[string]*Class{}}
	for _, group := range groups {
		for i := range group {
			k := &group[i]
			if _, twice := c.classes[k.Name]; twice {
				panic("node class " + k.Name + " is in the catalogue twice")
			}
			k.Module = cmp.Or(k.Module, "nodes")
			if !k.NewStyle() {
				k.Display = cmp.Or(k.Display, k.Name)
			}
			c.classes[k.Name] = k
			c.order = append(c.order, k.Name)
		}
	}
	slices.Sort(c.order)
	return c
}

// Classes returns the names of all classes, sorted.
func (c *Catalogue) Classes() []string { return slices.Clone(c.order) }

// Class returns the class of a name, nil if there is none.
func (c *Catalogue) Class(name string) *Class { return c.classes[name] }

// ObjectInfo returns what ComfyUI's GET /object_info returns: class name -> entry, for one class or, with "", for all.
// File lists come from roots. For an unknown class the map is empty. Values are *pyjson.Object, which keep ComfyUI's
// key order in JSON and msgpack.
func (c *Catalogue) ObjectInfo(roots files.Roots, class string) map[string]any {
	out := map[string]any{}
	for _, name := range c.order {
		if class == "" || class == name {
			out[name] = c.classes[name].info(&roots)
		}
	}
	return out
}

// FirstFile stands for the first file of an input's list in a graph that was converted where the files are not known.
// Validation replaces it.
const FirstFile = "<first file>"

// WithoutFiles returns the object_info entry of a class, nil if there is none, in which FirstFile stands for the files
// of every list.
func (c *Catalogue) WithoutFiles(class string) *pyjson.Object {
	if k := c.classes[class]; k != nil {
		return k.info(nil)
	}
	return nil
}

// info builds one object_info entry; with nil roots it is that of WithoutFiles.
func (k *Class) info(roots *files.Roots) *pyjson.Object {
	input, order := pyjson.NewObject(), pyjson.NewObject()
	for _, optional := range []bool{false, true} {
		group, names := pyjson.NewObject(), []any{}
		for i := range k.Inputs {
			if in := &k.Inputs[i]; in.Optional == optional {
				group.Set(in.Name, in.config(k.NewStyle(), roots))
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
			if group.Set(h.Name, h.Kind); k.NewStyle() {
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
	if k.NewStyle() {
		o.Set("output_matchtypes", matches)
	}
	o.SetAll("name", k.Name, "display_name", orNil(k.Display), "description", k.Description, "python_module", k.Module,
		"category", k.Category, "output_node", k.Output)
	aliases := k.aliases()
	if k.NewStyle() {
		o.SetAll("deprecated", k.Deprecated, "experimental", k.Experimental, "dev_only", false, "api_node", false,
			"price_badge", nil, "search_aliases", nil, "essentials_category", orNil(k.Essential),
			"has_intermediate_output", k.Shows)
		if len(aliases) > 0 {
			o.Set("search_aliases", aliases)
		}
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

// orNil returns text, nil if it is empty.
func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func (k *Class) aliases() []any {
	if k.Aliases == "" {
		return []any{}
	}
	return anys(strings.Split(k.Aliases, ", "))
}

// anys returns texts as a list of any values.
func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i := range texts {
		out[i] = texts[i]
	}
	return out
}

// config returns the [type, options] pair of an input as object_info shows it.
func (in *Input) config(newStyle bool, roots *files.Roots) []any {
	options, advanced := in.Options, pyjson.NewObject("advanced", true)
	if options != nil && in.Tip != "" {
		options = pyjson.Joined(options, pyjson.NewObject("tooltip", in.Tip))
	}
	if in.Lazy {
		options = pyjson.Joined(pyjson.NewObject("lazy", true), options)
	}
	switch {
	case in.Advanced && newStyle:
		options = pyjson.Joined(advanced, options, advanced) // a key that exists keeps its place
	case in.Advanced:
		options = pyjson.Joined(options, advanced)
	}
	var kind any = in.Type
	switch {
	case in.Type == typeBranch:
		options = pyjson.Joined(options, pyjson.NewObject("options", in.alternatives(newStyle)))
	case in.Type == "COMBO" && newStyle:
		head := pyjson.NewObject()
		if in.Advanced {
			head = advanced
		}
		for _, name := range []string{"display_name", "default"} {
			if v, ok := options.Get(name); ok {
				head.Set(name, v)
			}
		}
		choices := pyjson.NewObject("multiselect", false, "options", in.choices(roots))
		options = pyjson.Joined(head, choices, options)
	case in.Type == "COMBO":
		kind = in.choices(roots)
	}
	if options == nil {
		return []any{kind}
	}
	return []any{kind, options}
}

// choices returns the allowed values of a COMBO.
func (in *Input) choices(roots *files.Roots) []any {
	switch {
	case in.Files == "":
		return anys(in.Choices)
	case roots == nil:
		return anys(append([]string{FirstFile}, in.Choices...))
	}
	return anys(append(roots.List(in.Files), in.Choices...))
}

// Named returns the file that an input's value names: the value itself, or for FirstFile the first of the input's list,
// as in ComfyUI's editor. It is FirstFile if there is none.
func (in *Input) Named(roots *files.Roots, value string) string {
	if in.Files == "" || value != FirstFile {
		return value
	}
	if list := append(roots.List(in.Files), in.Choices...); len(list) > 0 {
		return list[0]
	}
	return value
}

// Input returns a declared input, nil if there is none of that name.
func (k *Class) Input(name string) *Input { return find(k.Inputs, name) }

// Link declares an input that takes a link and has an options object. Old classes also have some without one, see
// Bare, and object_info shows the difference.
func Link(name, kind, tip string) Input {
	return Input{Name: name, Type: kind, Options: pyjson.NewObject(), Tip: tip}
}

// Bare declares an input that takes a link and has no options object.
func Bare(name, kind string) Input { return Input{Name: name, Type: kind} }

// Number declares an INT, FLOAT or BOOLEAN input. options are alternating names and values, in order.
func Number(name, kind, tip string, options ...any) Input {
	return Input{Name: name, Type: kind, Options: pyjson.NewObject(options...), Tip: tip}
}

// Int declares an integer from lo to hi; step 0 is left out of the options.
func Int(name, tip string, preset, lo, hi, step int64) Input {
	return limited(name, "INT", tip, preset, lo, hi, step)
}

// Float declares a number from lo to hi; step 0 is left out of the options.
func Float(name, tip string, preset, lo, hi, step float64) Input {
	return limited(name, "FLOAT", tip, preset, lo, hi, step)
}

func limited[T int64 | float64](name, kind, tip string, preset, lo, hi, step T) Input {
	in := Number(name, kind, tip, "default", preset, "min", lo, "max", hi)
	if step != 0 {
		in.Options.Set("step", step)
	}
	return in
}

// Bool declares a switch.
func Bool(name, tip string, preset bool) Input {
	return Number(name, "BOOLEAN", tip, "default", preset)
}

// Combo declares a choice with an options object.
func Combo(name, tip string, choices ...string) Input {
	return Input{Name: name, Type: "COMBO", Options: pyjson.NewObject(), Choices: choices, Tip: tip}
}

// BareCombo declares a choice without an options object.
func BareCombo(name string, choices ...string) Input {
	return Input{Name: name, Type: "COMBO", Choices: choices}
}

// File declares a choice among the files of a kind.
func File(name, kind string) Input { return Input{Name: name, Type: "COMBO", Files: kind} }

// Prompt declares a multiline text with dynamic prompts.
func Prompt(name, tip string) Input {
	return Input{
		Name: name, Type: "STRING",
		Options: pyjson.NewObject("multiline", true, "dynamicPrompts", true), Tip: tip,
	}
}

// With returns the input with further options.
func (in Input) With(options ...any) Input {
	in.Options = pyjson.Joined(in.Options, pyjson.NewObject(options...))
	return in
}

func (in Input) AsOptional() Input {
	in.Optional = true
	return in
}

// AsLater returns a required input as one that was added to its class later: workflows without it get its default, or
// else its first choice.
func (in Input) AsLater() Input {
	in.Later = true
	return in
}

// AsLazy returns the input as one that is computed only if Class.Wants names it.
func (in Input) AsLazy() Input {
	in.Lazy = true
	return in
}

// AsAdvanced returns the input as one that the editor folds away.
func (in Input) AsAdvanced() Input {
	in.Advanced = true
	return in
}

// preset returns the value that a widget starts with.
func (in *Input) preset() any {
	if v, ok := in.Options.Get("default"); ok {
		return v
	}
	if len(in.Choices) > 0 {
		return in.Choices[0]
	}
	return nil
}

// SeedInput declares the seed widget that KSampler, KSamplerAdvanced and RandomNoise share.
func SeedInput(name string) Input {
	return Number(name, "INT", "seed of the noise: same seed, same picture", "default", int64(0), "min", int64(0), "max",
		uint64(1<<64-1), "control_after_generate", true)
}

// Slots returns outputs whose names are their types.
func Slots(types ...string) []Slot {
	out := make([]Slot, len(types))
	for i, t := range types {
		out[i] = Slot{Name: t, Type: t}
	}
	return out
}
