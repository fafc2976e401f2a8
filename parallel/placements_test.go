package parallel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/request"
)

// shelf returns a leader with that many bytes for models, models of 100 bytes each by key, and counts of their loads.
func shelf(t *testing.T, room int64) (e *Pool, model func(key string) request.Model, loads map[string]int) {
	t.Helper()
	e, err := NewPool(Config{NewOps: testOps, MemoryBytes: room})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	loads = map[string]int{}
	tiny := tinyRequest(t, "flux", 1, 8, 8, 1).Model
	return e, func(key string) request.Model {
		m := tiny
		m.Key, m.WeightBytes = key, 100
		m.Weights = request.LoadFunc(func(ops engine.Ops, held dit.Held) (dit.Model, error) {
			loads[key]++
			return tiny.Weights.Load(ops, held)
		})
		return m
	}, loads
}

// keys returns the keys of the resident models, most recently used first.
func (p *Pool) keys() (out []string) {
	for _, m := range p.Resident() {
		out = append(out, m.Key)
	}
	return out
}

// TestLeastRecentlyUsedGoesFirst checks that a model that does not fit evicts the least recently used ones, and no more
// than needed.
func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	e, model, loads := shelf(t, 300)
	for i, c := range []struct {
		key  string
		want []string
	}{
		{"a", []string{"a"}},
		{"b", []string{"b", "a"}},
		{"c", []string{"c", "b", "a"}},
		{"a", []string{"a", "c", "b"}},
		{"d", []string{"d", "a", "c"}},
		{"c", []string{"c", "d", "a"}},
		{"b", []string{"b", "c", "d"}},
	} {
		if _, err := e.Load(context.Background(), model(c.key), ""); err != nil {
			t.Fatal(err)
		}
		if got := e.keys(); !slices.Equal(got, c.want) {
			t.Errorf("use %d, of %s: resident are %v, want %v", i, c.key, got, c.want)
		}
	}
	for key, want := range map[string]int{"a": 1, "b": 2, "c": 1, "d": 1} {
		if loads[key] != want {
			t.Errorf("%s was loaded %d times, want %d", key, loads[key], want)
		}
	}
	e.Evict("c")
	if got := e.keys(); !slices.Equal(got, []string{"b", "d"}) {
		t.Errorf("without c resident are %v, want b and d", got)
	}
}

// TestPartsThatDoNotFitTogetherAreRefused checks that a plan whose parts of the weights fit alone but not together is
// refused before any is loaded or evicted, and that evicting a model drops its parts.
func TestPartsThatDoNotFitTogetherAreRefused(t *testing.T) {
	e, model, loads := shelf(t, 99)
	small := model("small")
	small.WeightBytes = 10
	if _, err := e.Load(context.Background(), small, ""); err != nil {
		t.Fatal(err)
	}
	var pe *fault.Error
	if _, err := e.Load(context.Background(), model("a"), "tensor=2"); !errors.As(err, &pe) ||
		pe.Code != fault.OutOfMemory {
		t.Errorf("two parts of 50 bytes or more in 99: got %v, want out_of_memory", err)
	}
	if got := e.keys(); loads["a"] != 0 || !slices.Equal(got, []string{"small"}) {
		t.Errorf("%d parts were loaded, resident are %v, want small alone as before", loads["a"], got)
	}
	e, model, loads = shelf(t, 300)
	if _, err := e.Load(context.Background(), model("a"), "tensor=3"); err != nil || loads["a"] != 3 {
		t.Errorf("three parts of 100 bytes in 300: %d loaded, %v", loads["a"], err)
	}
	if got := e.keys(); len(got) != 3 {
		t.Errorf("resident are %v, want three parts", got)
	}
	if e.Evict("a"); len(e.keys()) != 0 {
		t.Errorf("without a resident are %v, want none", e.keys())
	}
}

// TestWidenedWeightsCount: weights are refused by the bytes that they take once loaded, not by those of the file, in
// the memory of this process and on devices; there plans are chosen by them too.
func TestWidenedWeightsCount(t *testing.T) {
	const want = "take 3 MB"
	for _, where := range []string{"", "d0"} {
		cfg := Config{NewOps: testOps, MemoryBytes: 2 << 20}
		if where != "" {
			cfg.DeviceOf, cfg.DeviceMemory = func(int) string { return where }, 2<<20
		}
		e, err := NewPool(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		r := tinyRequest(t, "flux", 1, 8, 8, 1)
		r.Model.WeightBytes, r.Model.WideBytes = 1<<20, 3<<20
		_, err = e.Load(t.Context(), r.Model, "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on %q: got %v, want %q", where, err, want)
		}
		d := e.whole.onDevice(e.whole.cluster.Device, r.Model)
		if per := float64(3<<20) / float64(r.Model.Spec.Params); where != "" && (d.WeightBytes != per || d.Memory != 2<<20) {
			t.Errorf("on %q the planner has %v bytes a weight and %d in all, want %v and 2 MB", where, d.WeightBytes, d.Memory,
				per)
		}
	}
}

// TestErrorsShowFilesNotKeys checks that the errors of weights that do not fit, cannot be read or panic name the files
// of a model and not what keys have beside them.
func TestErrorsShowFilesNotKeys(t *testing.T) {
	e, model, _ := shelf(t, 99)
	m := model("models/unet/a.safetensors#0f3bc2@18c7a1 beside models/unet/b.gguf#77@1+lora models/loras/c.sft#9d@2b*0.5")
	for what, load := range map[string]request.LoadFunc{
		"too large": nil,
		"broken":    func(engine.Ops, dit.Held) (dit.Model, error) { return nil, errors.New("is cut short") },
		"panic":     func(engine.Ops, dit.Held) (dit.Model, error) { panic("trouble") },
	} {
		if load != nil {
			m.WeightBytes, m.Weights = 10, load
		} else {
			m.WeightBytes = 100
		}
		_, err := e.Load(context.Background(), m, "")
		if err == nil || strings.ContainsAny(err.Error(), "#@") ||
			!strings.Contains(err.Error(), "a.safetensors beside models/unet/b.gguf+lora models/loras/c.sft*0.5") {
			t.Errorf("%s: %v, want the names of the files alone", what, err)
		}
	}
}
