package tests

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
)

// badRow is one input that a user may send, and the expected answer.
type badRow struct {
	name string
	file string   // content of the workflow file
	args []string // more arguments of `patchbay run`
	exit int      // 0 done, 1 the job failed, 2 refused
	says []string // all of these must be in stderr; the first is the error code, where the fault has one
	// picture is the size of the picture that exit 0 must make.
	picture [2]int
	// short keeps the row under -short.
	short bool
}

// raw is text that goes into a workflow verbatim: NaN, 2^64, anything that JSON or its encoders do not have.
type raw string

// change sets one input of examples/demo.json, or the class of a node.
type change struct {
	node, field string
	value       any
}

// flow returns examples/demo.json as a 96x96 picture in 2 steps, with changes. A nil value removes the input.
func flow(t testing.TB, changes ...change) string {
	t.Helper()
	nodes := demoNodes(t)
	for _, c := range append([]change{{"3", "steps", 2}, {"5", "width", 96}, {"5", "height", 96}}, changes...) {
		in := nodes[c.node].Inputs
		if c.field == "class_type" {
			n := nodes[c.node]
			n.Class = c.value.(string)
			nodes[c.node] = n
			continue
		}
		in[c.field] = c.value
		if c.value == nil {
			delete(in, c.field)
		}
	}
	return graph(t, nodes)
}

// with is flow with one node added or replaced.
func with(t testing.TB, id, class string, inputs map[string]any, changes ...change) string {
	t.Helper()
	nodes := map[string]graphNode{}
	if err := exactJSON([]byte(flow(t, changes...)), &nodes); err != nil {
		t.Fatal(err)
	}
	nodes[id] = graphNode{class, inputs}
	return graph(t, nodes)
}

// link returns an input that takes the output of another node.
func link(id string, slot int) []any { return []any{id, slot} }

func badRows(t *testing.T, h *hostile) []badRow {
	rows := formRows(t)
	rows = append(rows, graphRows(t)...)
	rows = append(rows, nameRows(t, h)...)
	rows = append(rows, modelRows(t, h)...)
	rows = append(rows, latentRows(t)...)
	rows = append(rows, numberRows(t)...)
	rows = append(rows, textRows(t)...)
	return append(rows, planRows(t)...)
}

// formRows returns bytes that are no workflow.
func formRows(t *testing.T) []badRow {
	deep := func(open string) string { return strings.Repeat(open, 10_000_000/len(open)) }
	whole := flow(t)
	return []badRow{
		{name: "not JSON", file: "hello", exit: 2, says: []string{"flow.json", "not a workflow", "byte 0"}, short: true},
		{name: "cut JSON", file: whole[:len(whole)/2], exit: 2, says: []string{"not a workflow", "at byte"}},
		{name: "two values", file: whole + whole, exit: 2, says: []string{"not a workflow", "at byte"}},
		{name: "a list", file: "[1,2]", exit: 2, says: []string{"not a workflow", "map"}},
		{name: "a number", file: "42", exit: 2, says: []string{"not a workflow"}},
		{name: "an empty map", file: "{}", exit: 2, says: []string{"workflow"}},
		{
			name: "JSON that is no workflow", file: `{"name":"x","version":3}`, exit: 2,
			says: []string{"bad_request", "no workflow", "prompt", "API format"}, short: true,
		},
		{name: "a node without class", file: `{"workflow":` + strings.Replace(whole, `"class_type":"VAEDecode",`, "", 1) +
			"}", exit: 2, says: []string{"bad_workflow", "class_type", "#8"}},
		{
			name: "a bare graph with a node without class", file: strings.Replace(whole, `"class_type":"VAEDecode",`, "", 1),
			exit: 2, says: []string{"bad_workflow", "class_type", "#8"},
		},
		{
			name: "the editor's format", file: `{"nodes":[{"id":1,"type":"KSampler"}],"links":[]}`, exit: 2,
			says: []string{"bad_workflow", "no outputs"},
		},
		{name: "empty", file: "", exit: 2, says: []string{"empty"}, short: true},
		{name: "only spaces", file: " \n\t ", exit: 2, says: []string{"empty"}},
		{name: "lists 10^7 deep", file: deep("["), exit: 2, says: []string{"deep", "64"}, short: true},
		{name: "maps 10^7 deep", file: deep(`{"a":`), exit: 2, says: []string{"deep", "64"}},
		{name: "lists 10^7 deep inside", file: `{"1":` + deep("["), exit: 2, says: []string{"deep", "64"}},
		{name: "broken UTF-8", file: strings.Replace(whole, "heart", "h\xff\xfe", 1), exit: 2, says: []string{"UTF-8"}},
		{name: "a cut PNG", file: "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", exit: 2, says: []string{"flow.json", "PNG"}},
	}
}

