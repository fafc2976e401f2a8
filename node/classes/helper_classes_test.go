package classes

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// TestConditioningMultiply checks that text states and pooled vector are multiplied, that an entry without a pooled
// vector stays without, and that ConditioningSetAreaStrength sets the strength alone.
func TestConditioningMultiply(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	states, pooled := ramp(1, 1, 2, 3), ramp(-2, 1, 4)
	both := []any{
		[]any{states, pyjson.NewObject("pooled_output", pooled)},
		[]any{states, pyjson.NewObject()},
	}
	out := exec(t, run, "ConditioningMultiply", map[string]any{"conditioning": both, "multiplier": -0.5}).([]any)
	for i, e := range out {
		entry := e.([]any)
		if got, want := values(t, entry[0]), []float32{-0.5, -1, -1.5, -2, -2.5, -3}; !slices.Equal(got, want) {
			t.Errorf("entry %d: text states %v, want %v", i, got, want)
		}
		v, ok := entry[1].(*pyjson.Object).Get("pooled_output")
		if ok = ok && v != nil; ok != (i == 0) || ok && !slices.Equal(values(t, v), []float32{1, 0.5, 0, -0.5}) {
			t.Errorf("entry %d: pooled vector %v", i, v)
		}
	}
	if got := values(t, states); got[0] != 1 {
		t.Errorf("the input has become %v", got)
	}
	out = exec(t, run, "ConditioningSetAreaStrength", map[string]any{"conditioning": both, "strength": 2.5}).([]any)
	if o := out[1].([]any)[1].(*pyjson.Object); o.At("strength") != 2.5 || o.Has("area") {
		t.Errorf("with a strength: %s", pyjson.Dump(o))
	}
}

// TestBatchedLatentsKeepPlaces checks that the items of several batches keep their batch_index, and so their noise.
func TestBatchedLatentsKeepPlaces(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	o := exec(t, run, "BatchLatentsNode", map[string]any{
		"latents.latent0": latentValue(ramp(0, 2, 1, 2, 2), "batch_index", []any{int64(7), int64(3)}),
		"latents.latent1": latentValue(ramp(8, 2, 1, 2, 2)),
	}).(*pyjson.Object)
	if index := o.At("batch_index"); string(pyjson.Dump(index)) != "[7, 3, 0, 1]" {
		t.Errorf("batch_index %s, want [7, 3, 0, 1]", pyjson.Dump(index))
	}
}

// TestHelpersRefuse checks what the helper classes refuse although ComfyUI does not, or only by an exception, and that
// the failure names the input.
func TestHelpersRefuse(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	defer run.Close()
	long, mask := strings.Repeat("a", 1<<13), ramp(0, 1, 3, 4)
	for _, c := range []struct {
		class string
		in    map[string]any
		want  string // the input, and a part of the text
	}{
		{"StringReplace", map[string]any{"string": long, "find": "a", "replace": long}, "replace: the result has 67108864"},
		{"StringConcatenate", map[string]any{
			"string_a": strings.Repeat(long, 1<<10), "string_b": strings.Repeat(long, 1<<10), "delimiter": "",
		}, ""},
		{"StringConcatenate", map[string]any{
			"string_a": strings.Repeat(long, 1<<10), "string_b": strings.Repeat(long, 1<<10), "delimiter": ",",
		}, "string_b: the result has 16777217"},
		{"RegexMatch", map[string]any{
			"string": long[:40], "regex_pattern": "(a+)+b", "case_insensitive": false, "multiline": false, "dotall": false,
		}, "regex_pattern: not supported: the pattern needs more"},
		{"RegexReplace", map[string]any{
			"string": long, "regex_pattern": "a", "replace": long,
		}, "regex_pattern: not supported: a result of more"},
		{"RegexReplace", map[string]any{"string": "", "regex_pattern": "(", "replace": ""}, "regex_pattern: missing )"},
		{"JsonExtractString", map[string]any{
			"json_string": strings.Repeat("[", 70) + strings.Repeat("]", 70), "key": "a",
		}, "json_string: nested deeper"},
		{"ComfyNumberConvert", map[string]any{"value": "1e30"}, "value: 1000000000000000019884624838656 has more than 64"},
		{"CropMask", map[string]any{
			"mask": mask, "x": 4, "y": 0, "width": 1, "height": 1,
		}, "x: 4 is outside the mask of 4 x 3"},
		{"LatentConcat", map[string]any{
			"samples1": latentValue(ramp(0, 1, 1, 2, 2)), "samples2": latentValue(ramp(0, 1, 1, 2, 2)), "dim": "t",
		}, "dim: pictures have no frames"},
		{"MaskComposite", map[string]any{
			"destination": mask, "source": mask, "x": 9, "y": 0, "operation": "add",
		}, ""}, // nothing to do
	} {
		_, err := run.Exec(t.Context(), graph.ExecRequest{Class: c.class, Inputs: c.in}, nil)
		field, text, _ := strings.Cut(c.want, ": ")
		failure := new(fault.Error)
		switch {
		case c.want == "":
			check(t, err)
		case !errors.As(err, &failure) || failure.Field != field || !strings.Contains(failure.Text, text):
			t.Errorf("%s: %v, want %s", c.class, err, c.want)
		}
	}
}

