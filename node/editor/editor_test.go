package editor_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/classes"
	"patchbay/node/editor"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// catalogue returns a function that describes the classes of this program.
func catalogue() func(string) *pyjson.Object { return classes.All().WithoutFiles }

func decoded(t *testing.T, text string) *pyjson.Object {
	t.Helper()
	v, err := pyjson.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*pyjson.Object)
}

// inputs returns the class and the inputs of the converted nodes as text, by id.
func inputs(t *testing.T, graph string) map[string]string {
	t.Helper()
	got, failure := editor.Convert(decoded(t, graph), catalogue())
	if failure != nil {
		t.Fatal(failure)
	}
	out := map[string]string{}
	for _, id := range got.Keys() {
		n := got.At(id).(*pyjson.Object)
		out[id] = pyjson.Str(n.At("class_type")) + " " + string(pyjson.Dump(n.At("inputs")))
	}
	return out
}

func compare(t *testing.T, graph string, want map[string]string) {
	t.Helper()
	got := inputs(t, graph)
	for id, w := range want {
		if got[id] != w {
			t.Errorf("node %s\n got %s\nwant %s", id, got[id], w)
		}
	}
	for id := range got {
		if want[id] == "" {
			t.Errorf("node %s should not be there: %s", id, got[id])
		}
	}
}

// TestWidgetsGetTheirNames checks that widget values get the names of the class's inputs in order, without
// control_after_generate and the upload button, that a linked widget becomes the link, that comments and choices in a
// prompt are resolved, and that a number stored as "auto" has its default, but not one with another text.
func TestWidgetsGetTheirNames(t *testing.T) {
	compare(t, `{"nodes": [
		{"id": 1, "type": "CLIPLoader", "widgets_values": ["t5.safetensors", "flux"]},
		{"id": 2, "type": "CLIPTextEncode", "inputs": [{"name": "clip", "type": "CLIP", "link": 1}],
			"widgets_values": ["a {red|blue} fox // not this\n\\{x\\} /* nor this */end"]},
		{"id": 3, "type": "EmptyLatentImage", "widgets_values": [64, 128, 1]},
		{"id": 7, "type": "PrimitiveInt", "widgets_values": [9, "fixed"]},
		{"id": 4, "type": "KSampler", "widgets_values": [42, "randomize", 4, 1.5, "euler", "simple", 0.5], "inputs": [
			{"name": "positive", "type": "CONDITIONING", "link": 2}, {"name": "latent_image", "type": "LATENT", "link": 3},
			{"name": "steps", "type": "INT", "link": 4, "widget": {"name": "steps"}}, {"name": "model", "type": "MODEL",
				"link": 99}]},
		{"id": 5, "type": "LoadImageMask", "widgets_values": ["x.png", "red", "image"]},
		{"id": 6, "type": "KSamplerAdvanced", "widgets_values": {"noise_seed": 3, "steps": 5}},
		{"id": 8, "type": "EmptyImage", "widgets_values": [64, "auto", "many", 0]},
		{"id": 9, "type": "PrimitiveString", "widgets_values": ["auto"]}],
		"links": [[1, 1, 0, 2, 0, "CLIP"], [2, 2, 0, 4, 0, "CONDITIONING"], [3, 3, 0, 4, 1, "LATENT"],
			[4, 7, 0, 4, 2, "INT"]]}`,
		map[string]string{
			"1": `CLIPLoader {"clip_name": "t5.safetensors", "type": "flux", "device": "default"}`,
			"2": `CLIPTextEncode {"text": "a red fox \n{x} end", "clip": ["1", 0]}`,
			"3": `EmptyLatentImage {"width": 64, "height": 128, "batch_size": 1}`,
			"7": `PrimitiveInt {"value": 9}`,
			"4": `KSampler {"seed": 42, "steps": ["7", 0], "cfg": 1.5, "sampler_name": "euler", "scheduler": "simple", ` +
				`"denoise": 0.5, "positive": ["2", 0], "latent_image": ["3", 0]}`,
			"9": `PrimitiveString {"value": "auto"}`,
			"8": `EmptyImage {"width": 64, "height": 512, "batch_size": "many", "color": 0}`,
			"5": `LoadImageMask {"image": "x.png", "channel": "red"}`,
			"6": `KSamplerAdvanced {"add_noise": "enable", "noise_seed": 3, "steps": 5, "cfg": 8.0, "sampler_name": "euler", ` +
				`"scheduler": "simple", "start_at_step": 0, "end_at_step": 10000, "return_with_leftover_noise": "disable"}`,
		})
}