// graphRows returns workflows whose nodes do not fit together.
func graphRows(t *testing.T) []badRow {
	return []badRow{
		{
			name: "unknown class", file: flow(t, change{"3", "class_type", "KSamplr"}), exit: 2,
			says: []string{"bad_workflow", "node 3", "KSamplr", "not found"}, short: true,
		},
		{
			name: "unknown class that nothing needs", file: with(t, "99", "WarpDrive", nil), exit: 2,
			says: []string{"bad_workflow", "node 99", "WarpDrive"},
		},
		{
			name: "no output node",
			file: `{"1":{"class_type":"EmptyLatentImage","inputs":{"width":64,"height":64,"batch_size":1}}}`,
			exit: 2, says: []string{"bad_workflow", "no outputs"},
		},
		{
			name: "missing input", file: flow(t, change{"3", "sampler_name", nil}), exit: 2,
			says: []string{"bad_workflow", "node 3", "Required input is missing", "sampler_name"},
		},
		{
			name: "unknown sampler", file: flow(t, change{"3", "sampler_name", "euleer"}), exit: 2,
			says: []string{"bad_workflow", "node 3", "sampler_name", "'euleer' not in"},
		},
		{
			name: "unknown schedule", file: flow(t, change{"3", "scheduler", "simpel"}), exit: 2,
			says: []string{"bad_workflow", "node 3", "scheduler", "'simpel' not in", "sgm_uniform"},
		},
		{
			name: "link to no node", file: flow(t, change{"3", "model", link("77", 0)}), exit: 2,
			says: []string{"bad_workflow", "77"},
		},
		{
			name: "link to no output", file: flow(t, change{"3", "model", link("1", 5)}), exit: 2,
			says: []string{"bad_workflow", "index out of range"},
		},
		{
			name: "link of another type", file: flow(t, change{"3", "model", link("4", 0)}), exit: 2,
			says: []string{"bad_workflow", "node 3", "model", "VAE", "MODEL"}, short: true,
		},
		{
			name: "literal for a link", file: flow(t, change{"3", "model", "demo_flux.safetensors"}), exit: 2,
			says: []string{"bad_workflow", "node 3", "model", "link"},
		},
		{
			name: "a cycle", file: flow(t, change{"3", "latent_image", link("3", 0)}), exit: 2,
			says: []string{"bad_workflow", "cycle", "3 (KSampler)"},
		},
		{name: "inputs that are a list", file: strings.Replace(flow(t), `"inputs":{"vae_name":"demo_ae.safetensors"}`,
			`"inputs":[1]`, 1), exit: 2, says: []string{"bad_workflow", "node 4", "VAELoader"}},
		{
			name: "class of 10^5 letters", file: flow(t, change{"3", "class_type", strings.Repeat("x", 100000)}), exit: 2,
			says: []string{"bad_workflow", "node 3", "not found", "(100000 bytes)"},
		},
		{
			name: "node id of 10^5 letters", file: with(t, strings.Repeat("k", 100000), "VAELoader", nil), exit: 2,
			says: []string{"too_large", "node id", "100000 bytes", "256"},
		},
		{
			name: "sampler of 10^5 letters", file: flow(t, change{"3", "sampler_name", strings.Repeat("é", 50000)}), exit: 2,
			says: []string{"bad_workflow", "node 3", "sampler_name", " bytes)"},
		},
		{
			name: "combined with itself 40 times", file: doubled(t, 40), exit: 1,
			says: []string{"bad_workflow", "ConditioningCombine", "conditioning_2", "2048 entries", "1024"}, short: true,
		},
	}
}

