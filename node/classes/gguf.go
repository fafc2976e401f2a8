package classes

import (
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// ggufClasses are the rows of the custom node package ComfyUI-GGUF that load models of families that Patchbay has. The
// stock loaders open the same files; these names let workflows that people have run unchanged.
func ggufClasses() []graph.Class {
	const module, category = "custom_nodes.ComfyUI-GGUF", "bootleg"
	unet, load := graph.File("unet_name", files.KindGGUF), opened(files.KindGGUF, "unet_name", value.OpenModel)
	text := func(fields ...string) func(*graph.Call) ([]any, error) {
		return func(c *graph.Call) ([]any, error) { return loadCLIP(c, c.Str("type"), fields...) }
	}
	precision := []string{"default", "target", "float32", "float16", "bfloat16"}
	return []graph.Class{
		{
			Name: "UnetLoaderGGUF", Display: "Unet Loader (GGUF)", Module: module, Category: category, Heavy: graph.StageLoad,
			Inputs: []graph.Input{unet}, Outputs: graph.Slots("MODEL"), Run: load,
			Change: modelChange(files.KindGGUF, "unet_name"),
		},
		{
			Name: "UnetLoaderGGUFAdvanced", Display: "Unet Loader (GGUF/Advanced)", Module: module, Category: category,
			Heavy: graph.StageLoad,
			Inputs: []graph.Input{
				unet, graph.Combo("dequant_dtype", "type that quantised weights are widened to",
					precision...).With("default", "default"),
				graph.Combo("patch_dtype", "adapters keep the type of their file", precision...).With("default", "default"),
				graph.Bool("patch_on_device", "adapters are always on the device", false),
			},
			Outputs: graph.Slots("MODEL"), Check: checkWidened, Run: load,
			Change: modelChange(files.KindGGUF, "unet_name"),
		},
		{
			Name: "CLIPLoaderGGUF", Display: "CLIPLoader (GGUF)", Module: module, Category: category, Heavy: graph.StageLoad,
			Inputs: []graph.Input{graph.File("clip_name", files.KindText), clipTypeInput()}, Outputs: graph.Slots("CLIP"),
			Check: checkClipType,
			Run:   text("clip_name"), Change: modelChange(files.KindText, "clip_name"),
		},
		{
			Name: "DualCLIPLoaderGGUF", Display: "DualCLIPLoader (GGUF)", Module: module, Category: category,
			Heavy: graph.StageLoad,
			Inputs: []graph.Input{
				graph.File("clip_name1", files.KindText), graph.File("clip_name2", files.KindText),
				dualClipTypeInput(),
			}, Outputs: graph.Slots("CLIP"), Check: checkClipType,
			Run: text("clip_name1", "clip_name2"), Change: modelChange(files.KindText, "clip_name1", "clip_name2"),
		},
	}
}

// wantsWide reports whether the node asks for quantised weights in f32 instead of bf16.
func wantsWide(c *graph.Call) bool { return c.Raw("dequant_dtype") == "float32" }

// checkWidened refuses a type that weights are not widened to.
func checkWidened(_ *graph.Job, _ *files.Roots, in *pyjson.Object) (field, text string) {
	if in.At("dequant_dtype") == "float16" {
		return "dequant_dtype", `float16 is not supported: quantised weights are widened to bfloat16 ("default", ` +
			`"target") or "float32"`
	}
	return "", ""
}
