package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strings"

	"patchbay/cli/console"
	"patchbay/cli/workflow"
	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/template"
	"patchbay/node/value"
)

// flowChecks lists everything that a workflow lacks: classes, model files, tokenizers, and whatever else validation
// finds. sent are the files that come with it, sources is what it says of the others.
func flowChecks(w *graph.Workflow, sent map[string][]byte, sources []workflow.Source, s *stock) []check {
	catalogue := classes.All()
	out, unknown := classChecks(w, catalogue)
	missing := 0
	found := map[string][]byte{} // validation finds the pictures that a daemon has here
	maps.Copy(found, sent)
	store := value.NewStore(nil, value.ComputeAuto, s.roots)
	for _, n := range needs(w, catalogue) {
		if _, comes := sent[n.name]; comes {
			continue
		}
		c := s.check(&n, sources)
		if c.state == "wrong" {
			missing++
		} else if n.picture() {
			found[n.name] = nil
		}
		c.text = fmt.Sprintf("node %s (%s, %s): %s", n.id, n.class, n.input, c.text)
		out = append(out, c)
		if c.state == "ok" && s.daemon == "" && (n.kind == files.KindText || n.kind == files.KindCheckpoint) {
			out = append(out, wordChecks(store, &s.roots, n.kind, n.name)...)
		}
	}
	if s.daemon != "" {
		out = append(out, check{"note", "words", "the daemon does not say which vocabularies its text encoders have; with " +
			"--models or --comfyui they are looked for"})
	}
	if unknown+missing > 0 { // validation would stop at the first unknown class and repeat what was said about files
		return out
	}
	_, failure := graph.Validate(catalogue, s.roots, graph.Job{Workflow: w, Inputs: found})
	if failure == nil {
		return append(out, check{"ok", "workflow", fmt.Sprintf("%d nodes", w.Len())})
	}
	return append(out, check{"wrong", "workflow", console.Describe(failure.Text, failure.Details, failure.NodeErrors)})
}

// templateChecks says of every template in a folder whether it can be used, and what it lacks.
func templateChecks(dir string, s *stock) (out []check) {
	catalogue := classes.All()
	folder := template.Folder{Dir: dir, Describe: func(class string) map[string]any {
		return catalogue.ObjectInfo(s.roots, class)
	}}
	names := folder.List()
	if len(names) == 0 {
		return []check{{"wrong", "template", "there is no NAME.json in " + dir}}
	}
	for _, name := range names {
		t, err := folder.Open(name)
		var w *graph.Workflow
		var sent map[string][]byte
		if err == nil {
			w, sent, err = t.Filled(t.Sample())
		}
		if err != nil {
			out = append(out, check{"wrong", "template", plain(err)})
			continue
		}
		bad := false
		for _, c := range flowChecks(w, sent, nil, s) {
			if c.state != "ok" {
				bad = bad || c.state == "wrong"
				out = append(out, check{c.state, "template", name + ": " + c.text})
			}
		}
		if bad {
			continue
		}
		out = append(out, check{"ok", "template", name + ": " + strings.Join(t.Names(), ", ")})
	}
	return out
}

// classChecks lists the classes of a workflow that are not in the catalogue, each with its nodes.
func classChecks(w *graph.Workflow, catalogue *graph.Catalogue) (out []check, unknown int) {
	nodes := w.Unknown(catalogue)
	for _, class := range nodes.Keys() {
		ids, _ := nodes.At(class).([]string)
		out = append(out, check{"wrong", "class", fmt.Sprintf("%s (node %s) is not a class of this program%s; "+
			"`patchbay nodes` lists those that are. In ComfyUI it comes with a custom node: run the workflow there and sample "+
			"here, with `patchbay install-node`", cmp.Or(class, "no class_type"), strings.Join(ids, ", "),
			didYouMean(catalogue, class))})
	}
	if len(out) == 0 {
		out = append(out, check{"ok", "class", fmt.Sprintf("all %d nodes are of classes that run here", w.Len())})
	}
	return out, nodes.Len()
}

// check looks for a file that a workflow names and, in folders of this machine, reads its header.
func (s *stock) check(n *need, sources []workflow.Source) check {
	what := "model"
	if n.picture() {
		what = "input"
	}
	if s.daemon != "" {
		if s.has(n) {
			return check{"ok", what, n.name + " is in " + n.kind + " of " + s.daemon}
		}
		return check{"wrong", what, n.name + " is not in " + n.kind + " of " + s.daemon + whereFrom(n, sources)}
	}
	if n.picture() {
		path, err := s.roots.Picture("input", n.name)
		if err != nil {
			return check{"wrong", what, plain(err)}
		}
		return check{"ok", what, path}
	}
	path, err := s.roots.Resolve(n.kind, "file", n.name)
	if err != nil && fault.From(err).Code == fault.FileMissing {
		return check{"wrong", what, fmt.Sprintf("%s is not in %s%s", n.name, strings.Join(s.roots.Dirs(n.kind), ", "),
			whereFrom(n, sources))}
	}
	if err != nil {
		return check{"wrong", what, plain(err)}
	}
	if why := unreadable(&s.roots, n.kind, n.name); why != "" {
		return check{"wrong", what, path + ": " + why}
	}
	return check{"ok", what, path}
}

// whereFrom says where the author of a workflow has a missing model file from, on a line that follows.
func whereFrom(n *need, sources []workflow.Source) string {
	if n.picture() {
		return ""
	}
	source, ok := workflow.SourceOf(sources, n.name, files.Folders(n.kind))
	if !ok {
		return "\n  whoever made the workflow knows where it is from; it belongs into a folder " + n.kind
	}
	return fmt.Sprintf("\n  the workflow has it from %s; it belongs into a folder %s (`patchbay pull` fetches it)",
		wire.Redact(source.URL), source.Directory)
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