// TestValuesByName checks that widgets_values_named wins over the list, that a widget that is in neither has its
// default although the list goes on, and that the inputs of a choice, which the names leave out, come from the list.
// The same holds for primitives and for instances of subgraphs.
func TestValuesByName(t *testing.T) {
	compare(t, `{"nodes": [
		{"id": 1, "type": "EmptyImage", "widgets_values": [64, 64, 1, 0],
			"widgets_values_named": {"width": 32, "height": 48, "batch_size": 2, "color": 7}},
		{"id": 2, "type": "KSampler", "widgets_values": [42, "randomize", 4, "euler", "simple", 0.5],
			"widgets_values_named": {"seed": 42, "control_after_generate": "randomize", "steps": 4,
				"sampler_name": "euler", "scheduler": "simple", "denoise": 0.5}},
		{"id": 3, "type": "ResizeImageMaskNode", "widgets_values": ["scale width", 99, "area"],
			"widgets_values_named": {"resize_type": "scale width", "scale_method": "lanczos"}},
		{"id": 4, "type": "PrimitiveNode", "widgets_values": [7, "fixed"], "widgets_values_named": {"value": 9}},
		{"id": 5, "type": "RepeatLatentBatch", "widgets_values": [2], "inputs": [
			{"name": "amount", "type": "INT", "link": 1, "widget": {"name": "amount"}}]},
		{"id": 6, "type": "sub", "widgets_values": [1, 2], "widgets_values_named": {"width": 16},
			"inputs": [{"name": "width", "type": "INT", "widget": {"name": "width"}},
				{"name": "height", "type": "INT", "widget": {"name": "height"}}]},
		{"id": 7, "type": "sub", "widgets_values": [5, 6, 7], "widgets_values_named": {"batch_size": 3, "color": 8},
			"properties": {"proxyWidgets": [["1", "batch_size"], ["1", "color"], ["2", "color"]]}}],
		"links": [[1, 4, 0, 5, 0, "INT"]],
		"definitions": {"subgraphs": [{"id": "sub", "inputs": [
			{"name": "width", "type": "INT", "linkIds": [1]}, {"name": "height", "type": "INT", "linkIds": [2]}],
			"nodes": [{"id": 1, "type": "EmptyImage", "widgets_values": [64, 64, 1, 0], "inputs": [
				{"name": "width", "type": "INT", "link": 1, "widget": {"name": "width"}},
				{"name": "height", "type": "INT", "link": 2, "widget": {"name": "height"}}]},
				{"id": 2, "type": "EmptyImage", "widgets_values": [64]}],
			"links": [[1, -10, 0, 1, 0, "INT"], [2, -10, 1, 1, 1, "INT"]]}]}}`,
		map[string]string{
			"1": `EmptyImage {"width": 32, "height": 48, "batch_size": 2, "color": 7}`,
			"2": `KSampler {"seed": 42, "steps": 4, "cfg": 8.0, "sampler_name": "euler", "scheduler": "simple", ` +
				`"denoise": 0.5}`,
			"3":   `ResizeImageMaskNode {"resize_type": "scale width", "resize_type.width": 99, "scale_method": "lanczos"}`,
			"5":   `RepeatLatentBatch {"amount": 9}`,
			"6:1": `EmptyImage {"width": 16, "height": 2, "batch_size": 1, "color": 0}`,
			"6:2": `EmptyImage {"width": 64, "height": 512, "batch_size": 1, "color": 0}`,
			"7:1": `EmptyImage {"width": 64, "height": 64, "batch_size": 3, "color": 6}`,
			"7:2": `EmptyImage {"width": 64, "height": 512, "batch_size": 1, "color": 7}`,
		})
}