// doubled returns a workflow whose positive conditioning has 2^n entries.
func doubled(t *testing.T, n int) string {
	nodes := map[string]graphNode{}
	if err := exactJSON([]byte(flow(t)), &nodes); err != nil {
		t.Fatal(err)
	}
	last := "6"
	for i := range n {
		id := fmt.Sprint(100 + i)
		nodes[id] = graphNode{
			"ConditioningCombine",
			map[string]any{"conditioning_1": link(last, 0), "conditioning_2": link(last, 0)},
		}
		last = id
	}
	nodes["3"].Inputs["positive"] = link(last, 0)
	return graph(t, nodes)
}

// nameRows returns workflows with bad file names.
func nameRows(t *testing.T, h *hostile) []badRow {
	unet := func(name string) string { return flow(t, change{"1", "unet_name", name}) }
	latent := func(name string) string {
		return with(t, "20", "LoadLatent", map[string]any{"latent": name}, change{"3", "latent_image", link("20", 0)})
	}
	prefix := func(name string) string { return flow(t, change{"9", "filename_prefix", name}) }
	list := func(file string) []string {
		return []string{"bad_workflow", "node 1", "unet_name", file, "not in", "demo_flux.safetensors"}
	}
	return []badRow{
		{name: "missing file", file: unet("nope.safetensors"), exit: 2, says: list("nope.safetensors"), short: true},
		{
			name: "file outside by ..", file: unet("../vae/demo_ae.safetensors"), exit: 2,
			says: list("../vae/demo_ae.safetensors"), short: true,
		},
		{name: "file outside by its absolute name", file: unet(h.outside), exit: 2, says: list(h.outside)},
		{
			name: "file outside by a link", file: unet("escape.safetensors"), exit: 2,
			says: list("escape.safetensors"), short: true,
		},
		{name: "link to itself", file: unet("loop.safetensors"), exit: 2, says: list("loop.safetensors")},
		{name: "file name that is a number", file: flow(t, change{"1", "unet_name", 7}), exit: 2, says: list("7")},
		{name: "file that is a named pipe", file: unet("pipe.safetensors"), exit: 2, says: list("pipe.safetensors")},
		{name: "picture that is a named pipe", file: with(t, "20", "LoadImage", map[string]any{"image": "pipe.png"},
			change{"9", "images", link("20", 0)}), exit: 2, says: []string{"bad_workflow", "node 20", "image", "pipe.png"}},
		{
			name: "latent outside by ..", file: latent("../../etc/passwd"), exit: 2,
			says: []string{"bad_workflow", "node 20", "latent", "../../etc/passwd"},
		},
		{
			name: "latent outside by its absolute name", file: latent("/etc/passwd"), exit: 2,
			says: []string{"bad_workflow", "node 20", "latent", "/etc/passwd"},
		},
		{name: "picture outside by ..", file: with(t, "20", "LoadImage", map[string]any{"image": "../x.png"},
			change{"9", "images", link("20", 0)}), exit: 2, says: []string{"bad_workflow", "node 20", "image", "../x.png"}},
		{
			name: "prefix outside by ..", file: prefix("../gone/x"), exit: 2,
			says: []string{"bad_workflow", "node 9", "filename_prefix", "../gone/x", "output folder"}, short: true,
		},
		{
			name: "absolute prefix", file: prefix("/tmp/x"), exit: 2,
			says: []string{"bad_workflow", "node 9", "filename_prefix", "/tmp/x", "output folder"},
		},
		{
			name: "prefix outside by a folder and ..", file: prefix("a/../../x"), exit: 2,
			says: []string{"bad_workflow", "node 9", "filename_prefix", "output folder"},
		},
		{
			name: "prefix of 300 letters", file: prefix(strings.Repeat("x", 300)), exit: 2,
			says: []string{"bad_workflow", "node 9", "filename_prefix", "300 bytes", "230"},
		},
		{
			name: "prefix with a NUL", file: prefix("a\x00b"), exit: 2,
			says: []string{"bad_workflow", "node 9", "filename_prefix", "NUL"},
		},
	}
}

