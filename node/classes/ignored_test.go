package classes

import (
	"context"
	"slices"
	"testing"

	"patchbay/node/graph"
)

// TestIgnoredInputsAreWarnedOf runs a workflow with values for inputs that classes do not have: one warning per node,
// none for what editors write beside the inputs.
func TestIgnoredInputsAreWarnedOf(t *testing.T) {
	runner, err := graph.NewRunner(graph.Config{Catalogue: All()})
	check(t, err)
	t.Cleanup(runner.Close)
	w, failure := graph.ParseWorkflowJSON([]byte(`{
		"1": {"class_type": "EmptyImage", "inputs": {"width": 8, "heigth": 16, "height": 8, "batch_size": 1, "color": 0,
			"batch": ["3", 0], "control_after_generate": "fixed", "upload": "image"}},
		"2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
		"3": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}}}`))
	if failure != nil {
		t.Fatal(failure)
	}
	result, err := runner.Run(context.Background(), graph.Job{ID: "a", Workflow: w}, nil)
	check(t, err)
	want := []string{"node 1: EmptyImage has no input heigth, batch; what is given for it is not used"}
	if !slices.Equal(result.Warnings, want) {
		t.Errorf("got warnings %q, want %q", result.Warnings, want)
	}
}
