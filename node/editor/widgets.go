package editor

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"patchbay/node/pyjson"
)

// widgetTypes are the input types that the editor shows as a widget; a list of choices counts as COMBO.
var widgetTypes = map[string]bool{
	"INT": true, "FLOAT": true, "STRING": true, "BOOLEAN": true, "COMBO": true, dynamicCombo: true,
	"COLOR": true, "CURVE": true, "MARKDOWN": true, "BOUNDING_BOX": true, "BOUNDING_BOXES": true, "IMAGECOMPARE": true,
	"CAMERA_ANGLE_VIEW": true,
}

// dynamicCombo is the type of a choice that adds inputs of its own, named "choice.input".
const dynamicCombo = "COMFY_DYNAMICCOMBO_V3"

// reader assigns the values that a node stores to names, in the order in which the editor creates the widgets of a
// class.
type reader struct {
	values []any          // by position
	named  *pyjson.Object // by name; they win
	out    *pyjson.Object
}

// widgetsOf returns the values of a node's widgets by name, in the order of its object_info entry. Widgets without a
// stored value, because the class got them after the graph was saved, have their defaults, and so have numbers that are
// stored as "auto".
func widgetsOf(n *node, entry *pyjson.Object) *pyjson.Object {
	r := &reader{values: list(n.values), named: n.named, out: pyjson.NewObject()}
	uploads := false
	for _, group := range []string{"required", "optional"} {
		specs := entry.In("input").In(group)
		for _, name := range names(specs, list(entry.In("input_order").At(group))) {
			if _, options := config(specs.At(name)); hasUpload(options) && group == "required" {
				uploads = true
			}
			r.take(name, specs.At(name))
		}
		if group == "required" && uploads && len(r.values) > 0 { // the upload button follows the required inputs
			r.values = r.values[1:]
		}
	}
	if n.kind == customCombo {
		r.takeOptions()
	}
	return r.out
}

// customCombo is the class whose choices are widgets of the node: after "choice" the editor makes "index", the place of
// the choice among the others, and "option1" and so on, the last of which is empty.
const customCombo = "CustomCombo"

// takeOptions reads the widgets that the editor makes for a customCombo. Older graphs lack the value of "index".
func (r *reader) takeOptions() {
	if len(r.values) > 0 {
		if _, old := r.values[0].(string); !old {
			r.values = r.values[1:]
		}
	}
	r.out.Set("index", nil)
	for i := 1; ; i++ {
		name := optionPrefix + strconv.Itoa(i)
		value, stored := r.next(name)
		if !stored {
			return
		}
		r.out.Set(name, value)
	}
}

const optionPrefix = "option"

// setIndex gives a customCombo the place of its choice, -1 if it is none of the options. A choice that comes from
// another node counts as what the widget shows.
func setIndex(inputs *pyjson.Object, shown any) {
	if _, linked := inputs.At("choice").([]any); !linked {
		shown = inputs.At("choice")
	}
	choice, _ := shown.(string)
	at, i := int64(-1), int64(0)
	for _, name := range inputs.Keys() {
		if strings.HasPrefix(name, optionPrefix) {
			if inputs.At(name) == choice && at < 0 {
				at = i
			}
			i++
		}
	}
	if _, linked := inputs.At("index").([]any); !linked {
		inputs.Set("index", at)
	}
}

// names returns the inputs of a group in the order that the class declares.
func names(specs *pyjson.Object, order []any) []string {
	if len(order) != specs.Len() {
		return specs.Keys()
	}
	var out []string
	for _, v := range order {
		out = append(out, str(v))
	}
	return out
}

// config splits the [type, options] pair of an input; the type of a list of choices is COMBO.
func config(spec any) (kind string, options *pyjson.Object) {
	pair := list(spec)
	if len(pair) > 1 {
		options, _ = pair[1].(*pyjson.Object)
	}
	if len(pair) == 0 {
		return "", options
	}
	kind = str(pair[0])
	if _, choices := pair[0].([]any); choices {
		kind = "COMBO"
	}
	return cmp.Or(options.Text("widgetType"), kind), options
}

func hasUpload(options *pyjson.Object) bool {
	return slices.ContainsFunc([]string{"image", "animated_image", "video", "audio", "mesh"}, func(kind string) bool {
		return options.At(kind+"_upload") == true
	})
}