// modelRows returns workflows with files that are not what their names say.
func modelRows(t *testing.T, h *hostile) []badRow {
	var rows []badRow
	for name, says := range map[string]string{
		"half": "truncated file|bytes are missing", "stub": "not a safetensors file|5 bytes",
		"none": "not a safetensors file|0 bytes", "html": "this is a web page, not a model",
		"overlap": "overlaps|\"a\"|\"b\"", "hole": "hole of 4 bytes", "long": "header of 5000 bytes|missing",
		"huge": "at most 100000000", "beyond": "truncated|bytes are missing",
		"dtype": "unknown dtype \"F7\"", "negative": "dimension out of range|-4", "overflow": "overflows",
		"backwards": "[16, 0] are not a range", "twice": "\"a\" occurs twice", "size": "needs 20 bytes|hold 16",
	} {
		file := name + ".safetensors"
		node, class, field := with(t, "1", "CheckpointLoaderSimple", map[string]any{"ckpt_name": file}),
			"CheckpointLoaderSimple", "ckpt_name"
		if folderOf(file) == "diffusion_models" {
			node, class, field = flow(t, change{"1", "unet_name", file}), "UNETLoader", "unet_name"
		}
		rows = append(rows, badRow{
			name: "file: " + name, file: node, exit: 1, short: name == "half" || name == "overlap",
			says: append([]string{"unsupported_format", "node 1 (" + class + ")", field + ": ", file},
				strings.Split(says, "|")...),
		})
	}
	unet := func(name string) string { return flow(t, change{"1", "unet_name", name}) }
	for _, f := range newFamilies() {
		vae := change{"4", "vae_name", f.vae + ".safetensors"}
		rows = append(rows, badRow{
			name: f.name + " file in a FLUX workflow", exit: 1, short: f.name == "auraflow",
			file: flow(t, change{"1", "unet_name", f.name + ".safetensors"}, vae),
			says: []string{"node 3 (KSampler)", "positive", f.mixed, f.name},
		}, badRow{
			name: f.name + " file that lacks a tensor", exit: 1,
			file: flow(t, change{"1", "unet_name", f.name + "_cut.safetensors"}, vae),
			says: []string{"unsupported_format", "node 1 (UNETLoader)", "unet_name", f.name + "_cut.safetensors", f.says},
		})
	}
	return append(rows,
		badRow{
			name: "radiance in UNETLoader", file: unet("radiance.safetensors"), exit: 1,
			says: []string{"unsupported_format", "node 1 (UNETLoader)", "unet_name", "chroma radiance", "chroma, lumina2"},
		},
		badRow{
			name: "VAE in UNETLoader", file: unet("is_vae.safetensors"), exit: 1,
			says:  []string{"unsupported_format", "node 1 (UNETLoader)", "unet_name", "is_vae.safetensors", "looks like a VAE"},
			short: true,
		},
		badRow{
			name: "CLIP in UNETLoader", file: unet("is_clip.safetensors"), exit: 1,
			says: []string{"unsupported_format", "node 1 (UNETLoader)", "unet_name", "CLIP text encoder"},
		},
		badRow{
			name: "diffusion model in VAELoader", file: flow(t, change{"4", "vae_name", "is_flux.safetensors"}), exit: 1,
			says: []string{"unsupported_format", "node 4 (VAELoader)", "vae_name", "no autoencoder", "flux"},
		},
		badRow{
			name: "diffusion model in DualCLIPLoader", file: flow(t, change{"2", "clip_name1", "is_flux.safetensors"}),
			exit: 1, says: []string{"unsupported_format", "node 2 (DualCLIPLoader)", "clip_name1", "no text encoder", "flux"},
		},
		badRow{
			name: "one encoder twice", file: flow(t, change{"2", "clip_name2", "demo_clip.safetensors"}), exit: 1,
			says: []string{"unsupported_format", "node 2 (DualCLIPLoader)", "two files are clip_l"},
		},
		badRow{
			name: "encoders for another family", file: flow(t, change{"2", "type", "hidream"}), exit: 2,
			says: []string{"bad_workflow", "node 2", "type", "hidream", "flux"},
		},
		badRow{
			name: "SD3 file in a FLUX workflow", file: unet("sd3.safetensors"), exit: 1,
			says: []string{"unsupported_format", "node 3 (KSampler)", "positive", "128 channels", "sd3", "40"}, short: true,
		},
		badRow{
			name: "tensors lack", file: unet("lacks.safetensors"), exit: 1,
			says: []string{"unsupported_format", "double_blocks.1.img_mlp.0.weight", "single_blocks.2.linear2.bias"},
		},
		badRow{
			name: "weights that are NaN", file: unet("nan.safetensors"), exit: 1,
			says: []string{"bad_workflow", "node 3 (KSampler)", "euler", "NaN"},
		},
		badRow{
			name: "no tokenizer", file: flow(t, change{"2", "clip_name1", "wordless.safetensors"}), exit: 1,
			short: true, says: []string{
				"no_such_model", "node 6 (CLIPTextEncode)", "clip_l", "wordless.safetensors",
				"models/tokenizers/wordless.tokenizer.json", "models/tokenizers/clip_l", "models/tokenizers/clip",
			},
		},
	)
}

