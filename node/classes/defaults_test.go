package classes

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/editor"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// TestMissingWidgetsHaveTheirDefaults drops the last value, and then all values, from the widgets_values of every class
// as ComfyUI 0.33.0's object_info describes it: the graph still converts to the defaults recorded there, and validation
// has nothing against them.
func TestMissingWidgetsHaveTheirDefaults(t *testing.T) {
	raw, err := golden.Read("server/object_info.json")
	check(t, err)
	decoded, err := pyjson.Decode(raw)
	check(t, err)
	recorded, cat, swept := decoded.(*pyjson.Object).In("classes"), All(), 0
	describe := cat.WithoutFiles
	for _, class := range cat.Classes() {
		entry := cmp.Or(recorded.In(class), describe(class)) // of classes that no server was asked about
		names, defaults, values := widgetDefaults(cat.Class(class), entry)
		if len(names) == 0 {
			continue
		}
		swept++
		for _, left := range []int{len(values) - 1, 0} {
			g := pyjson.NewObject("links", []any{[]any{int64(1), int64(1), int64(0), int64(2), int64(0), "*"}}, "nodes", []any{
				pyjson.NewObject("id", int64(1), "type", class, "widgets_values", values[:left]),
				pyjson.NewObject("id", int64(2), "type", "PreviewAny", "inputs", []any{
					pyjson.NewObject("name", "source", "type", "*", "link", int64(1)),
				}),
			})
			api, failure := editor.Convert(g, describe)
			if failure != nil {
				t.Errorf("%s with %d of %d values: %v", class, left, len(values), failure)
				continue
			}
			in := api.In("1").In("inputs")
			for i, name := range names {
				got, want := pyjson.Repr(in.At(name)), pyjson.Repr(defaults[i])
				if _, list := defaults[i].([]any); list { // else it would be a link
					want = "{'__value__': " + want + "}"
				}
				if !in.Has(name) || got != want {
					t.Errorf("%s with %d of %d values: %s is %s, want the default %s", class, left, len(values), name, got, want)
				}
			}
			w, failure := graph.ParseWorkflow(api)
			if failure != nil {
				t.Fatal(failure)
			}
			_, failure = graph.Validate(cat, files.Roots{}, graph.Job{Workflow: w})
			for _, e := range errorsOf(failure, "1") {
				if name := e.In("extra_info").Text("input_name"); slices.Contains(names, name) {
					t.Errorf("%s with %d of %d values: %s is refused: %s", class, left, len(values), name, pyjson.Dump(e))
				}
			}
		}
	}
	if t.Logf("%d classes", swept); swept < 120 {
		t.Errorf("%d classes with widgets, want at least 120", swept)
	}
}

// widgetDefaults returns the names and defaults of the widgets in the object_info entry of a class, except for lists of
// files, and the values that the editor stores for all of them. Of a choice with inputs of its own, those of the first
// alternative follow.
func widgetDefaults(k *graph.Class, entry *pyjson.Object) (names []string, defaults, values []any) {
	var add func(specs *pyjson.Object, prefix string)
	add = func(specs *pyjson.Object, prefix string) {
		for _, name := range specs.Keys() {
			spec, _ := specs.At(name).([]any)
			options := pyjson.NewObject()
			if len(spec) > 1 {
				options, _ = spec[1].(*pyjson.Object)
			}
			choices, isList := spec[0].([]any)
			if !isList {
				choices, _ = options.At("options").([]any)
			}
			v := options.At("default")
			in := k.Input(prefix + name)
			switch {
			case options.At("forceInput") == true:
				continue
			case in != nil && in.Files != "":
				values = append(values, "a file")
				continue
			case v != nil:
			case len(choices) > 0:
				v = choices[0]
			default:
				zero, isWidget := map[any]any{"INT": int64(0), "FLOAT": int64(0), "STRING": "", "BOOLEAN": false}[spec[0]]
				if !isWidget {
					continue
				}
				v = zero
			}
			first, dynamic := v.(*pyjson.Object)
			if dynamic = dynamic && len(choices) > 0; dynamic {
				v = first.At("key")
			}
			names, defaults, values = append(names, prefix+name), append(defaults, v), append(values, v)
			if dynamic {
				add(first.In("inputs").In("required"), name+".")
				add(first.In("inputs").In("optional"), name+".")
			}
		}
	}
	add(entry.In("input").In("required"), "")
	add(entry.In("input").In("optional"), "")
	return names, defaults, values
}

