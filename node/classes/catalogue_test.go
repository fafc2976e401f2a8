package classes

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// order1 lists classes that the catalogue must have.
func order1() []string {
	return []string{
		"SaveImage", "PreviewImage", "LoadImage", "VAEDecode", "VAEEncode", "CLIPTextEncode", "CLIPTextEncodeFlux",
		"KSampler", "KSamplerAdvanced", "SamplerCustomAdvanced",
		"KSamplerSelect", "BasicScheduler", "BasicGuider", "CFGGuider", "RandomNoise", "EmptySD3LatentImage",
		"EmptyLatentImage", "UNETLoader", "VAELoader",
		"CheckpointLoaderSimple", "CLIPLoader", "DualCLIPLoader", "FluxGuidance", "ModelSamplingFlux", "T5TokenizerOptions",
		"ConditioningZeroOut",
		"ConditioningSetTimestepRange", "ConditioningCombine", "SaveLatent", "LoadLatent", "ReferenceMultiLatent",
		"CreateBoundingBoxes", "Flux3LayoutPrompt", "CLIPTextEncodeSDXL", "CLIPTextEncodeSDXLRefiner",
		"ModelSamplingDiscrete", "RescaleCFG",
		"ModelSamplingContinuousEDM", "ModelSamplingContinuousV",
	}
}

func TestCatalogueHasTheClasses(t *testing.T) {
	cat := All()
	for _, name := range order1() {
		if cat.Class(name) == nil {
			t.Errorf("class %s is missing", name)
		}
	}
	for _, name := range cat.Classes() {
		k := cat.Class(name)
		if k.Run == nil || k.Module == "" || k.Category == "" {
			t.Errorf("class %s has no function, module or category", name)
		}
		if len(k.Outputs) == 0 && !k.Output {
			t.Errorf("class %s has no outputs and is no output node", name)
		}
	}
}

// TestObjectInfoMatchesGolden compares the entry of each of our classes with ComfyUI 0.33.0's: keys and their order,
// inputs, defaults, limits, outputs. The recorded file has no tooltips or descriptions, and "<files>" for lists of
// files.
func TestObjectInfoMatchesGolden(t *testing.T) {
	raw, err := golden.Read("server/object_info.json")
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := pyjson.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	classes, _ := decoded.(*pyjson.Object).Get("classes")
	cat, compared := All(), 0
	for _, name := range cat.Classes() {
		want, ok := classes.(*pyjson.Object).Get(name)
		if !ok {
			continue
		}
		compared++
		text, err := json.Marshal(cat.ObjectInfo(files.Roots{}, name)[name])
		if err != nil {
			t.Fatal(err)
		}
		got, err := pyjson.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		got = withFiles(cat.Class(name), stripped(got)).(*pyjson.Object)
		a, b := string(pyjson.Dump(got)), string(pyjson.Dump(want))
		switch name { // what ComfyUI got later
		case "CLIPLoader":
			a = strings.Replace(a, `, "flux3"`, "", 1)
		case "TextGenerate":
			a = strings.NewReplacer(`, "mtp": ["COMBO", {"multiselect": false, `+
				`"options": ["auto", "off", "2", "3", "4", "5"]}], "system_prompt": ["STRING", {"forceInput": true}]`, "",
				`, "mtp", "system_prompt"`, "",
				`["STRING", "STRING"], "output_is_list": [false, false]`, `["STRING"], "output_is_list": [false]`,
				`, "thinking"], "output_m`, `], "output_m`).Replace(a)
		}
		if a != b {
			t.Errorf("object_info of %s\n got %s\nwant %s", name, a, b)
		}
	}
	if compared < 27 {
		t.Errorf("compared %d classes with the recorded server, want at least 27", compared)
	}
}

// stripped returns v without tooltips and descriptions, which the recorded file leaves out.
func stripped(v any) any {
	switch x := v.(type) {
	case *pyjson.Object:
		o := pyjson.NewObject()
		for _, k := range x.Keys() {
			if _, isText := x.At(k).(string); isText && (k == "tooltip" || k == "description") {
				continue
			}
			o.Set(k, stripped(x.At(k)))
		}
		return o
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = stripped(x[i])
		}
		return out
	}
	return v
}

// withFiles replaces lists of files in an entry by "<files>".
func withFiles(k *graph.Class, v any) any {
	input, _ := v.(*pyjson.Object).Get("input")
	for _, group := range []string{"required", "optional"} {
		g, ok := input.(*pyjson.Object).Get(group)
		if !ok {
			continue
		}
		for _, name := range g.(*pyjson.Object).Keys() {
			if in := k.Input(name); in.Files != "" {
				config := g.(*pyjson.Object).At(name).([]any)
				if k.NewStyle() {
					config[1].(*pyjson.Object).Set("options", []any{"<files>"})
					continue
				}
				config[0] = []any{"<files>"}
			}
		}
	}
	return v
}

func TestObjectInfoListsFiles(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{
		"unet/b.safetensors", "diffusion_models/sub/a.sft", "diffusion_models/notes.txt",
		"vae/ae.safetensors",
	} {
		scratch.Touch(t, filepath.Join(root, f))
	}
	info := All().ObjectInfo(files.Roots{Models: []string{root}}, "UNETLoader")
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	var entry struct {
		UNETLoader struct {
			Input struct {
				Required struct {
					Name []any `json:"unet_name"`
				}
			}
		}
	}
	if err := json.Unmarshal(text, &entry); err != nil {
		t.Fatal(err)
	}
	want := []any{[]any{"b.safetensors", "sub/a.sft"}}
	if got := entry.UNETLoader.Input.Required.Name; !reflect.DeepEqual(got, want) {
		t.Errorf("unet_name lists %v, want %v", got, want)
	}
	if got := All().ObjectInfo(files.Roots{}, "NoSuchClass"); len(got) != 0 {
		t.Errorf("an unknown class gives %v, want nothing", got)
	}
	if all := All().ObjectInfo(files.Roots{}, ""); !slices.Contains(order1(), "KSampler") ||
		len(all) != len(All().Classes()) {
		t.Errorf("all classes: %d entries", len(all))
	}
}
