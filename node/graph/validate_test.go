package graph_test

import (
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// serverRoots returns the folders of the server that the validation goldens were recorded from.
func serverRoots(t *testing.T) files.Roots {
	t.Helper()
	models, input, output, temp := scratch.Server(t)
	return files.Roots{Models: []string{models}, Input: input, Output: output, Temp: temp}
}

// isBodyCase reports whether a case is about the HTTP body around the graph, which package ipc handles.
func isBodyCase(name string) bool {
	if name == "file_lone" { // lone surrogates become U+FFFD
		return true
	}
	for _, p := range []string{
		"body_", "number_", "prompt_id_", "extra_", "client_", "front_", "id_", "new_id_", "new_number_", "new_extra_",
	} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// deviations returns the cases where this program deliberately differs from ComfyUI 0.33.0: with an error where ComfyUI
// accepts what fails when the node runs (true), or by accepting (false). docs/comfyui.md has the reasons. What ComfyUI
// answers with an HTTP 500 page is refused here too, and is not in this list.
func deviations() map[string]bool {
	return map[string]bool{
		"literal_where_link_needed": true, "dict_where_link_needed": true,
		"float_from_nan": true, "float_nan_text": true, "float_raw_nan": true,
		"load_image_empty": true, "image_empty": true, "image_dot": true, "image_folder": true, "image_folder_slash": true,
		"missing_later": false, // an input that was added to the class later
	}
}

type validationCase struct {
	Name    string
	Request struct{ Body string }
	Status  int
	Answer  json.RawMessage `json:"response"`
	Text    string          `json:"response_text"`
	Queued  struct {
		Coerced map[string]map[string]any `json:"coerced_inputs"`
		Outputs []string                  `json:"outputs_to_execute"`
	}
}

func TestValidationMatchesGolden(t *testing.T) {
	var file, odd struct{ Cases []validationCase }
	if err := errors.Join(golden.JSON("server/validation.json", &file), golden.JSON("server/odd.json", &odd)); err != nil {
		t.Fatal(err)
	}
	file.Cases = append(file.Cases, odd.Cases...)
	roots, cat := serverRoots(t), classes.All()
	exact, pages, deviating, elsewhere := 0, 0, 0, 0
	for _, c := range file.Cases {
		if isBodyCase(c.Name) {
			elsewhere++
			continue
		}
		body, err := pyjson.Decode([]byte(c.Request.Body))
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		outputs, failure, w := validateBody(cat, roots, body.(*pyjson.Object))
		if missing := c.unknownClasses(cat, w); len(missing) > 0 {
			t.Logf("%s: not compared, needs the classes %v", c.Name, missing)
			elsewhere++
			continue
		}
		if refused, ok := deviations()[c.Name]; ok {
			deviating++
			if refused != (failure != nil && failure.Code == fault.OutputsFailed && len(outputs) == 0) {
				t.Errorf("%s: got %v and outputs %v, refused should be %v", c.Name, failure, outputs, refused)
			}
			continue
		}
		if c.Status == 500 {
			pages++
			if failure == nil || failure.Code != fault.InvalidPrompt && failure.Code != fault.MissingNodeType ||
				len(outputs) > 0 {
				t.Errorf("%s: got %v and outputs %v, want a refusal", c.Name, failure, outputs)
			}
			continue
		}
		exact++
		c.compare(t, outputs, failure, w)
	}
	t.Logf("%d cases give the recorded answer, %d an answer instead of an HTTP 500 page, %d deviate as documented, "+
		"%d belong to the HTTP body or to classes that are not here", exact, pages, deviating, elsewhere)
	if exact < 460 {
		t.Errorf("only %d cases compared", exact)
	}
	if deviating != len(deviations()) {
		t.Errorf("%d of %d deviations met", deviating, len(deviations()))
	}
}

// validateBody validates the graph and targets of a POST /prompt body.
func validateBody(cat *graph.Catalogue, roots files.Roots, body *pyjson.Object) ([]string,
	*fault.Error, *graph.Workflow,
) {
	prompt, _ := body.Get("prompt")
	w, failure := graph.ParseWorkflow(prompt)
	if failure != nil {
		return nil, failure, nil
	}
	job := graph.Job{Workflow: w}
	targets, _ := body.Get("partial_execution_targets")
	if job.Targets, failure = w.Targets(targets); failure != nil {
		return nil, failure, w
	}
	outputs, failure := graph.Validate(cat, roots, job)
	return outputs, failure, w
}

// unknownClasses lists the classes of a graph that the catalogue lacks, unless the case is about unknown classes.
func (c validationCase) unknownClasses(cat *graph.Catalogue, w *graph.Workflow) (missing []string) {
	if w == nil || c.Status == 500 || strings.Contains(string(c.Answer)+c.Text, fault.MissingNodeType) {
		return nil
	}
	for _, id := range w.IDs() {
		if class := w.Class(id); class != "" && cat.Class(class) == nil {
			missing = append(missing, class)
		}
	}
	return missing
}

func (c validationCase) compare(t *testing.T, outputs []string, failure *fault.Error, w *graph.Workflow) {
	t.Helper()
	answer := string(c.Answer)
	if c.Text != "" {
		answer = c.Text
	}
	decoded, err := pyjson.Decode([]byte(answer))
	if err != nil {
		t.Errorf("%s: recorded answer: %v", c.Name, err)
		return
	}
	want := decoded.(*pyjson.Object)
	if c.Status == 200 {
		got := slices.Sorted(slices.Values(outputs))
		if c.Queued.Outputs == nil { // not recorded
			c.Queued.Outputs = got[:min(len(got), 1)]
		}
		if len(got) == 0 || !slices.Equal(got, c.Queued.Outputs) {
			t.Errorf("%s: outputs %v, want %v (failure %v)", c.Name, got, c.Queued.Outputs, failure)
		}
		c.compareCoerced(t, w)
	} else if failure == nil || len(outputs) > 0 {
		t.Errorf("%s: accepted, want %s", c.Name, answer)
		return
	}
	var nodes map[string]any
	if failure != nil {
		nodes = failure.NodeErrors
	}
	if nodes == nil {
		nodes = map[string]any{}
	}
	wantNodes, _ := want.Get("node_errors")
	if a, b := normal(nodes), normal(wantNodes); a != b {
		t.Errorf("%s: node_errors\n got %s\nwant %s", c.Name, a, b)
	}
	if wantError, ok := want.Get("error"); ok {
		extra := failure.Extra
		if extra == nil {
			extra = map[string]any{}
		}
		body := map[string]any{
			"type": failure.Code, "message": failure.Text, "details": failure.Details, "extra_info": extra,
		}
		if a, b := normal(body), normal(wantError); a != b {
			t.Errorf("%s: error\n got %s\nwant %s", c.Name, a, b)
		}
	}
}

// compareCoerced checks the inputs that validation converts in place.
func (c validationCase) compareCoerced(t *testing.T, w *graph.Workflow) {
	t.Helper()
	for id, inputs := range c.Queued.Coerced {
		for name, want := range inputs {
			got, _ := w.Input(id, name)
			if a, b := normal(got), normal(want); a != b {
				t.Errorf("%s: input %s of node %s became %s, want %s", c.Name, name, id, a, b)
			}
		}
	}
}

// normal renders a value with sorted keys, with the errors of a node sorted by input and tracebacks blanked, as in the
// recorded file.
func normal(v any) string {
	n, err := pyjson.Normalize(v)
	if err != nil {
		return err.Error()
	}
	return string(pyjson.Dump(tidy("", n)))
}

func tidy(key string, v any) any {
	switch x := v.(type) {
	case *pyjson.Object:
		o := pyjson.NewObject()
		for _, k := range slices.Sorted(slices.Values(x.Keys())) {
			switch {
			case k == "traceback":
				o.Set(k, "<traceback>")
			case k == "tooltip":
			default:
				o.Set(k, tidy(k, x.At(k)))
			}
		}
		return o
	case []any:
		out := make([]any, len(x))
		for i := range x {
			out[i] = tidy("", x[i])
		}
		if key == "errors" || key == "dependent_outputs" {
			sort.Slice(out, func(i, j int) bool { return string(pyjson.Dump(out[i])) < string(pyjson.Dump(out[j])) })
		}
		return out
	case float64:
		if x == float64(int64(x)) {
			return int64(x) // the test reads some recorded numbers through float64
		}
	}
	return v
}

func TestValidateTellsTheCycle(t *testing.T) {
	w, f := graph.ParseWorkflowJSON([]byte(`{"a": {"class_type": "FluxGuidance", "inputs":
			{"guidance": 1, "conditioning": ["b", 0]}},
		"b": {"class_type": "FluxGuidance", "inputs": {"guidance": 1, "conditioning": ["a", 0]}},
		"c": {"class_type": "Sink", "inputs": {"value": ["a", 0]}}}`))
	if f != nil {
		t.Fatal(f)
	}
	cat := classes.All(graph.Class{Name: "Sink", Output: true, Inputs: []graph.Input{graph.Bare("value", "CONDITIONING")}})
	_, failure := graph.Validate(cat, files.Roots{}, graph.Job{Workflow: w})
	if failure == nil || failure.NodeErrors["a"] == nil {
		t.Fatalf("got %+v, want a dependency cycle at node a", failure)
	}
	text := string(pyjson.Dump(failure.NodeErrors["a"]))
	if !strings.Contains(text, "a (FluxGuidance) -> b (FluxGuidance) -> a (FluxGuidance)") {
		t.Errorf("the error does not tell the cycle: %s", text)
	}
}

func TestValidateRefusesPrefixesOutsideBeforeWork(t *testing.T) {
	w, f := graph.ParseWorkflowJSON([]byte(`{"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}, "2": ` +
		`{"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "../x"}}}`))
	if f != nil {
		t.Fatal(f)
	}
	_, failure := graph.Validate(classes.All(), files.Roots{},
		graph.Job{Workflow: w, Inputs: map[string][]byte{"a.png": {1}}})
	if failure == nil || failure.Node != "2" || failure.Field != "filename_prefix" {
		t.Errorf("got %+v, want an error about filename_prefix of node 2", failure)
	}
}