// latentRows returns workflows with latents and pictures from the input folder.
func latentRows(t *testing.T) []badRow {
	sampled := func(name string) string {
		return with(t, "20", "LoadLatent", map[string]any{"latent": name}, change{"3", "latent_image", link("20", 0)})
	}
	picture := func(name string) string {
		return with(t, "20", "LoadImage", map[string]any{"image": name}, change{"9", "images", link("20", 0)})
	}
	load := []string{"bad_workflow", "node 20 (LoadLatent)", "latent"}
	return []badRow{
		{
			name: "latent of 4 channels", file: sampled("four.latent"), exit: 1,
			says: []string{"unsupported_format", "node 3 (KSampler)", "latent_image", "4 channels", "16"}, short: true,
		},
		{
			name: "latent of 4 channels, decoded",
			file: with(t, "20", "LoadLatent", map[string]any{"latent": "four.latent"}, change{"8", "samples", link("20", 0)}),
			exit: 1, says: []string{
				"unsupported_format", "node 8 (VAEDecode)", "vae", "demo_ae.safetensors",
				"16 channels, got 4",
			},
		},
		{
			name: "latent of 3 dimensions", file: sampled("flat.latent"), exit: 1,
			says: append(load[:3:3], "flat.latent", "[B, C, Y, X]"),
		},
		{name: "latent of no rows", file: sampled("void.latent"), exit: 1, says: append(load[:3:3], "void.latent", "0")},
		{
			name: "latent of NaN", file: sampled("nan.latent"), exit: 1,
			says: append(load[:3:3], "nan.latent", "NaN", "finite"),
		},
		{name: "cut latent", file: sampled("cut.latent"), exit: 1, says: append(load[:3:3], "cut.latent", "missing")},
		{
			name: "latent that is JSON", file: sampled("notes.latent"), exit: 1,
			says: append(load[:3:3], "notes.latent", "this is a text, not a model"),
		},
		{
			name: "cut picture", file: picture("cut.png"), exit: 1,
			says: []string{"unsupported_format", "node 20 (LoadImage)", "image", "cut.png"},
		},
		{
			name: "picture that is text", file: picture("plain.png"), exit: 1,
			says: []string{"unsupported_format", "node 20 (LoadImage)", "image", "plain.png"},
		},
	}
}

