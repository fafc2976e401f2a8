package classes

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/tests/scratch"
)

// madeFor returns folders with an empty file for every file that the nodes of a workflow name. Validation opens none of
// them.
func madeFor(t *testing.T, cat *graph.Catalogue, w *graph.Workflow) files.Roots {
	t.Helper()
	return filledFor(t, cat, w, func(_, _, path string) { scratch.Touch(t, path) })
}

// filledFor returns folders in which put makes the files that the nodes of a workflow name.
func filledFor(t *testing.T, cat *graph.Catalogue, w *graph.Workflow, put func(id, kind, path string)) files.Roots {
	t.Helper()
	base := t.TempDir()
	roots := files.Roots{
		Models: []string{filepath.Join(base, "models")}, Input: filepath.Join(base, "input"),
		Output: filepath.Join(base, "output"), Temp: filepath.Join(base, "temp"),
	}
	for _, id := range w.IDs() {
		k := cat.Class(w.Class(id))
		if k == nil {
			continue
		}
		for _, in := range k.Inputs {
			v, _ := w.Input(id, in.Name)
			name, ok := v.(string)
			if !ok || in.Files == "" || slices.Contains(in.Choices, name) {
				continue
			}
			dir := filepath.Join(roots.Models[0], in.Files)
			switch {
			case in.Files == files.KindGGUF:
				dir = filepath.Join(roots.Models[0], files.KindDiffusion)
			case files.IsInput(in.Files):
				base, kind := files.Annotated(name)
				name, dir = base, map[string]string{"input": roots.Input, "output": roots.Output, "temp": roots.Temp}[kind]
			}
			if filepath.IsLocal(filepath.FromSlash(name)) {
				put(id, in.Files, filepath.Join(dir, filepath.FromSlash(name)))
			}
		}
	}
	return roots
}

// complaint returns the first error of validation, or "" if every output may run.
func complaint(cat *graph.Catalogue, roots files.Roots, w *graph.Workflow) string {
	outputs, failure := graph.Validate(cat, roots, graph.Job{Workflow: w})
	switch {
	case failure == nil:
		return ""
	case failure.Node == "":
		return failure.Error()
	}
	return fmt.Sprintf("%d outputs run; node %s (%s): %s", len(outputs), failure.Node, failure.Class,
		pyjson.Dump(failure.NodeErrors[failure.Node]))
}

// TestExampleShapesValidate checks that our own workflows in testdata/examples, modeled on ComfyUI's examples,
// validate.
func TestExampleShapesValidate(t *testing.T) {
	paths, err := filepath.Glob("testdata/examples/*.json")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d workflows in testdata/examples (%v)", len(paths), err)
	}
	cat := All()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w, failure := graph.ParseWorkflowJSON(data)
		if failure != nil {
			t.Errorf("%s: %v", path, failure)
			continue
		}
		if text := complaint(cat, madeFor(t, cat, w), w); text != "" {
			t.Errorf("%s: %s", path, text)
		}
		if text := complaint(cat, files.Roots{}, w); !strings.Contains(text, "value_not_in_list") &&
			!strings.Contains(text, "custom_validation_failed") {
			t.Errorf("%s without its files: got %q, want a file that is missing", path, text)
		}
	}
}

// refusedByDesign returns which of the deliberate refusals in docs/comfyui.md an error is: encoders of unsupported
// families, pickled files.
func refusedByDesign(text string) string {
	const encoders = "text encoders of type "
	if _, after, ok := strings.Cut(text, encoders); ok {
		return encoders + strings.Fields(after)[0]
	}
	for _, s := range []string{".ckpt' not in", ".pt' not in", ".pth' not in", ".bin' not in"} {
		if strings.Contains(text, s) {
			return "pickled file"
		}
	}
	return ""
}

// TestComfyUIExamplesValidate validates every workflow below the folder PATCHBAY_COMFYUI_EXAMPLES, in API format or
// inside a PNG, whose classes are all in the catalogue. It creates the files that the workflows name.
func TestComfyUIExamplesValidate(t *testing.T) {
	dir := os.Getenv("PATCHBAY_COMFYUI_EXAMPLES")
	if dir == "" {
		t.Skip("NOT RUN: PATCHBAY_COMFYUI_EXAMPLES names no folder with workflows of ComfyUI")
	}
	cat := All()
	seen, covered, valid := 0, 0, 0
	lacking, alone, design := map[string]int{}, map[string]int{}, map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		w := exampleIn(t, path)
		if w == nil {
			return nil
		}
		seen++
		missing := unknownClasses(cat, w)
		sort.Strings(missing)
		if missing = slices.Compact(missing); len(missing) > 0 {
			for _, m := range missing {
				lacking[m]++
			}
			if len(missing) == 1 {
				alone[missing[0]]++
			}
			return nil
		}
		covered++
		text := complaint(cat, madeFor(t, cat, w), w)
		if why := refusedByDesign(text); why != "" {
			design[why]++
			return nil
		}
		if text != "" {
			t.Errorf("%s: %s", path, text)
			return nil
		}
		valid++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d workflows; %d have only classes of the catalogue, %d of them validate, refused as documented: %s", seen,
		covered, valid, frequent(design))
	t.Logf("classes that keep others out: %s", frequent(lacking))
	t.Logf("the only one that is missing: %s", frequent(alone))
	if covered == 0 {
		t.Errorf("no workflow in %s has only classes of the catalogue", dir)
	}
}

// exampleIn returns the API-format graph in a file, or nil if it has none.
func exampleIn(t *testing.T, path string) *graph.Workflow {
	t.Helper()
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json", ".png":
	default:
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.HasPrefix(data, []byte("\x89PNG")) {
		if data, _, err = picture.WorkflowFrom(data); err != nil {
			return nil
		}
	}
	w, failure := graph.ParseWorkflowJSON(data)
	if failure != nil || w.Len() == 0 {
		return nil
	}
	for _, id := range w.IDs() {
		if w.Class(id) == "" {
			return nil
		}
	}
	return w
}

// frequent lists counts in descending order.
func frequent(counts map[string]int) string {
	names := make([]string, 0, len(counts))
	for n := range counts {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		a, b := names[i], names[j]
		return counts[a] > counts[b] || (counts[a] == counts[b] && a < b)
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", n, counts[n])
	}
	return strings.Join(names, ", ")
}

// unknownClasses lists the classes of a workflow that the catalogue lacks.
func unknownClasses(cat *graph.Catalogue, w *graph.Workflow) (missing []string) {
	for _, id := range w.IDs() {
		if c := w.Class(id); c != "" && cat.Class(c) == nil {
			missing = append(missing, c)
		}
	}
	return missing
}
