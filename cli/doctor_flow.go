package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/fault"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// flowChecks lists everything that a workflow lacks here: classes, model files, tokenizers, and whatever else
// validation finds.
func flowChecks(w *graph.Workflow, cfg *daemon.Config) []check {
	catalogue, roots := classes.All(), cfg.Roots()
	out, unknown := classChecks(w, catalogue)
	missing := 0
	store := value.NewStore(nil, value.ComputeAuto, roots, 0)
	for _, id := range w.IDs() {
		k := catalogue.Class(w.Class(id))
		if k == nil {
			continue
		}
		for _, in := range k.Declared(w, id) {
			v, _ := w.Input(id, in.Name)
			name, ok := v.(string)
			if name = in.Named(&roots, name); !ok || in.Files == "" || slices.Contains(in.Choices, name) {
				continue
			}
			c := fileCheck(&roots, in.Files, name)
			if c.state == "wrong" {
				missing++
			}
			c.text = fmt.Sprintf("node %s (%s, %s): %s", id, k.Name, in.Name, c.text)
			out = append(out, c)
			if c.state == "ok" && (in.Files == files.KindText || in.Files == files.KindCheckpoint) {
				out = append(out, wordChecks(store, &roots, in.Files, name)...)
			}
		}
	}
	if unknown+missing > 0 { // validation would stop at the first unknown class and repeat what was said about files
		return out
	}
	_, failure := graph.Validate(catalogue, roots, graph.Job{Workflow: w})
	if failure == nil {
		return append(out, check{"ok", "workflow", fmt.Sprintf("%d nodes", w.Len())})
	}
	return append(out, check{"wrong", "workflow", console.Describe(failure.Text, failure.Details, failure.NodeErrors)})
}

// classChecks lists the classes of a workflow that are not in the catalogue, each with its nodes.
func classChecks(w *graph.Workflow, catalogue *graph.Catalogue) (out []check, unknown int) {
	nodes := w.Unknown(catalogue)
	for _, class := range nodes.Keys() {
		ids, _ := nodes.At(class).([]string)
		out = append(out, check{"wrong", "class", fmt.Sprintf("%s (node %s) is not a class of this program; `patchbay "+
			"nodes` lists those that are. In ComfyUI it comes with a custom node: run the workflow there and sample here, "+
			"with `patchbay install-node`", cmp.Or(class, "no class_type"), strings.Join(ids, ", "))})
	}
	if len(out) == 0 {
		out = append(out, check{"ok", "class", fmt.Sprintf("all %d nodes are of classes that run here", w.Len())})
	}
	return out, nodes.Len()
}

// fileCheck looks for a file that a workflow names and reads its header.
func fileCheck(roots *files.Roots, kind, name string) check {
	if kind == files.KindInputImage || kind == files.KindInputLatent {
		if path, err := roots.Picture("input", name); err != nil {
			return check{"wrong", "input", plain(err)}
		} else {
			return check{"ok", "input", path}
		}
	}
	path, err := roots.Resolve(kind, "file", name)
	if err != nil && fault.From(err).Code == fault.FileMissing {
		return check{"wrong", "model", fmt.Sprintf("%s is not in %s\n%s", name, strings.Join(roots.Dirs(kind), ", "),
			whereFrom(kind, name))}
	}
	if err != nil {
		return check{"wrong", "model", plain(err)}
	}
	if why := unreadable(roots, kind, name); why != "" {
		return check{"wrong", "model", path + ": " + why}
	}
	return check{"ok", "model", path}
}

// unreadable returns why the header of a model file cannot be read, "" if it can.
func unreadable(roots *files.Roots, kind, name string) string {
	if err := roots.Header(kind, "file", name, false, func(files.Header) error { return nil }); err != nil {
		return plain(err)
	}
	return ""
}

// wordChecks reports which text encoders in a file lack their tokenizer vocabulary.
func wordChecks(store *value.Store, roots *files.Roots, kind, name string) []check {
	var clip value.Clip
	if err := roots.Header(kind, "file", name, false, clip.Add); err != nil {
		if kind == files.KindCheckpoint {
			return nil // it need not hold text encoders
		}
		return []check{{"wrong", "model", name + ": " + plain(err)}}
	}
	missing := store.Vocabularies(&clip)
	if len(missing) == 0 {
		return []check{{"ok", "words", name + ": every encoder has its vocabulary"}}
	}
	var out []check
	for _, err := range missing {
		out = append(out, check{"wrong", "words", plain(err) + "\n  people get them from the tokenizer folders of the " +
			"model's repository: vocab.json and merges.txt of CLIP, spiece.model or tokenizer.json of T5; --comfyui finds " +
			"those of a ComfyUI"})
	}
	return out
}

// plain returns the text of a failure without its code and field.
func plain(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return strings.TrimPrefix(f.Text, "file: ")
	}
	return err.Error()
}

// whereFrom says where to get a model file, judged by the file names that published workflows use.
func whereFrom(kind, name string) string {
	base := strings.ToLower(filepath.Base(filepath.FromSlash(name)))
	for _, s := range []struct{ has, repository string }{
		{"clip_l", "comfyanonymous/flux_text_encoders"},
		{"t5xxl", "comfyanonymous/flux_text_encoders"},
		{"clip_g", "Comfy-Org/stable-diffusion-3.5-fp8 (text_encoders)"},
		{"flux1-schnell", "black-forest-labs/FLUX.1-schnell"},
		{"flux1-kontext", "black-forest-labs/FLUX.1-Kontext-dev"},
		{"flux1-fill", "black-forest-labs/FLUX.1-Fill-dev"},
		{"flux1-dev", "black-forest-labs/FLUX.1-dev"},
		{"ae.safetensors", "black-forest-labs/FLUX.1-schnell"},
		{"sd3.5_large", "stabilityai/stable-diffusion-3.5-large"},
		{"sd3.5_medium", "stabilityai/stable-diffusion-3.5-medium"},
		{"sd3_medium", "stabilityai/stable-diffusion-3-medium"},
		{"hunyuan_dit", "comfyanonymous/hunyuan_dit_comfyui"},
		{"pixart", "PixArt-alpha"},
	} {
		if strings.Contains(base, s.has) {
			return fmt.Sprintf("  people get it from %s on Hugging Face; it belongs into a folder %s", s.repository, kind)
		}
	}
	return "  whoever made the workflow knows where it is from; it belongs into a folder " + kind
}
