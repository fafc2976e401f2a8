package node

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"testing"
	"time"
)

func execRunner(t *testing.T, now func() time.Time) *Runner {
	t.Helper()
	cat := NewCatalogue(
		Class{Name: "MakeModel", Outputs: slots("MODEL", "INT"), Run: func(*Call) ([]any, error) { return []any{&Model{Name: "m"}, int64(5)}, nil }},
		Class{Name: "UseModel", Inputs: []Input{bareIn("model", "MODEL")}, Outputs: slots("STRING"), Run: func(c *Call) ([]any, error) {
			return []any{value[*Model](c, "model").Name}, nil
		}},
	)
	r, err := NewRunner(Config{Catalogue: cat, Now: now, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestExecHandlesAndLeases(t *testing.T) {
	now := time.Unix(1000, 0)
	r := execRunner(t, func() time.Time { return now })
	made, err := r.Exec(context.Background(), ExecRequest{Class: "MakeModel"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, ok := made.Outputs[0].(Handle)
	if !ok || h.Type != "MODEL" || made.Outputs[1] != int64(5) || !h.Expires.Equal(now.Add(time.Minute)) {
		t.Fatalf("outputs %#v", made.Outputs)
	}
	use := func() error {
		out, err := r.Exec(context.Background(), ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": Handle{ID: h.ID}}}, nil)
		if err == nil && out.Outputs[0] != "m" {
			t.Errorf("got %v", out.Outputs)
		}
		return err
	}
	now = now.Add(50 * time.Second)
	if err := use(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(50 * time.Second) // the use has renewed the lease
	if err := use(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Minute)
	if err := use(); err == nil || asFailure(err).Code != CodeUnknownHandle || asFailure(err).Field != "model" {
		t.Errorf("after the lease: %v", err)
	}
	made, err = r.Exec(context.Background(), ExecRequest{Class: "MakeModel", Want: []int{0, 0}, Lease: time.Hour}, nil)
	if err != nil || len(made.Outputs) != 2 || len(r.Handles()) != 2 {
		t.Fatalf("%v: %v, handles %v", err, made, r.Handles())
	}
	if h := made.Outputs[0].(Handle); !r.FreeHandle(h.ID) || r.FreeHandle(h.ID) {
		t.Error("freeing a handle twice")
	}
	if n := r.FreeHandles(); n != 1 {
		t.Errorf("%d handles were left, want 1", n)
	}
}

// TestLeasesEndByThemselves: the value of a handle whose lease is over is given to the collector though nobody calls the runner; one with a longer lease stays.
func TestLeasesEndByThemselves(t *testing.T) {
	r := execRunner(t, nil)
	made := func(lease time.Duration) string {
		out, err := r.Exec(context.Background(), ExecRequest{Class: "MakeModel", Want: []int{0}, Lease: lease}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out.Outputs[0].(Handle).ID
	}
	short, long := made(20*time.Millisecond), made(time.Hour)
	freed, stays := make(chan struct{}), make(chan struct{})
	r.handles.mu.Lock() // the short one cannot end before it is looked at
	if e := r.handles.held[short]; e != nil {
		runtime.AddCleanup(e.value.(*Model), func(c chan struct{}) { close(c) }, freed)
	} else {
		close(freed) // it ended already
	}
	runtime.AddCleanup(r.handles.held[long].value.(*Model), func(c chan struct{}) { close(c) }, stays)
	r.handles.mu.Unlock()
	for end := time.Now().Add(2 * time.Minute); ; {
		runtime.GC()
		select {
		case <-freed:
		case <-time.After(time.Millisecond):
			if time.Now().After(end) {
				t.Fatal("the value of a handle is held 2 minutes after its lease of 20 ms")
			}
			continue
		}
		break
	}
	select {
	case <-stays:
		t.Error("the value of a handle with a lease of an hour is gone")
	default:
	}
	for id, want := range map[string]string{short: CodeUnknownHandle, long: ""} {
		_, err := r.Exec(context.Background(), ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": Handle{ID: id}}}, nil)
		var f *Failure
		if errors.As(err, &f); want == "" && err != nil || want != "" && (f == nil || f.Code != want || f.Field != "model") {
			t.Errorf("handle %s: got %v, want %q", id, err, want)
		}
	}
	if n := r.FreeHandles(); n != 1 || r.handles.alarm != nil {
		t.Errorf("%d handles were left, the alarm is %v; want one, and none after it", n, r.handles.alarm)
	}
}

func TestExecRefuses(t *testing.T) {
	r := execRunner(t, nil)
	sizes := func(width any) map[string]any {
		return map[string]any{"width": width, "height": 64, "batch_size": 1}
	}
	for name, c := range map[string]struct {
		req         ExecRequest
		code, field string
	}{
		"class":       {ExecRequest{Class: "Nope"}, CodeUnknownClass, ""},
		"missing":     {ExecRequest{Class: "UseModel"}, codeInputMissing, "model"},
		"undeclared":  {ExecRequest{Class: "MakeModel", Inputs: map[string]any{"x": 1}}, CodeBadInput, "x"},
		"literal":     {ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": "m"}}, CodeBadInput, "model"},
		"handle":      {ExecRequest{Class: "UseModel", Inputs: map[string]any{"model": Handle{ID: "nope"}}}, CodeUnknownHandle, "model"},
		"too small":   {ExecRequest{Class: "EmptyLatentImage", Inputs: sizes(1)}, codeTooSmall, "width"},
		"not a width": {ExecRequest{Class: "EmptyLatentImage", Inputs: sizes("x")}, codeInvalidInput, "width"},
		"slot":        {ExecRequest{Class: "EmptyLatentImage", Inputs: sizes(64), Want: []int{1}}, CodeBadInput, "want"},
		"tensor":      {ExecRequest{Class: "SaveImage", Inputs: map[string]any{"images": NewTensor(make([]float32, 6), 2, 3), "filename_prefix": "x"}}, CodeBadInput, "images"},
		"prefix":      {ExecRequest{Class: "SaveImage", Inputs: map[string]any{"images": NewTensor(make([]float32, 12), 1, 2, 2, 3), "filename_prefix": "../x"}}, codeCustom, "filename_prefix"},
	} {
		_, err := r.Exec(context.Background(), c.req, nil)
		var f *Failure
		if !errors.As(err, &f) || f.Code != c.code || f.Field != c.field {
			t.Errorf("%s: got %#v, want code %s and field %q", name, err, c.code, c.field)
		}
	}
}

func TestExecValuesTravel(t *testing.T) {
	r := execRunner(t, nil)
	out, err := r.Exec(context.Background(), ExecRequest{Class: "EmptyLatentImage", Inputs: map[string]any{"width": "64", "height": 32.0, "batch_size": uint8(2)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	samples, _ := out.Outputs[0].(*Object).Get("samples")
	if s := samples.(*Tensor); !reflect.DeepEqual(s.Shape, []int{2, 4, 4, 8}) || s.DType != "f32" || len(s.Data) != 2*4*4*8*4 {
		t.Errorf("samples %v %s with %d bytes", s.Shape, s.DType, len(s.Data))
	}
	g := float32(2.5)
	list := Conditioning{
		{Context: array(2, 3), Pooled: []float32{1, 2}, Guidance: &g, Start: 0.25, End: 0.5, Ranged: true, Strength: 0.5, HasStrength: true, MaskStrength: 1},
		{Context: array(1, 3), NoGuidance: true, AreaPart: &[4]float64{0.5, 0.25, 0, 1}, Mask: &Mask{1, 2, 2, []float32{0, 1, 1, 0}}, MaskStrength: 0.75, MaskBounds: true, ContextLen: 1, Context2: array(2, 2), Context2Len: 2},
	}
	back, err := importConditioning(r.export(list, 0))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, list) {
		t.Errorf("conditioning came back as\n%+v\nwant\n%+v", back, list)
	}
	l := &Latent{NoiseMask: &Mask{1, 2, 2, []float32{0, 1, 1, 0}}, BatchIndex: []int{3, 1}}
	l.Samples.B, l.Samples.C, l.Samples.Y, l.Samples.X, l.Samples.Data = 2, 1, 1, 2, []float32{1, 2, 3, 4}
	if got, err := importLatent(r.export(l, 0)); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("latent came back as %+v, %v", got, err)
	}
	if _, err := importConditioning([]any{[]any{NewTensor([]float32{1}, 1, 1, 1), NewObject("hooks", 1)}}); err == nil {
		t.Error("a key that is not known was taken")
	}
}

func TestSaveAndLoadLatent(t *testing.T) {
	r := execRunner(t, nil)
	want := []float32{1, -2, 3.5, 0}
	saved, err := r.Exec(context.Background(), ExecRequest{Class: "SaveLatent", Inputs: map[string]any{"samples": NewObject("samples", NewTensor(want, 1, 1, 2, 2)), "filename_prefix": "l"}}, nil)
	if err != nil || len(saved.Files) != 1 || saved.Files[0].Kind != "latents" || saved.Files[0].Ext != ".latent" {
		t.Fatalf("%v: %+v", err, saved)
	}
	loaded, err := r.Exec(context.Background(), ExecRequest{Class: "LoadLatent", Inputs: map[string]any{"latent": "x.latent"}, Files: map[string][]byte{"x.latent": saved.Files[0].Data}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	samples, _ := loaded.Outputs[0].(*Object).Get("samples")
	if got := values(t, samples); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
