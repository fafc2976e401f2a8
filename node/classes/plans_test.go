package classes

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/graph"
)

// TestExactPlansDrawTheSamePicture runs the demo on plans with exact arithmetic, with the VAE split over as many ranks.
// No value of the PNG may differ by more than one level from the image of one rank.
func TestExactPlansDrawTheSamePicture(t *testing.T) {
	plans := []string{
		"ulysses=4", "ulysses=7", "ring=3", "tensor=2", "tensor=3,form=scatter", "cfg=2", "pipe=3,warmup=99",
		"cfg=2,pipe=2,ulysses=2,patches=4,warmup=99", "ranks=4",
	}
	if testing.Short() {
		plans = plans[len(plans)-2:]
	}
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: demoRoots(), Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	draw := func(plan string) [][3]float64 {
		result, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: demoWorkflow(t), Plan: plan},
			func(graph.Event) {})
		if err != nil {
			t.Fatalf("%s: %v", plan, err)
		}
		im, err := png.Decode(bytes.NewReader(result.Outputs[0].Data))
		if err != nil {
			t.Fatal(err)
		}
		if len(result.Stats) != 1 {
			t.Fatalf("%s: %d sampling runs, want 1: a cached picture proves nothing", plan, len(result.Stats))
		}
		var out [][3]float64
		for y := range im.Bounds().Dy() {
			for x := range im.Bounds().Dx() {
				out = append(out, rgb(im, x, y))
			}
		}
		return out
	}
	want := draw("")
	for _, plan := range plans {
		for i, p := range draw(plan) {
			for c := range p {
				if d := math.Abs(p[c] - want[i][c]); !(d <= 1) {
					t.Fatalf("%s: pixel %d channel %d is %v, on one rank %v", plan, i, c, p[c], want[i][c])
				}
			}
		}
	}
}

// TestRefusedPlansComeFirst checks that a plan that the model cannot run is refused before any node runs, even if the
// loader's value is cached.
func TestRefusedPlansComeFirst(t *testing.T) {
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: demoRoots(), Catalogue: All()})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	refused := func(plan, text string) {
		t.Helper()
		var nodes []string
		_, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: demoWorkflow(t), Plan: plan},
			func(e graph.Event) {
				if e.Type == "executing" {
					nodes = append(nodes, e.Node)
				}
			})
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.PlanRefused || f.Node != "3" || !strings.Contains(f.Text, text) {
			t.Errorf("%s: %v, want node 3 and %s with %q", plan, err, fault.PlanRefused, text)
		}
		if len(nodes) > 0 {
			t.Errorf("%s: nodes %v were run before the plan was refused", plan, nodes)
		}
	}
	refused("tensor=9", "use tensor=6")
	refused("pipe=7", "use pipe=6")
	workflow := demoWorkflow(t)
	if err := workflow.SetInput("3", "steps", int64(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: workflow},
		func(graph.Event) {}); err != nil {
		t.Fatal(err)
	}
	refused("tensor=9", "use tensor=6")
}