// TestOptionsOfACustomCombo checks the widgets that the editor makes for this class: "index" follows the choice, also
// one that a subgraph's instance makes, and is missing in older graphs.
func TestOptionsOfACustomCombo(t *testing.T) {
	compare(t, `{"nodes": [
		{"id": 1, "type": "CustomCombo", "widgets_values": ["Turbo", 0, "Quality", "Default", "Turbo", ""]},
		{"id": 2, "type": "CustomCombo", "widgets_values": ["b", "a", "b", "b", ""]},
		{"id": 3, "type": "CustomCombo", "widgets_values": ["x", 7, "a", ""],
			"widgets_values_named": {"choice": "c", "index": 7, "option1": "c", "option2": ""}},
		{"id": 4, "type": "CustomCombo", "widgets_values": ["gone", 0, "a", ""]},
		{"id": 5, "type": "sub", "widgets_values": ["low"], "inputs": [{"name": "choice", "type": "COMBO",
			"widget": {"name": "choice"}}]},
		{"id": 6, "type": "PrimitiveString", "widgets_values": ["a"]},
		{"id": 7, "type": "CustomCombo", "widgets_values": ["b", 1, "a", "b", ""], "inputs": [
			{"name": "choice", "type": "COMBO", "link": 1, "widget": {"name": "choice"}}]}],
		"links": [[1, 6, 0, 7, 0, "STRING"]],
		"definitions": {"subgraphs": [{"id": "sub", "inputs": [{"name": "choice", "type": "COMBO", "linkIds": [1]}],
			"nodes": [{"id": 1, "type": "CustomCombo", "widgets_values": ["high", 0, "high", "low", ""], "inputs": [
				{"name": "choice", "type": "COMBO", "link": 1, "widget": {"name": "choice"}}]}],
			"links": [[1, -10, 0, 1, 0, "COMBO"]]}]}}`,
		map[string]string{
			"1": `CustomCombo {"choice": "Turbo", "index": 2, "option1": "Quality", "option2": "Default", ` +
				`"option3": "Turbo", "option4": ""}`,
			"2":   `CustomCombo {"choice": "b", "index": 1, "option1": "a", "option2": "b", "option3": "b", "option4": ""}`,
			"3":   `CustomCombo {"choice": "c", "index": 0, "option1": "c", "option2": ""}`,
			"4":   `CustomCombo {"choice": "gone", "index": -1, "option1": "a", "option2": ""}`,
			"5:1": `CustomCombo {"choice": "low", "index": 1, "option1": "high", "option2": "low", "option3": ""}`,
			"6":   `PrimitiveString {"value": "a"}`,
			"7":   `CustomCombo {"choice": ["6", 0], "index": 1, "option1": "a", "option2": "b", "option3": ""}`,
		})
}

// TestWhatOnlyTheEditorKnows checks the conversion of reroutes, primitives, notes, muted and bypassed nodes.
func TestWhatOnlyTheEditorKnows(t *testing.T) {
	compare(t, `{"nodes": [
		{"id": 1, "type": "EmptyLatentImage", "widgets_values": [64, 64, 1]},
		{"id": 2, "type": "Reroute", "inputs": [{"name": "", "type": "*", "link": 1}], "outputs": [{"name": "",
			"type": "LATENT"}]},
		{"id": 3, "type": "Reroute", "mode": 0, "inputs": [{"name": "", "type": "*", "link": 2}]},
		{"id": 4, "type": "LatentFlip", "mode": 4, "widgets_values": ["x-axis: vertically"],
			"inputs": [{"name": "samples", "type": "LATENT", "link": 3}], "outputs": [{"name": "LATENT", "type": "LATENT"}]},
		{"id": 5, "type": "RepeatLatentBatch", "widgets_values": [2], "inputs": [{"name": "samples", "type": "LATENT",
			"link": 4},
			{"name": "amount", "type": "INT", "link": 5, "widget": {"name": "amount"}}]},
		{"id": 6, "type": "PrimitiveNode", "mode": 2, "widgets_values": [7, "fixed"]},
		{"id": 7, "type": "Note", "widgets_values": ["hello"]}, {"id": 8, "type": "MarkdownNote", "widgets_values": ["x"]},
		{"id": 9, "type": "VAEDecode", "inputs": [{"name": "samples", "type": "LATENT", "link": 6},
			{"name": "vae", "type": "VAE", "link": 7}]},
		{"id": 10, "type": "VAELoader", "mode": 2, "widgets_values": ["x"], "outputs": [{"name": "VAE", "type": "VAE"}]},
		{"id": 11, "type": "ANodeThatIsNotHere", "mode": 2},
		{"id": 12, "type": "SaveLatent", "widgets_values": ["p"], "inputs": [{"name": "samples", "type": "LATENT",
			"link": 8}]},
		{"id": 13, "type": "AlsoNotHere", "mode": 4, "inputs": [{"name": "a", "type": "IMAGE", "link": null},
			{"name": "b", "type": "LATENT,MASK", "link": 9}], "outputs": [{"name": "o", "type": "LATENT"}]}],
		"links": [[1, 1, 0, 2, 0, "*"], [2, 2, 0, 3, 0, "*"], [3, 3, 0, 4, 0, "LATENT"], [4, 4, 0, 5, 0, "LATENT"],
			[5, 6, 0, 5, 1, "INT"], [6, 5, 0, 9, 0, "LATENT"], [7, 10, 0, 9, 1, "VAE"], [8, 13, 0, 12, 0, "LATENT"],
			[9, 5, 0, 13, 1, "LATENT"]]}`,
		map[string]string{
			"1":  `EmptyLatentImage {"width": 64, "height": 64, "batch_size": 1}`,
			"5":  `RepeatLatentBatch {"amount": 7, "samples": ["1", 0]}`,
			"9":  `VAEDecode {"samples": ["5", 0]}`,
			"12": `SaveLatent {"filename_prefix": "p", "samples": ["5", 0]}`,
		})
}