// TestMissingFilesAreTheFirstOfTheirList leaves the values of every class with a list of files out of an editor graph.
// The editor creates such a widget with the first entry, in Python's order of names; without any file the graph is
// refused by name, but for a VAELoader, whose list always ends with pixel_space.
func TestMissingFilesAreTheFirstOfTheirList(t *testing.T) {
	base, cat, seen := t.TempDir(), All(), 0
	full := files.Roots{Models: []string{filepath.Join(base, "models")}, Input: filepath.Join(base, "input")}
	for _, dir := range append(files.Kinds(), "../input") {
		for _, ext := range []string{".safetensors", ".gguf", ".png", ".latent", ".mp4"} {
			for _, name := range []string{"apple", "Zebra", "sub/Aardvark", "mole"} {
				scratch.Touch(t, filepath.Join(full.Models[0], dir, filepath.FromSlash(name)+ext))
			}
		}
	}
	for _, class := range cat.Classes() {
		k := cat.Class(class)
		var lists []string
		for _, in := range k.Inputs {
			if in.Files != "" {
				lists = append(lists, in.Name)
			}
		}
		if lists == nil {
			continue
		}
		seen++
		g := pyjson.NewObject("links", []any{[]any{int64(1), int64(1), int64(0), int64(2), int64(0), "*"}}, "nodes", []any{
			pyjson.NewObject("id", int64(1), "type", class), pyjson.NewObject("id", int64(2), "type", "PreviewAny", "inputs",
				[]any{pyjson.NewObject("name", "source", "type", "*", "link", int64(1))}),
		})
		for _, roots := range []files.Roots{full, {}} {
			api, failure := editor.Convert(g, cat.WithoutFiles)
			if failure != nil {
				t.Fatal(failure)
			}
			w, failure := graph.ParseWorkflow(api)
			if failure != nil {
				t.Fatal(failure)
			}
			_, failure = graph.Validate(cat, roots, graph.Job{Workflow: w})
			text := ""
			for _, e := range errorsOf(failure, "1") {
				text += e.Text("details") + "\n"
			}
			for _, name := range lists {
				v, _ := w.Input("1", name)
				got, _ := v.(string)
				switch stem, _, _ := strings.Cut(got, "."); {
				case name == "vae_name" && roots.Input == "" && got == value.PixelSpace:
				case roots.Input == "":
					if want := name + ": '<first file>' not in []: the graph was saved without a file"; !strings.Contains(text, want) {
						t.Errorf("%s without files: %s is %q: %s\nwant %s", class, name, got, text, want)
					}
				case stem != "Zebra" || strings.Contains(text, name):
					t.Errorf("%s: %s is %q, want the first file, Zebra: %s", class, name, got, text)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("%d classes with lists of files, want at least 15", seen)
	}
	t.Logf("%d classes", seen)
}

// errorsOf returns the errors of one node in a failed validation.
func errorsOf(failure *fault.Error, id string) (out []*pyjson.Object) {
	if failure == nil {
		return nil
	}
	v, _ := pyjson.Decode(pyjson.Dump(failure.NodeErrors[id]))
	o, _ := v.(*pyjson.Object)
	list, _ := o.At("errors").([]any)
	for _, e := range list {
		out = append(out, e.(*pyjson.Object))
	}
	return out
}
