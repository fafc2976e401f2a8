package classes

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

func execRunner(t *testing.T, now func() time.Time) *graph.Runner {
	t.Helper()
	cat := All(
		graph.Class{
			Name: "MakeModel", Outputs: graph.Slots("MODEL", "INT"),
			Run: func(*graph.Call) ([]any, error) { return []any{&value.Model{Name: "m"}, int64(5)}, nil },
		},
		graph.Class{
			Name: "UseModel", Inputs: []graph.Input{graph.Bare("model", "MODEL")}, Outputs: graph.Slots("STRING"),
			Run: func(c *graph.Call) ([]any, error) {
				return []any{graph.Arg[*value.Model](c, "model").Name}, nil
			},
		},
	)
	r, err := graph.NewRunner(graph.Config{Catalogue: cat, Now: now, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestExecHandlesAndLeases(t *testing.T) {
	now := time.Unix(1000, 0)
	r := execRunner(t, func() time.Time { return now })
	made, err := r.Exec(context.Background(), graph.ExecRequest{Class: "MakeModel"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, ok := made.Outputs[0].(graph.Handle)
	if !ok || h.Type != "MODEL" || made.Outputs[1] != int64(5) || !h.Expires.Equal(now.Add(time.Minute)) {
		t.Fatalf("outputs %#v", made.Outputs)
	}
	use := func() error {
		out, err := r.Exec(context.Background(),
			graph.ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": graph.Handle{ID: h.ID}}}, nil)
		if err == nil && out.Outputs[0] != "m" {
			t.Errorf("got %v", out.Outputs)
		}
		return err
	}
	now = now.Add(50 * time.Second)
	if err := use(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(50 * time.Second) // use renewed the lease
	if err := use(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	if err := use(); err == nil || fault.From(err).Code != fault.UnknownHandle || fault.From(err).Field != "model" {
		t.Errorf("after the lease: %v", err)
	}
	made, err = r.Exec(context.Background(),
		graph.ExecRequest{Class: "MakeModel", Want: []int{0, 0}, Lease: time.Hour}, nil)
	if err != nil || len(made.Outputs) != 2 || len(r.Handles()) != 2 {
		t.Fatalf("%v: %v, handles %v", err, made, r.Handles())
	}
	if h := made.Outputs[0].(graph.Handle); !r.FreeHandle(h.ID) || r.FreeHandle(h.ID) {
		t.Error("freeing a handle twice")
	}
	if n := r.FreeHandles(); n != 1 {
		t.Errorf("%d handles were left, want 1", n)
	}
}

func TestExecRefuses(t *testing.T) {
	r := execRunner(t, nil)
	sizes := func(width any) map[string]any {
		return map[string]any{"width": width, "height": 64, "batch_size": 1}
	}
	for name, c := range map[string]struct {
		req         graph.ExecRequest
		code, field string
	}{
		"class":      {graph.ExecRequest{Class: "Nope"}, fault.UnknownClass, ""},
		"missing":    {graph.ExecRequest{Class: "UseModel"}, "required_input_missing", "model"},
		"undeclared": {graph.ExecRequest{Class: "MakeModel", Inputs: map[string]any{"x": 1}}, fault.BadInput, "x"},
		"literal": {
			graph.ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": "m"}},
			fault.BadInput, "model",
		},
		"handle": {
			graph.ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": graph.Handle{ID: "nope"}}},
			fault.UnknownHandle, "model",
		},
		"too small":   {graph.ExecRequest{Class: "EmptyLatentImage", Inputs: sizes(1)}, "value_smaller_than_min", "width"},
		"not a width": {graph.ExecRequest{Class: "EmptyLatentImage", Inputs: sizes("x")}, "invalid_input_type", "width"},
		"slot": {
			graph.ExecRequest{Class: "EmptyLatentImage", Inputs: sizes(64), Want: []int{1}},
			fault.BadInput, "want",
		},
		"tensor": {
			graph.ExecRequest{
				Class:  "SaveImage",
				Inputs: map[string]any{"images": array.New(make([]float32, 6), 2, 3), "filename_prefix": "x"},
			},
			fault.BadInput, "images",
		},
		"prefix": {
			graph.ExecRequest{
				Class:  "SaveImage",
				Inputs: map[string]any{"images": array.New(make([]float32, 12), 1, 2, 2, 3), "filename_prefix": "../x"},
			},
			"custom_validation_failed", "filename_prefix",
		},
	} {
		_, err := r.Exec(context.Background(), c.req, nil)
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != c.code || f.Field != c.field {
			t.Errorf("%s: got %#v, want code %s and field %q", name, err, c.code, c.field)
		}
	}
}

// TestExecFillsInLaterInputs checks that inputs that a client of an older version does not know have their defaults.
func TestExecFillsInLaterInputs(t *testing.T) {
	im := array.New(make([]float32, 12), 1, 2, 2, 3)
	req := graph.ExecRequest{Class: "ImageScaleToTotalPixels", Inputs: map[string]any{
		"image": im, "upscale_method": "nearest-exact", "megapixels": 0.01,
	}}
	out, err := execRunner(t, nil).Exec(t.Context(), req, nil)
	if err != nil || !slices.Equal(out.Outputs[0].(*array.Tensor).Shape, []int{1, 102, 102, 3}) {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestExecValuesTravel(t *testing.T) {
	r := execRunner(t, nil)
	out, err := r.Exec(context.Background(),
		graph.ExecRequest{
			Class:  "EmptyLatentImage",
			Inputs: map[string]any{"width": "64", "height": 32.0, "batch_size": uint8(2)},
		}, nil)
	if err != nil {
		t.Fatal(err)
	}
	samples, _ := out.Outputs[0].(*pyjson.Object).Get("samples")
	if s := samples.(*array.Tensor); !reflect.DeepEqual(s.Shape, []int{2, 4, 4, 8}) || s.DType != "f32" ||
		len(s.Data) != 2*4*4*8*4 {
		t.Errorf("samples %v %s with %d bytes", s.Shape, s.DType, len(s.Data))
	}
}

func TestSaveAndLoadLatent(t *testing.T) {
	r := execRunner(t, nil)
	for _, want := range []*array.Tensor{
		array.New([]float32{1, -2, 3.5, 0}, 1, 1, 2, 2), array.New([]float32{1, -2, 3.5, 0}, 1, 1, 2, 1, 2),
	} {
		saved, err := r.Exec(context.Background(), graph.ExecRequest{
			Class: "SaveLatent", Inputs: map[string]any{"samples": pyjson.NewObject("samples", want), "filename_prefix": "l"},
		}, nil)
		if err != nil || len(saved.Files) != 1 || saved.Files[0].Kind != "latents" || saved.Files[0].Ext != ".latent" {
			t.Fatalf("%v: %+v", err, saved)
		}
		loaded, err := r.Exec(context.Background(),
			graph.ExecRequest{
				Class: "LoadLatent", Inputs: map[string]any{"latent": "x.latent"},
				Files: map[string][]byte{"x.latent": saved.Files[0].Data},
			}, nil)
		if err != nil {
			t.Fatal(err)
		}
		samples, _ := loaded.Outputs[0].(*pyjson.Object).Get("samples")
		if got := samples.(*array.Tensor); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v %v, want %v %v", got.Shape, values(t, got), want.Shape, values(t, want))
		}
	}
}