// nested is a graph whose subgraph "outer" contains two instances of "inner". Inner encodes its input text. Outer's own
// input is the text of the first instance, and proxyWidgets name the text of the second and a seed.
const nested = `{"nodes": [
	{"id": 1, "type": "CLIPLoader", "widgets_values": ["t5.safetensors", "flux"]},
	{"id": 2, "type": "outer", "widgets_values": [%s], "properties": {%s},
		"inputs": [{"name": "clip", "type": "CLIP", "link": 1}, {"name": "text", "type": "STRING",
			"widget": {"name": "text"}}],
		"outputs": [{"name": "latent", "type": "LATENT"}]},
	{"id": 3, "type": "SaveLatent", "widgets_values": ["p"], "inputs": [{"name": "samples", "type": "LATENT",
		"link": 2}]}],
	"links": [[1, 1, 0, 2, 0, "CLIP"], [2, 2, 0, 3, 0, "LATENT"]],
	"definitions": {"subgraphs": [
		{"id": "inner", "name": "Prompt", "inputs": [{"name": "clip", "type": "CLIP", "linkIds": [1]},
			{"name": "text", "type": "STRING", "linkIds": [2]}], "outputs": [{"name": "c", "type": "CONDITIONING",
				"linkIds": [3]}],
		 "nodes": [{"id": 5, "type": "CLIPTextEncode", "widgets_values": ["inside"], "inputs": [
			{"name": "clip", "type": "CLIP", "link": 1}, {"name": "text", "type": "STRING", "link": 2,
				"widget": {"name": "text"}}]}],
		 "links": [{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 5, "target_slot": 0},
			{"id": 2, "origin_id": -10, "origin_slot": 1, "target_id": 5, "target_slot": 1},
			{"id": 3, "origin_id": 5, "origin_slot": 0, "target_id": -20, "target_slot": 0}]},
		{"id": "outer", "name": "Sample", "inputs": [{"name": "clip", "type": "CLIP", "linkIds": [1, 2]},
			{"name": "text", "type": "STRING", "linkIds": [3]}], "outputs": [{"name": "latent", "type": "LATENT",
				"linkIds": [6]}],
		 "nodes": [
			{"id": 7, "type": "inner", "inputs": [{"name": "clip", "type": "CLIP", "link": 1},
				{"name": "text", "type": "STRING", "link": 3, "widget": {"name": "text"}}]},
			{"id": 8, "type": "inner", "widgets_values": [], "inputs": [{"name": "clip", "type": "CLIP", "link": 2}]},
			{"id": 9, "type": "KSampler", "widgets_values": [1, "fixed", 4, 1, "euler", "simple", 1], "inputs": [
				{"name": "positive", "type": "CONDITIONING", "link": 4}, {"name": "negative", "type": "CONDITIONING", "link": 5}]}],
		 "links": [{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 7, "target_slot": 0},
			{"id": 2, "origin_id": -10, "origin_slot": 0, "target_id": 8, "target_slot": 0},
			{"id": 3, "origin_id": -10, "origin_slot": 1, "target_id": 7, "target_slot": 1},
			{"id": 4, "origin_id": 7, "origin_slot": 0, "target_id": 9, "target_slot": 0},
			{"id": 5, "origin_id": 8, "origin_slot": 0, "target_id": 9, "target_slot": 1},
			{"id": 6, "origin_id": 9, "origin_slot": 0, "target_id": -20, "target_slot": 0}]}]}}`

