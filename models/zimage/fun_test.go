package zimage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// funSet returns the tensors of a recorded Fun net after change.
func funSet(t *testing.T, name string, change func(all map[string]weights.Stored)) *weights.Set {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]weights.Stored{}
	for _, key := range set.Names() {
		all[key], _ = set.Get(key)
	}
	change(all)
	return weights.FromMap(all)
}

// TestFunFeedsAreComfyUIs checks that the same layer is added after each block of a released model as in ComfyUI.
func TestFunFeedsAreComfyUIs(t *testing.T) {
	var runs map[string]struct{ Feeds map[string]int }
	if err := golden.JSON("modern33/patches.json", &runs); err != nil {
		t.Fatal(err)
	}
	d, err := Family().Releases[0].Config.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, c := range []funConfig{
		{refiners: 2, layers: 6, refines: true},
		{refiners: 2, layers: 3, refines: true},
		{refiners: 2, layers: 15, refines: true},
		{refiners: 2, layers: 15, refines: true, broken: true},
		{refiners: 2, layers: 6},
	} {
		want := maps.Clone(runs[fmt.Sprintf("feeds/%d", c.layers)].Feeds)
		if !c.refines {
			maps.DeleteFunc(want, func(name string, _ int) bool { return strings.HasPrefix(name, "noise") })
		}
		got := map[string]int{}
		for k, blocks := range (&Fun{steps: c.steps()}).Feeds(&d.Spec) {
			for _, b := range blocks {
				name := fmt.Sprint("double ", b-2)
				if b < 2 {
					name = fmt.Sprint("noise_refiner ", b)
				}
				got[name] = c.steps()[k].i
			}
		}
		compared += len(got)
		if !maps.Equal(got, want) {
			t.Errorf("%+v feeds %v, ComfyUI %v", c, got, want)
		}
	}
	if compared != 8+5+17+17+6 {
		t.Errorf("%d blocks compared, want 53", compared)
	}
}

// TestFunNamesOfDiffusers checks that separate matrices for queries, keys and values equal the fused one.
func TestFunNamesOfDiffusers(t *testing.T) {
	plain := funSet(t, "fun-a", func(map[string]weights.Stored) {})
	apart := funSet(t, "fun-a", func(all map[string]weights.Stored) {
		for key, w := range maps.Clone(all) {
			if l, ok := strings.CutSuffix(key, "attention.qkv.weight"); ok {
				delete(all, key)
				n := w.Shape[0] / 3
				for i, part := range []string{"to_q", "to_k", "to_v"} {
					rows, err := w.Rows(i*n, n)
					if err != nil {
						t.Fatal(err)
					}
					all[l+"attention."+part+".weight"] = rows
				}
				for as, original := range map[string]string{"norm_q": "q_norm", "norm_k": "k_norm", "to_out.0": "out"} {
					all[l+"attention."+as+".weight"] = all[l+"attention."+original+".weight"]
					delete(all, l+"attention."+original+".weight")
				}
			}
		}
	})
	if slices.Equal(plain.Names(), apart.Names()) {
		t.Fatal("names are the same")
	}
	got, err := weights.Renamed(apart, funAliases())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Names(), plain.Names()) {
		t.Fatalf("got %v, want %v", got.Names(), plain.Names())
	}
	for _, name := range plain.Names() {
		a, _ := got.Get(name)
		b, _ := plain.Get(name)
		if !slices.Equal(a.Shape, b.Shape) || !slices.Equal(a.F32(), b.F32()) {
			t.Errorf("%s is another", name)
		}
	}
	if _, hint, err := describeFun(apart); err != nil || hint != 16 {
		t.Errorf("described with a hint of %d channels, %v", hint, err)
	}
}

// TestFunFilesAreRead checks the description of recorded files and the errors for files that are no Fun net.
func TestFunFilesAreRead(t *testing.T) {
	for name, steps := range map[string]int{
		"fun-a": 2 + 6, "fun-lite-a": 2 + 3, "fun-union-a": 2 + 15, "fun-broken-a": 2 * 15,
	} {
		d, _, err := describeFun(funSet(t, name, func(map[string]weights.Stored) {}))
		if err != nil {
			t.Fatal(err)
		}
		first := func(b dit.BlockSpec) bool { return b.Params > 0 }
		if got := len(d.Spec.Blocks); got != steps || !d.Spec.Follows || !slices.ContainsFunc(d.Spec.Blocks, first) {
			t.Errorf("%s: %d blocks, want %d", name, got, steps)
		}
	}
	drop := func(prefix string) func(map[string]weights.Stored) {
		return func(all map[string]weights.Stored) {
			maps.DeleteFunc(all, func(key string, _ weights.Stored) bool { return strings.HasPrefix(key, prefix) })
		}
	}
	for want, change := range map[string]func(map[string]weights.Stored){
		"of 5 layers behind 2 that refine: want 3, 6 or 15":      drop("control_layers.5."),
		"of 6 layers behind 1 that refine":                       drop("control_noise_refiner.1."),
		"control_layers.2.after_proj.weight":                     drop("control_layers.2.after_proj.weight"),
		"part 1 of 3 is missing":                                 splitQuery,
		"whose hint has 17 channels: want 16, or 33 with a mask": widerHint,
		"width 264 is not a multiple of the head dim 80":         otherHeads,
		"1 unexpected (control_layers.0.before_proj_2.weight)": func(all map[string]weights.Stored) {
			all["control_layers.0.before_proj_2.weight"] = all["control_layers.0.before_proj.weight"]
		},
	} {
		d, _, err := describeFun(funSet(t, "fun-a", change))
		if err == nil {
			_, err = d.Load(nil, dit.Held{})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func splitQuery(all map[string]weights.Stored) {
	const key = "control_layers.1.attention."
	all[key+"to_k.weight"] = all[key+"out.weight"]
	delete(all, key+"qkv.weight")
}

func widerHint(all map[string]weights.Stored) {
	w := all[funHint+".weight"]
	w.Shape = []int{w.Shape[0], 4 * 17}
	all[funHint+".weight"] = w
}

func otherHeads(all map[string]weights.Stored) {
	const key = "control_layers.0.attention.q_norm.weight"
	w := all[key]
	w.Shape = []int{80}
	all[key] = w
}