// TestAttentionBackendHasNoEffect checks that ModelAttentionBackend takes anything for a backend, gives back the model
// as it is, and says in a warning of the job that it has no effect.
func TestAttentionBackendHasNoEffect(t *testing.T) {
	model, got := analyticModel(t), any(nil)
	cat := All(graph.Class{
		Name: "Given", Outputs: graph.Slots("MODEL"), Run: func(*graph.Call) ([]any, error) { return []any{model}, nil },
	}, graph.Class{
		Name: "Kept", Output: true, Inputs: []graph.Input{graph.Bare("model", "MODEL")},
		Run: func(c *graph.Call) ([]any, error) { got = c.Raw("model"); return nil, nil },
	})
	run, err := graph.NewRunner(graph.Config{Catalogue: cat})
	check(t, err)
	defer run.Close()
	for _, name := range []any{"pytorch attention", "comfy kitchen attention", "another", int64(5)} {
		g := newGraph()
		g.add("Kept", "model", g.add("ModelAttentionBackend", "model", g.add("Given"), "attention", name))
		got = nil
		result, err := run.Run(t.Context(), graph.Job{ID: "attention", Workflow: g.workflow(t)}, nil)
		check(t, err)
		if got != model || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "has no effect") {
			t.Errorf("%v: the same model %v, warnings %q", name, got == model, result.Warnings)
		}
	}
}

// TestSparseAttentionRunsDense checks that BlockSparseAttention takes the values that templates send, by the names of
// both versions of the class, gives back the model as it is, and says in one warning that attention runs dense; that
// ranges and names are checked as in ComfyUI, and that vsa is refused for other models than MiniMax-H3.
func TestSparseAttentionRunsDense(t *testing.T) {
	model, h3, got := analyticModel(t), *analyticModel(t), any(nil)
	h3.Spec.Family = "minimaxh3"
	given := model
	cat := All(graph.Class{
		Name: "Given", Outputs: graph.Slots("MODEL"), Run: func(*graph.Call) ([]any, error) { return []any{given}, nil },
	}, graph.Class{
		Name: "Kept", Output: true, Inputs: []graph.Input{graph.Bare("model", "MODEL")},
		Run: func(c *graph.Call) ([]any, error) { got = c.Raw("model"); return nil, nil },
	})
	for _, c := range []struct {
		of     *value.Model
		method string
		own    string
		number float64
		blocks string
		tokens int64
		wrong  string
	}{
		{&h3, "vsa", "keep_percent", 10, "", 12288, ""},
		{&h3, "VSA (FastVideo)", "keep_percent", 95, "0, 1, 47-49", 0, ""},
		{&h3, "sla", "keep_percent", 0.5, "", 12288, ""},
		{model, "top-k (SLA)", "keep_percent", 10, "no numbers", 12288, ""},
		{model, "sol-attn", "tau", 0, "", 12288, ""},
		{model, "Sol-Attn (adaptive tau)", "tau", 4, "", 12288, ""},
		{model, "vsa", "keep_percent", 10, "", 12288, "selection vsa is for MiniMax-H3"},
		{model, "VSA (FastVideo)", "keep_percent", 10, "", 12288, "is for MiniMax-H3"},
		{&h3, "vsa", "keep_percent", 95.5, "", 12288, "selection.keep_percent"},
		{&h3, "sol-attn", "tau", 4.05, "", 12288, "selection.tau"},
		{&h3, "vsa", "keep_percent", 10, "", -1, "min_tokens"},
		{&h3, "svg", "keep_percent", 10, "", 12288, "selection"},
	} {
		given, got = c.of, nil
		run, err := graph.NewRunner(graph.Config{Catalogue: cat})
		check(t, err)
		g := newGraph()
		g.add("Kept", "model", g.add("BlockSparseAttention", "model", g.add("Given"), "selection", c.method,
			"selection."+c.own, c.number, "start_percent", 0.2, "end_percent", 1.0, "dense_blocks", c.blocks, "min_tokens",
			c.tokens, "extra_tokens", int64(256), "sink_conditioning", "exact_kv_and_rows", "verbose", false))
		said := complaint(cat, files.Roots{}, g.workflow(t))
		result, err := run.Run(t.Context(), graph.Job{ID: "sparse", Workflow: g.workflow(t)}, nil)
		run.Close()
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error()+said, c.wrong) {
				t.Errorf("%+v: error %v, validation %s", c, err, said)
			}
			continue
		}
		check(t, err)
		if got != any(c.of) || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "runs dense") {
			t.Errorf("%+v: the same model %v, warnings %q", c, got == any(c.of), result.Warnings)
		}
	}
}
