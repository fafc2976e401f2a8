package classes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
	"patchbay/tests/scratch"
)

// fakeCatalogue returns the real catalogue with functions that compute nothing, so that order, events and caches can be
// compared with the recorded server.
func fakeCatalogue() *graph.Catalogue {
	c := All()
	returns := func(name string, values ...any) {
		c.Class(name).Run = func(*graph.Call) ([]any, error) { return values, nil }
		c.Class(name).Change, c.Class(name).Check = nil, nil
	}
	returns("UNETLoader", &value.Model{Name: "m"})
	returns("CLIPLoader", &value.Clip{Name: "c"})
	returns("VAELoader", &value.VAE{Name: "v"})
	c.Class("VAELoader").Inputs[0].Choices = []string{"taef1", value.PixelSpace}
	returns("CLIPTextEncode", value.Conditioning{{MaskStrength: 1}})
	c.Class("VAEDecode").Run = func(call *graph.Call) ([]any, error) {
		b := graph.Arg[*value.Latent](call, "samples").Samples.B
		return []any{&picture.Image{B: b, Y: 2, X: 2, C: 3, Data: make([]float32, b*12)}}, nil
	}
	c.Class("KSampler").Run = func(call *graph.Call) ([]any, error) {
		n := call.Integer("steps")
		for i := range n {
			if err := reportProgress(call, &value.Model{}, request.Progress{Step: i + 1, Steps: n}); err != nil {
				return nil, err
			}
		}
		return []any{graph.Arg[*value.Latent](call, "latent_image")}, nil
	}
	return c
}

type recordedRun struct {
	Name   string
	Submit struct {
		Body struct {
			Targets []string `json:"partial_execution_targets"`
		}
	}
	Events map[string][]struct {
		Type string
		Data map[string]any
	}
}

// recordedRuns reads a file of recorded runs twice: as structs, and with ordered keys for the graphs.
func recordedRuns(t *testing.T, name string) ([]recordedRun, map[string]*graph.Workflow) {
	t.Helper()
	var file struct{ Runs []recordedRun }
	if err := golden.JSON(name, &file); err != nil {
		t.Fatal(err)
	}
	text, err := golden.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := pyjson.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	list, _ := decoded.(*pyjson.Object).Get("runs")
	graphs := map[string]*graph.Workflow{}
	for i, r := range list.([]any) {
		prompt := r
		for _, key := range []string{"submit", "body", "prompt"} {
			o, _ := prompt.(*pyjson.Object)
			if prompt = nil; o != nil {
				prompt, _ = o.Get(key)
			}
		}
		if prompt == nil {
			continue
		}
		w, failure := graph.ParseWorkflow(prompt)
		if failure != nil {
			t.Fatal(failure)
		}
		graphs[file.Runs[i].Name] = w
	}
	return file.Runs, graphs
}

// timeline is the part of an event list that both servers have: cached, executing, progress, executed.
type timeline struct {
	cached    []string
	executing []string
	progress  []string
	executed  []string
}

func serverRoots(t *testing.T) files.Roots {
	t.Helper()
	models, input, output, temp := scratch.Server(t)
	return files.Roots{Models: []string{models}, Input: input, Output: output, Temp: temp}
}