// numberRows returns workflows with values at and beyond the limits.
func numberRows(t *testing.T) []badRow {
	set := func(field string, v any) string { return flow(t, change{"3", field, v}) }
	refused := func(words ...string) []string { return append([]string{"bad_workflow", "node 3"}, words...) }
	size := func(w, h any) string { return flow(t, change{"5", "width", w}, change{"5", "height", h}) }
	done := func(name, file string, w, h int) badRow {
		return badRow{name: name, file: file, picture: [2]int{w, h}}
	}
	// linked takes a value from a node: linked values pass validation, as in ComfyUI.
	linked := func(class, node, field string, v any) string {
		return with(t, "50", class, map[string]any{"value": v}, change{node, field, link("50", 0)})
	}
	keep := func(r badRow) badRow { r.short = true; return r }
	return []badRow{
		{name: "0 steps", file: set("steps", 0), exit: 2, says: refused("steps", "0 smaller than min of 1"), short: true},
		{
			name: "10^6 steps", file: set("steps", 1000000), exit: 2,
			says: refused("steps", "1000000 bigger than max of 10000"), short: true,
		},
		{name: "steps that are a word", file: set("steps", "many"), exit: 2, says: refused("steps", "many", "INT")},
		{name: "cfg NaN", file: set("cfg", raw("NaN")), exit: 2, says: refused("cfg", "nan"), short: true},
		{name: "cfg \"nan\"", file: set("cfg", "nan"), exit: 2, says: refused("cfg", "nan")},
		{
			name: "cfg Infinity", file: set("cfg", raw("Infinity")), exit: 2,
			says: refused("cfg", "inf bigger than max of 100.0"),
		},
		{name: "cfg \"inf\"", file: set("cfg", "inf"), exit: 2, says: refused("cfg", "inf bigger than max of 100.0")},
		{
			name: "cfg -Infinity", file: set("cfg", raw("-Infinity")), exit: 2,
			says: refused("cfg", "-inf smaller than min of 0.0"),
		},
		{name: "cfg 1e999", file: set("cfg", raw("1e999")), exit: 2, says: refused("cfg", "inf bigger than max of 100.0")},
		{name: "denoise 1.5", file: set("denoise", 1.5), exit: 2, says: refused("denoise", "1.5 bigger than max of 1.0")},
		keep(done("denoise 0", set("denoise", 0), 96, 96)),
		keep(done("seed 2^64-1", set("seed", raw("18446744073709551615")), 96, 96)),
		{
			name: "seed 2^64", file: set("seed", raw("18446744073709551616")), exit: 2,
			says: refused("seed", "18446744073709551616 bigger than max of 18446744073709551615"), short: true,
		},
		{name: "seed -1", file: set("seed", -1), exit: 2, says: refused("seed", "-1 smaller than min of 0")},
		{
			name: "seed of 400 digits", file: set("seed", raw(strings.Repeat("9", 400))), exit: 2,
			says: refused("seed", "bigger than max of 18446744073709551615"),
		},
		{
			name: "seed by --set", file: flow(t), args: []string{"--set", "3.seed=18446744073709551616"}, exit: 2,
			says: []string{"seed", "node 3", "integer"},
		},
		done("width 100: cut to the 8 pixels of a latent", size(100, 96), 96, 96),
		keep(done("width 104: odd number of latent columns", size(104, 96), 104, 96)),
		done("17 x 16", size(17, 16), 16, 16),
		{
			name: "width 8", file: size(8, 96), exit: 2,
			says: []string{"bad_workflow", "node 5", "width", "8 smaller than min of 16"},
		},
		{
			name: "width -64", file: size(-64, 96), exit: 2,
			says: []string{"bad_workflow", "node 5", "width", "-64 smaller than min of 16"},
		},
		{
			name: "height 16400", file: size(96, 16400), exit: 2,
			says: []string{"bad_workflow", "node 5", "height", "16400 bigger than max of 16384"},
		},
		{
			name: "linked width -64", file: linked("PrimitiveInt", "5", "width", -64), exit: 1,
			says: []string{"bad_workflow", "node 5", "width", "-64", "16 and 16384"}, short: true,
		},
		{
			name: "linked width 2^62", file: linked("PrimitiveInt", "5", "width", 1<<62), exit: 1,
			says: []string{"too_large", "node 5", "width", "--memory"},
		},
		{
			name: "linked batch 2^62", file: linked("PrimitiveInt", "5", "batch_size", 1<<62), exit: 1,
			says: []string{"too_large", "node 5", "width", "--memory"},
		},
		{
			name: "linked batch 0", file: linked("PrimitiveInt", "5", "batch_size", 0), exit: 1,
			says: []string{"bad_workflow", "node 5", "batch_size", "1 and 4096"},
		},
		{
			name: "linked steps 10^9", file: linked("PrimitiveInt", "3", "steps", 1000000000), exit: 1,
			says: []string{"too_large", "node 3", "steps", "at most 10000"},
		},
		{
			name: "linked denoise -1", file: linked("PrimitiveFloat", "3", "denoise", -1.0), exit: 1,
			says: []string{"bad_workflow", "node 3", "denoise", "0 and 1"},
		},
		{
			name: "linked cfg 1e9", file: linked("PrimitiveFloat", "3", "cfg", 1e9), exit: 1,
			says: []string{"bad_workflow", "node 3", "cfg", "0 and 100"},
		},
		{
			name: "linked prefix outside", file: linked("PrimitiveString", "9", "filename_prefix", "../../x"), exit: 1,
			says: []string{"bad_request", "node 9", "filename_prefix", "output folder"},
		},
		{
			name: "4096 pictures of 16384 x 16384",
			file: flow(t, change{"5", "width", 16384}, change{"5", "height", 16384}, change{"5", "batch_size", 4096}), exit: 1,
			says: []string{"too_large", "node 5", fmt.Sprint(1 << 40), "--memory"},
		},
	}
}