// TestSubgraphs checks that instances are expanded with ids of their own, and that a value comes from the outermost
// level that sets it.
func TestSubgraphs(t *testing.T) {
	for _, c := range []struct{ values, properties, first, second, seed string }{
		{``, ``, "inside", "inside", "1"},
		{`"mine"`, ``, "mine", "inside", "1"},
		{`"mine", "other", 77`, `"proxyWidgets": [["-1", "text"], ["8", "text"], ["9", "seed"]]`, "mine", "other", "77"},
		{``, `"proxyWidgets": [["-1", "text"], ["8", "text"], ["9", "seed"]]`, "inside", "inside", "1"},
		{`null, "deep"`, `"proxyWidgets": [["7", "text"], ["8", "5: text"]]`, "inside", "deep", "1"},
	} {
		encode := func(text string) string {
			return fmt.Sprintf(`CLIPTextEncode {"text": "%s", "clip": ["1", 0]}`, text)
		}
		compare(t, fmt.Sprintf(nested, c.values, c.properties), map[string]string{
			"1": `CLIPLoader {"clip_name": "t5.safetensors", "type": "flux", "device": "default"}`,
			"3": `SaveLatent {"filename_prefix": "p", "samples": ["2:9", 0]}`, "2:7:5": encode(c.first),
			"2:8:5": encode(c.second),
			"2:9": `KSampler {"seed": ` + c.seed + `, "steps": 4, "cfg": 1, "sampler_name": "euler", "scheduler": "simple", ` +
				`"denoise": 1, "positive": ["2:7:5", 0], "negative": ["2:8:5", 0]}`,
		})
	}
}

func TestRefusals(t *testing.T) {
	twice := strings.Repeat(`{"id": 1, "type": "b"}, {"id": 2, "type": "b"},`, 1)
	bomb := `{"nodes": [{"id": 1, "type": "a0"}], "links": [], "definitions": {"subgraphs": [`
	for i := range 30 {
		bomb += strings.ReplaceAll(fmt.Sprintf(`{"id": "a%d", "links": [], "nodes": [%s]},`, i,
			strings.TrimSuffix(twice, ",")), `"b"`, fmt.Sprintf(`"a%d"`, i+1))
	}
	bomb = strings.TrimSuffix(bomb, ",") + "]}}"
	for name, c := range map[string]struct{ graph, code, says string }{
		"group node": {
			`{"nodes": [{"id": 4, "type": "workflow>Mine"}], "links": []}`, fault.WorkflowFormatUI, "group node",
		},
		"old group node": {
			`{"nodes": [{"id": 4, "type": "workflow/Mine"}], "links": []}`, fault.WorkflowFormatUI, "workflow/Mine",
		},
		"unknown class": {
			`{"nodes": [{"id": 4, "type": "Nope", "title": "My"}], "links": []}`, fault.MissingNodeType, "'My' not found",
		},
		"holds itself": {
			`{"nodes": [{"id": 1, "type": "s"}], "links": [], "definitions": {"subgraphs": [
				{"id": "s", "nodes": [{"id": 1, "type": "s"}], "links": []}]}}`, fault.WorkflowFormatUI, "holds itself",
		},
		"grows": {bomb, fault.WorkflowTooLarge, "written out"},
		"circle": {
			`{"nodes": [{"id": 1, "type": "Reroute", "inputs": [{"link": 1}]}, {"id": 2, "type": "Reroute",
				"inputs": [{"link": 2}]},
				{"id": 3, "type": "SaveLatent", "inputs": [{"name": "samples", "type": "LATENT", "link": 3}]}],
				"links": [[1, 2, 0, 1, 0], [2, 1, 0, 2, 0], [3, 1, 0, 3, 0]]}`, fault.WorkflowFormatUI, "circle",
		},
	} {
		_, failure := editor.Convert(decoded(t, c.graph), catalogue())
		if failure == nil || failure.Code != c.code || !strings.Contains(failure.Error(), c.says) {
			t.Errorf("%s: got %v, want %s and %q", name, failure, c.code, c.says)
		}
	}
}