func TestRunsMatchRecordedServer(t *testing.T) {
	runs, graphs := recordedRuns(t, "server/runs.json")
	roots := serverRoots(t)
	cat := fakeCatalogue()
	runner, err := graph.NewRunner(graph.Config{Roots: roots, Catalogue: cat})
	if err != nil {
		t.Fatal(err)
	}
	exact := []string{
		"normal", "identical", "seed_changed", "prefix_changed", "undeclared_input_added", "int_as_float",
		"batch_of_two", "heun_three_steps", "cfg_four", "partial_targets", "partial_targets_rest",
	}
	names := map[string]string{} // file names by node, from the last run that executed it
	compared := 0
	for _, r := range runs {
		w := graphs[r.Name]
		if w == nil || strings.HasPrefix(r.Name, "error_") || strings.HasPrefix(r.Name, "interrupt_") {
			continue
		}
		want := recorded(r)
		if len(want.executing)+len(want.executed) == 0 {
			continue
		}
		if r.Name == "prefix_changed" { // it follows a run of the same graph that is not recorded
			before := w.Clone()
			if err := before.SetInput("10", "filename_prefix", "before"); err != nil {
				t.Fatal(err)
			}
			if _, err := runner.Run(context.Background(), graph.Job{Workflow: before}, nil); err != nil {
				t.Fatal(err)
			}
		}
		var got timeline
		result, err := runner.Run(context.Background(),
			graph.Job{ID: r.Name, Workflow: w, Targets: r.Submit.Body.Targets}, got.add)
		if err != nil && len(result.Executed)+len(result.Cached) == 0 {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		compared++
		got.compare(t, r.Name, want, slices.Contains(exact, r.Name))
		if slices.Contains(exact[:6], r.Name) { // later file numbers depend on unrecorded runs
			checkFileNames(t, r, result, roots.Output, names)
		}
	}
	if compared < 14 {
		t.Errorf("compared %d runs", compared)
	}
}

// TestNewFormsRun compares runs of features of newer ComfyUI versions: SaveImage as a source, ids with colons,
// switches, expressions, dynamic inputs, intermediate outputs, and titles, which are kept in the text of the image.
func TestNewFormsRun(t *testing.T) {
	var file struct {
		Chunks [][]any `json:"png_chunks"`
	}
	check(t, golden.JSON("server/runs_new.json", &file))
	runs, graphs := recordedRuns(t, "server/runs_new.json")
	roots := serverRoots(t)
	runner, err := graph.NewRunner(graph.Config{Roots: roots, Catalogue: All()})
	check(t, err)
	names := map[string]string{}
	for _, r := range runs {
		var got timeline
		result, err := runner.Run(t.Context(), graph.Job{ID: r.Name, Workflow: graphs[r.Name]}, got.add)
		if want, blamed := failedNode(r), new(fault.Error); want == "" {
			check(t, err)
		} else if !errors.As(err, &blamed) || blamed.Node != want || blamed.Code != fault.BadInput {
			t.Errorf("%s: got %v, want a refusal at node %s", r.Name, err, want)
		}
		titled := r.Name == "png_with_title"
		earlier := []string{"png_with_title", "switch_true", "dynamic_combo", "autogrow_beyond_max"}
		got.compare(t, r.Name, recorded(r), !slices.Contains(earlier, r.Name)) // earlier runs made its images
		text := fmt.Sprintf("%s%s\x00%s", file.Chunks[1]...)
		if titled && !bytes.Contains(result.Outputs[0].Data, []byte(text)) {
			t.Errorf("%s: the picture lacks the text of the recorded one, %s", r.Name, text)
		}
		saved := result.Outputs[:0]
		for _, o := range result.Outputs { // names of temporary files are random
			if o.Type == "output" {
				saved = append(saved, o)
			}
		}
		result.Outputs = saved
		if r.Name != "intermediate_output_cached" { // its number counts the file of an unrecorded run
			checkFileNames(t, r, result, roots.Output, names)
		}
	}
	if len(runs) != 14 {
		t.Errorf("%d runs are recorded, want 14", len(runs))
	}
}

// failedNode returns the node at which a recorded run failed, or "" if it succeeded.
func failedNode(r recordedRun) string {
	for _, e := range r.Events["client-a"] {
		if id, ok := e.Data["node_id"].(string); ok && e.Type == "execution_error" {
			return id
		}
	}
	return ""
}

func recorded(r recordedRun) (out timeline) {
	for client, events := range r.Events {
		if client != "client-a" {
			continue
		}
		for _, e := range events {
			out.add(graph.Event{Type: e.Type, Data: e.Data})
		}
	}
	return out
}

func (l *timeline) add(e graph.Event) {
	switch e.Type {
	case "execution_cached":
		switch nodes := e.Data["nodes"].(type) {
		case []string:
			l.cached = append(l.cached, nodes...)
		case []any:
			for _, n := range nodes {
				l.cached = append(l.cached, n.(string))
			}
		}
	case "executing":
		if n, ok := e.Data["node"].(string); ok {
			l.executing = append(l.executing, n)
		}
	case "progress":
		l.progress = append(l.progress, fmt.Sprintf("%v/%v", e.Data["value"], e.Data["max"]))
	case "executed":
		l.executed = append(l.executed, e.Data["node"].(string))
	}
}

// compare checks that the events are those of the recorded server. Our cache keeps more than ComfyUI's classic one, so
// in runs that return to older graphs nodes may be cached that ran in ComfyUI. The order of the others must be the
// same.
func (l timeline) compare(t *testing.T, name string, want timeline, exact bool) {
	t.Helper()
	if exact && !slices.Equal(l.cached, want.cached) {
		t.Errorf("%s: cached %v, want %v", name, l.cached, want.cached)
	}
	for _, n := range want.cached {
		if !slices.Contains(l.cached, n) {
			t.Errorf("%s: node %s was cached there, here it ran", name, n)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(want.executing), func(n string) bool { return slices.Contains(l.cached, n) })
	if !slices.Equal(l.executing, rest) {
		t.Errorf("%s: executing %v, want %v", name, l.executing, rest)
	}
	if exact && !slices.Equal(l.progress, want.progress) {
		t.Errorf("%s: progress %v, want %v", name, l.progress, want.progress)
	}
	if !slices.Equal(l.executed, want.executed) {
		t.Errorf("%s: executed %v, want %v", name, l.executed, want.executed)
	}
}

// checkFileNames commits new outputs and compares their names with those of the executed events. Cached outputs keep
// their old names.
func checkFileNames(t *testing.T, r recordedRun, result *graph.Result, folder string, names map[string]string) {
	t.Helper()
	for _, o := range result.Outputs {
		if !slices.Contains(result.Cached, o.Node) {
			ref, err := files.Commit(folder, o)
			if err != nil {
				t.Fatal(err)
			}
			names[o.Node] = ref.Filename
		}
	}
	for _, e := range r.Events["client-a"] {
		if e.Type != "executed" {
			continue
		}
		id := e.Data["node"].(string)
		images, _ := e.Data["output"].(map[string]any)["images"].([]any)
		if len(images) == 0 {
			continue
		}
		image := images[0].(map[string]any)
		if image["type"] == "temp" {
			continue
		}
		if names[id] != image["filename"] {
			t.Errorf("%s: node %s saved %s, want %s", r.Name, id, names[id], image["filename"])
		}
	}
}

// graphOf parses a workflow.
func graphOf(t *testing.T, text string) *graph.Workflow {
	t.Helper()
	w, failure := graph.ParseWorkflowJSON([]byte(text))
	if failure != nil {
		t.Fatal(failure)
	}
	return w
}

func sink() graph.Class {
	return graph.Class{
		Name: "Sink", Output: true, Inputs: []graph.Input{graph.Bare("value", "*")},
		Run: func(*graph.Call) ([]any, error) { return nil, nil },
	}
}

func TestPanicOfANodeFailsTheJobOnly(t *testing.T) {
	bad := true
	cat := All(sink(), graph.Class{
		Name: "Boom", Outputs: graph.Slots("INT"), Fresh: true,
		Run: func(*graph.Call) ([]any, error) {
			if bad {
				panic("the node is broken")
			}
			return []any{int64(1)}, nil
		},
	})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat})
	if err != nil {
		t.Fatal(err)
	}
	w := graphOf(t, `{"a": {"class_type": "Boom", "inputs": {}}, "b": {"class_type": "Sink", "inputs": {"value": `+
		`["a", 0]}}}`)
	_, err = runner.Run(context.Background(), graph.Job{Workflow: w}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Panic || f.Node != "a" || f.Class != "Boom" || len(f.Stack) == 0 ||
		!strings.Contains(f.Text, "the node is broken") {
		t.Fatalf("got %#v, want an internal_panic of node a with a stack", err)
	}
	bad = false
	if result, err := runner.Run(context.Background(), graph.Job{Workflow: w}, nil); err != nil ||
		len(result.Executed) != 2 {
		t.Errorf("the next job: %v, executed %v", err, result.Executed)
	}
}

// TestFailuresCarryWhatComfyUISends compares the failure of a node after cached ones with the recorded event.
func TestFailuresCarryWhatComfyUISends(t *testing.T) {
	runs, graphs := recordedRuns(t, "server/runs.json")
	var want map[string]any
	for _, r := range runs {
		if r.Name != "error_null_for_link" {
			continue
		}
		for _, e := range r.Events["client-a"] {
			if e.Type == "execution_error" {
				want = e.Data
			}
		}
	}
	cat := fakeCatalogue()
	runner, err := graph.NewRunner(graph.Config{Roots: serverRoots(t), Catalogue: cat})
	check(t, err)
	if _, err := runner.Run(t.Context(), graph.Job{Workflow: graphs["normal"]}, nil); err != nil {
		t.Fatal(err)
	}
	cat.Class("KSampler").Run = func(*graph.Call) ([]any, error) { return nil, errors.New("broken") }
	w := graphs["normal"].Clone()
	check(t, w.SetInput("8", "seed", int64(14)))
	_, err = runner.Run(t.Context(), graph.Job{Workflow: w}, nil)
	f := fault.From(err)
	if f.Node != want["node_id"] || f.Class != want["node_type"] {
		t.Errorf("failed at %s (%s), want %v (%v)", f.Node, f.Class, want["node_id"], want["node_type"])
	}
	outputs := slices.Sorted(slices.Values(f.Extra["current_outputs"].([]string)))
	for name, got := range map[string]any{"executed": f.Extra["executed"], "current_outputs": outputs} {
		if a, b := fmt.Sprint(got), fmt.Sprint(want[name]); a != b {
			t.Errorf("%s: %s, want %s", name, a, b)
		}
	}
	inputs, recorded := f.Extra["current_inputs"].(map[string]any), want["current_inputs"].(map[string]any)
	for _, name := range []string{"seed", "steps", "cfg", "sampler_name", "denoise"} {
		if a, b := fmt.Sprintf("%v", inputs[name]), fmt.Sprintf("%v", recorded[name]); a != b {
			t.Errorf("input %s: %s, want %s", name, a, b)
		}
	}
	for name := range recorded {
		if inputs[name] == nil {
			t.Errorf("input %s is missing", name)
		}
	}
}

func TestCancelStopsARunningNode(t *testing.T) {
	started := make(chan struct{})
	cat := All(sink(), graph.Class{Name: "Slow", Outputs: graph.Slots("INT"), Run: func(c *graph.Call) ([]any, error) {
		close(started)
		<-c.Context.Done()
		return nil, c.Context.Err()
	}})
	runner, err := graph.NewRunner(graph.Config{Catalogue: cat})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-started; cancel() }()
	w := graphOf(t, `{"a": {"class_type": "Slow", "inputs": {}}, "b": {"class_type": "Sink", "inputs": {"value": `+
		`["a", 0]}}}`)
	_, err = runner.Run(ctx, graph.Job{Workflow: w}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Cancelled || f.Node != "a" {
		t.Fatalf("got %v, want cancelled at node a", err)
	}
}

func TestCancelInsideTheSampler(t *testing.T) {
	var cases map[string]*e2eCase
	if err := golden.JSON("e2e.json", &cases); err != nil {
		t.Fatal(err)
	}
	c := cases["flux-a/euler-simple-8"]
	c.Steps = 10000
	runner, w := c.runner(t, engineOf(t, fastOps), map[string]*value.Latent{})
	ctx, cancel := context.WithCancel(context.Background())
	steps := 0
	_, err := runner.Run(ctx, graph.Job{Workflow: w}, func(e graph.Event) {
		if e.Type == "progress" {
			if steps++; steps == 2 {
				cancel()
			}
		}
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Cancelled || f.Class != "KSampler" || steps > 3 {
		t.Fatalf("got %v after %d steps, want cancelled in the KSampler after 2", err, steps)
	}
}

func TestErrorsNameNodeAndField(t *testing.T) {
	roots := serverRoots(t)
	runner, err := graph.NewRunner(graph.Config{Roots: roots, Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	w := graphOf(t, `{"1": {"class_type": "UNETLoader", "inputs":
			{"unet_name": "flux-tiny.safetensors", "weight_dtype": "default"}},
		"2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
		"3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
		"4": {"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["3", 0]}},
			"5": {"class_type": "PreviewImage", "inputs": {"images": ["4", 0]}}}`)
	_, err = runner.Run(context.Background(), graph.Job{Workflow: w}, nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Node != "3" || f.Class != "VAELoader" || f.Field != "vae_name" ||
		f.Code != fault.BadCheckpoint {
		t.Fatalf("got %#v, want bad_checkpoint at vae_name of node 3 (the file is empty)", err)
	}
}
