package graph_test

import (
	"encoding/json"
	"slices"
	"sort"
	"strings"
	"testing"

	"patchbay/node/classes"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// serverRoots are the folders of the server that the validation goldens were recorded from.
func serverRoots(t *testing.T) files.Roots {
	t.Helper()
	models, input, output, temp := scratch.Server(t)
	return files.Roots{Models: []string{models}, Input: input, Output: output, Temp: temp}
}

// bodyCase are cases about the HTTP body around the graph: package ipc answers them.
func isBodyCase(name string) bool {
	for _, p := range []string{"body_", "number_", "prompt_id_", "extra_data_", "client_id_", "front_true"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	// types that ipc refuses before they reach a Job
	return name == "targets_numbers" || name == "targets_string_substring"
}

// deviations are the cases where this program deliberately answers otherwise than ComfyUI 0.8.0, with what it answers.
// docs/comfyui.md has the reasons.
func deviations() map[string]string {
	return map[string]string{
		"prompt_null":               fault.CodeInvalidPrompt, // 500 page there
		"prompt_list_of_nodes":      fault.CodeInvalidPrompt,
		"prompt_string":             fault.CodeInvalidPrompt,
		"prompt_number":             fault.CodeInvalidPrompt,
		"node_is_null":              fault.CodeInvalidPrompt,
		"literal_where_link_needed": fault.CodeOutputsFailed, // accepted there, fails when the node runs
		"dict_where_link_needed":    fault.CodeOutputsFailed,
		"float_from_nan":            fault.CodeOutputsFailed, // accepted there
		"cycle_one_node":            fault.CodeOutputsFailed, // same error, but node_errors tells the cycle
		"cycle_two_nodes":           fault.CodeOutputsFailed,
		"cycle_three_nodes":         fault.CodeOutputsFailed,
		"load_image_number":         fault.CodeOutputsFailed, // AttributeError there, custom_validation_failed here
		"load_image_empty":          fault.CodeOutputsFailed, // accepted there, fails when the node runs
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
	var file struct{ Cases []validationCase }
	if err := golden.JSON("server/validation.json", &file); err != nil {
		t.Fatal(err)
	}
	roots, cat := serverRoots(t), classes.All()
	exact, deviating, elsewhere := 0, 0, 0
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
		if missing := unknownClasses(cat, w, c.Name); len(missing) > 0 {
			t.Logf("%s: not compared, needs the classes %v", c.Name, missing)
			elsewhere++
			continue
		}
		if code, ok := deviations()[c.Name]; ok {
			deviating++
			if failure == nil || failure.Code != code || len(outputs) > 0 {
				t.Errorf("%s: got %v and outputs %v, want our own error %s", c.Name, failure, outputs, code)
			}
			continue
		}
		exact++
		c.compare(t, outputs, failure, w)
	}
	t.Logf("%d cases give the recorded answer, %d deviate as documented, %d belong to the HTTP body or to classes of "+
		"later orders", exact, deviating, elsewhere)
	if exact < 134 {
		t.Errorf("only %d cases compared", exact)
	}
	if deviating != len(deviations()) {
		t.Errorf("%d of %d deviations met", deviating, len(deviations()))
	}
}

// validateBody takes graph and targets from a POST /prompt body.
func validateBody(cat *graph.Catalogue, roots files.Roots, body *pyjson.Object) ([]string,
	*fault.Failure, *graph.Workflow,
) {
	prompt, _ := body.Get("prompt")
	w, failure := graph.ParseWorkflow(prompt)
	if failure != nil {
		return nil, failure, nil
	}
	job := graph.Job{Workflow: w}
	if targets, ok := body.Get("partial_execution_targets"); ok {
		list, _ := targets.([]any)
		for _, v := range list {
			job.Targets = append(job.Targets, v.(string))
		}
	}
	outputs, failure := graph.Validate(cat, roots, job)
	return outputs, failure, w
}

// unknownClasses lists classes of a graph that the catalogue lacks; the cases about unknown classes name them on
// purpose.
func unknownClasses(cat *graph.Catalogue, w *graph.Workflow, name string) (missing []string) {
	if w == nil || strings.HasPrefix(name, "class_") {
		return nil
	}
	for _, id := range w.IDs() {
		if c := w.Class(id); c != "" && cat.Class(c) == nil {
			missing = append(missing, c)
		}
	}
	return missing
}

func (c validationCase) compare(t *testing.T, outputs []string, failure *fault.Failure, w *graph.Workflow) {
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
		if !slices.Equal(got, c.Queued.Outputs) {
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
		body := failure.ErrorBody()["error"]
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

// normal renders a value with sorted keys; errors of a node are sorted by input and tracebacks blanked, as in the
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