// FuzzConvert checks that conversion terminates with either a graph or a failure for any file.
func FuzzConvert(f *testing.F) {
	f.Add(fmt.Sprintf(nested, `"mine"`, `"proxyWidgets": [["8", "text"]]`))
	f.Add(`{"nodes": [{"id": [], "type": 1, "inputs": [1], "widgets_values": 3}], "links": [[1], 2, {}]}`)
	describe := catalogue()
	f.Fuzz(func(t *testing.T, text string) {
		v, err := pyjson.Decode([]byte(text))
		if o, ok := v.(*pyjson.Object); ok && err == nil {
			if out, failure := editor.Convert(o, describe); (out == nil) == (failure == nil) {
				t.Errorf("got %v and %v", out, failure)
			}
		}
	})
}

// TestComfyUIExamplesConvert converts the workflow text of every PNG below the folder PATCHBAY_COMFYUI_EXAMPLES that
// also has a prompt, and compares the two, without the inputs that the class got later. The object_info that
// PATCHBAY_OBJECT_INFO names describes the classes.
func TestComfyUIExamplesConvert(t *testing.T) {
	dir, info := os.Getenv("PATCHBAY_COMFYUI_EXAMPLES"), os.Getenv("PATCHBAY_OBJECT_INFO")
	if dir == "" || info == "" {
		t.Skip("NOT RUN: PATCHBAY_COMFYUI_EXAMPLES and PATCHBAY_OBJECT_INFO name no examples of ComfyUI and no /object_info")
	}
	raw, err := os.ReadFile(info)
	if err != nil {
		t.Fatal(err)
	}
	entries := decoded(t, string(raw))
	describe := func(class string) *pyjson.Object { o, _ := entries.At(class).(*pyjson.Object); return o }
	seen, equal := 0, 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".png" {
			return err
		}
		prompt, workflow := texts(t, path)
		if prompt == nil || workflow == nil {
			return nil
		}
		seen++
		got, failure := editor.Convert(workflow, describe)
		switch {
		case failure != nil && failure.Code == fault.WorkflowFormatUI:
			t.Logf("%s: %v", path, failure)
		case failure != nil:
			t.Errorf("%s: %v", path, failure)
		case bare(got, prompt) != bare(prompt, prompt):
			t.Errorf("%s\n got %s\nwant %s", path, bare(got, prompt), bare(prompt, prompt))
		default:
			equal++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d pictures give the prompt that is in them", equal, seen)
}

// TestForeignClassesSayWhatTheyAreFor checks the texts that refuse classes of models that are not supported, in both
// formats; any other unknown class has ComfyUI's text.
func TestForeignClassesSayWhatTheyAreFor(t *testing.T) {
	for class, want := range map[string]string{
		"QuadrupleCLIPLoader": "Node 'x' (QuadrupleCLIPLoader) is made for HiDream, which is not supported.",
		"LotusConditioning": "Node 'x' (LotusConditioning) is made for Lotus (a UNet of Stable Diffusion 2), which is not " +
			"supported.",
		"Other": "Node 'x' not found. The custom node may not be installed.",
	} {
		_, failure := editor.Convert(decoded(t, `{"nodes": [{"id": 1, "type": "`+class+`", "title": "x"}], "links": []}`),
			catalogue())
		if failure == nil || failure.Text != want || failure.Code != fault.MissingNodeType {
			t.Errorf("%s in the editor's format: %v, want %s", class, failure, want)
		}
		w, failure := graph.ParseWorkflow(decoded(t, `{"1": {"class_type": "`+class+`", "inputs": {},
			"_meta": {"title": "x"}}}`))
		if failure != nil {
			t.Fatal(failure)
		}
		_, failure = graph.Validate(classes.All(), files.Roots{}, graph.Job{Workflow: w})
		if failure == nil || failure.Text != want || failure.Code != fault.MissingNodeType {
			t.Errorf("%s: %v, want %s", class, failure, want)
		}
	}
}