// textRows returns workflows with unusual prompts.
func textRows(t *testing.T) []badRow {
	prompt := func(s string) string { return flow(t, change{"6", "text", s}) }
	return []badRow{
		{name: "empty prompt", file: prompt(""), picture: [2]int{96, 96}, short: true},
		{
			name: "prompt of 20,000 characters", file: prompt(strings.Repeat("a big red heart, ", 1177)[:20000]),
			picture: [2]int{96, 96}, short: true,
		},
		{
			name: "prompt of 2 MB", file: prompt(strings.Repeat("é", 1000000)), exit: 1,
			says: []string{"bad_workflow", "node 6 (CLIPTextEncode)", "text", "2000000 bytes", "1048576"},
		},
		{name: "one word of 20,000 characters", file: prompt(strings.Repeat("é", 20000)), picture: [2]int{96, 96}},
		{name: "prompt of brackets", file: prompt("((((a:1.5) b) ]])) \\( (c:0) (d:-1"), picture: [2]int{96, 96}},
		{
			name: "prompt weight NaN", file: prompt("(a:nan)"), exit: 1,
			says: []string{"bad_workflow", "node 6 (CLIPTextEncode)", "text", "NaN", "finite"},
		},
		{
			name: "prompt weight 1e30", file: prompt("(a:1e30)"), exit: 1,
			says: []string{"bad_workflow", "node 3 (KSampler)", "euler", "NaN", "finite"},
		},
		{name: "prompt of control characters", file: prompt("a\x00b\u202e\ufeff\r\n\t"), picture: [2]int{96, 96}},
		{name: "prompt that is a number", file: flow(t, change{"6", "text", 12}), picture: [2]int{96, 96}},
	}
}

// planRows returns plans that cannot run.
func planRows(t *testing.T) []badRow {
	// The picture of this very flow is in the worker's cache: a plan that cannot run is refused all the same.
	cached := flow(t)
	row := func(plan string, exit int, says ...string) badRow {
		return badRow{
			name: "plan " + plan, file: cached, args: []string{"--plan", plan}, exit: exit, says: says,
			short: plan == "tensor=9" || plan == "ulises=2",
		}
	}
	return []badRow{
		row("tensor=9", 2, "plan_refused", "node 3 (KSampler)", "plan.tensor", "is 9", "6 heads", "use tensor=6"),
		row("pipe=7", 2, "plan_refused", "node 3 (KSampler)", "plan.pipe", "is 7", "use pipe=6"),
		row("cfg=3", 2, "plan_refused", "node 3 (KSampler)", "plan.cfg", "use cfg=2"),
		row("data=2", 2, "plan_refused", "node 3 (KSampler)", "plan.data", "use data=1"),
		row("ulysses=40", 2, "plan_refused", "node 3 (KSampler)", "plan.ulysses", "36 tokens", "use ulysses=36"),
		row("pipe=2,patches=50", 2, "plan_refused", "node 3 (KSampler)", "plan.patches", "36 tokens"),
		row("pipe=99", 2, "bad_request", "plan", "pipe", "99", "64"),
		row("patches=2", 2, "bad_request", "plan.patches", "one stage", "pipe=2"),
		row("ulysses=8,ring=9", 2, "bad_request", "plan", "72 ranks", "64"),
		row("data=4096,cfg=4096,pipe=4096,ring=4096,ulysses=4096,tensor=16", 2, "bad_request", "plan", "64"),
		row("ulises=2", 2, "bad_request", "plan.ulises", "ulysses", "tensor", "pipe"),
		row("ulysses", 2, "bad_request", "plan.ulysses", "key=value"),
		row("ulysses=2,ulysses=2", 2, "bad_request", "plan.ulysses", "once"),
		row("tensor=0", 2, "bad_request", "plan.tensor", "from 1"),
		row("overlap=maybe", 2, "bad_request", "plan.overlap", "off or on"),
	}
}

// graphNode is a node in API format.
type graphNode struct {
	Class  string         `json:"class_type"`
	Inputs map[string]any `json:"inputs"`
}

func demoNodes(t testing.TB) map[string]graphNode {
	t.Helper()
	b, err := os.ReadFile("../examples/demo.json")
	nodes := map[string]graphNode{}
	if err == nil {
		err = exactJSON(b, &nodes)
	}
	if err != nil {
		t.Fatal(err)
	}
	for id, n := range nodes {
		n.Inputs = maps.Clone(n.Inputs)
		nodes[id] = n
	}
	return nodes
}