// take assigns an input its value, if it is a widget.
func (r *reader) take(name string, spec any) {
	kind, options := config(spec)
	if !widgetTypes[kind] || options.At("forceInput") == true {
		return
	}
	value, stored := r.next(name)
	if !stored || value == auto && (kind == "INT" || kind == "FLOAT") {
		if value = initial(kind, spec, options); value == nil {
			return
		}
	}
	r.out.Set(name, value)
	if stored && controlled(name, kind, options) {
		r.skipControl(kind)
	}
	if kind == dynamicCombo {
		r.takeChoice(name, value, options)
	}
}

// auto is what newer versions store for numbers that the program chooses (bit_depth of CreateVideo).
const auto = "auto"

// next returns the stored value of a widget. Values by name are complete except for the inputs of choices: any other
// widget without a name among them has no place in the list either.
func (r *reader) next(name string) (any, bool) {
	value, stored := r.named.Get(name)
	if (stored || r.named.Len() == 0 || strings.Contains(name, ".")) && len(r.values) > 0 {
		if !stored {
			value, stored = r.values[0], true
		}
		r.values = r.values[1:]
	}
	return value, stored
}

// initial returns the value with which the editor creates a widget: the default of its input, or else that of its type;
// nil if there is none.
func initial(kind string, spec any, options *pyjson.Object) any {
	if v := options.At("default"); v != nil {
		return v
	}
	switch kind {
	case "INT", "FLOAT":
		return int64(0)
	case "STRING", "MARKDOWN":
		return ""
	case "BOOLEAN":
		return false
	case "COLOR":
		return "#000000"
	case "COMBO", dynamicCombo:
		choices, bare := list(spec)[0].([]any)
		if !bare {
			choices = list(options.At("options"))
		}
		if len(choices) == 0 {
			return nil
		}
		if o, ok := choices[0].(*pyjson.Object); ok {
			return o.At("key")
		}
		return choices[0]
	}
	return nil
}

// controlled reports whether the editor adds a control_after_generate widget after an input.
func controlled(name, kind string, options *pyjson.Object) bool {
	if v, ok := options.Get("control_after_generate"); ok && v != nil {
		return pyjson.Bool(v)
	}
	return kind == "INT" && (name == "seed" || name == "noise_seed")
}

// skipControl skips the value of control_after_generate and, for a list of choices, that of the filter next to it. A
// graph that a program wrote may lack them.
func (r *reader) skipControl(kind string) {
	if len(r.values) == 0 {
		return
	}
	switch r.values[0] {
	case "fixed", "increment", "increment-wrap", "decrement", "randomize", true, false, nil:
	default:
		return
	}
	r.values = r.values[1:]
	if kind == "COMBO" && len(r.values) > 0 {
		r.values = r.values[1:]
	}
}

// takeChoice assigns the inputs of the chosen alternative their values.
func (r *reader) takeChoice(name string, chosen any, options *pyjson.Object) {
	for _, v := range list(options.At("options")) {
		o, _ := v.(*pyjson.Object)
		if key, ok := o.At("key").(string); !ok || key != chosen {
			continue
		}
		for _, group := range []string{"required", "optional"} {
			specs := o.In("inputs").In(group)
			for _, k := range specs.Keys() {
				r.take(name+"."+k, specs.At(k))
			}
		}
		return
	}
}

// plainPrompt resolves the dynamic prompts in a text as the editor does on sending: comments are removed and one of
// {a|b} is chosen. The editor chooses at random; here it is the first, so that the same file gives the same picture.
func plainPrompt(s string) string {
	s = comment.ReplaceAllString(s, "")
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			if !strings.ContainsRune("{}|", rune(s[i+1])) {
				b.WriteByte('\\')
			}
			i++
			b.WriteByte(s[i])
		case s[i] == '{':
			end, first := choice(s, i+1)
			b.WriteString(plainPrompt(first))
			i = end
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// choice finds the end of a {a|b} whose content starts at i, and its first alternative.
func choice(s string, i int) (end int, first string) {
	depth, bar := 0, -1
	start := i
	for ; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth == 0 {
				if bar < 0 {
					bar = i
				}
				return i, s[start:bar]
			}
			depth--
		case '|':
			if depth == 0 && bar < 0 {
				bar = i
			}
		}
	}
	if bar < 0 {
		bar = len(s)
	}
	return len(s), s[start:bar]
}

// comment matches /* ... */, and // up to the end of the line.
var comment = regexp.MustCompile("(?s)/\\*.*?\\*/|//[^\n\r\u2028\u2029]*")
