package lora

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/goldenrun"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// strength is the strength of the adapters in these tests.
const strength = 0.8

// everywhere returns a kohya file with adapters for every matrix of a model: ranks 1 to 4, alphas of 3, deltas about a
// third of the weights.
func everywhere(t *testing.T, d *family.Diffusion, seed string) *weights.Set {
	t.Helper()
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	f, _ := models.Named(d.Spec.Family)
	file, i := map[string]weights.Stored{}, 0
	for _, w := range declared {
		matrix, ok := strings.CutSuffix(w.Name, ".weight")
		if !ok || len(w.Shape) < 2 || slices.Contains(f.Names.Tables, w.Name) {
			continue
		}
		r, n, k := 1+i%4, w.Shape[0], int(w.Params())/w.Shape[0]
		i++
		module := "lora_unet_" + strings.ReplaceAll(matrix, ".", "_")
		file[module+".lora_up.weight"] = tensor(golden.Fill(seed+" up "+matrix, n*r, 2*math.Sqrt(3*float64(r)), 0), n, r)
		file[module+".lora_down.weight"] = tensor(golden.Fill(seed+" down "+matrix, r*k, 0.3/math.Sqrt(float64(k)), 0),
			append([]int{r}, w.Shape[1:]...)...)
		file[module+".alpha"] = tensor([]float32{1})
	}
	return weights.FromMap(file)
}

// additions returns what a file adds to a model.
func additions(t *testing.T, d *family.Diffusion, file *weights.Set) []weights.LowRank {
	t.Helper()
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	f, _ := models.Named(d.Spec.Family)
	keys := Diffusion(f.Name, f.Names, declared)
	m, err := Match(file, keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Unused) > 0 {
		t.Fatalf("unused %v", m.Unused)
	}
	list, err := Gather(file, ForPart("", m.Additions), strength)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// merged adds the products to the stored weights in f64, as the reference for unmerged adapters.
func merged(set *weights.Set, list []weights.LowRank) *weights.Set {
	out := map[string]weights.Stored{}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		out[name] = s
	}
	for _, a := range list {
		s := out[a.Name+".weight"]
		v, up, down, r := s.F32(), a.Up.F32(), a.Down.F32(), a.Down.Shape[0]
		k := len(v) / s.Shape[0]
		for n := range a.Up.Shape[0] {
			for c := range k {
				sum := 0.0
				for q := range r {
					sum += float64(up[n*r+q]) * float64(down[q*k+c])
				}
				at := (a.First+n)*k + c
				v[at] = float32(float64(v[at]) + float64(a.Scale)*sum)
			}
		}
		out[a.Name+".weight"] = tensor(v, s.Shape...)
	}
	return weights.FromMap(out)
}

// both closes a model and the base that it shares weights with.
type both struct {
	dit.Model
	base dit.Model
}

func (b both) Close() {
	b.Model.Close()
	b.base.Close()
}

// adaptedFamily returns the test battery of a family whose models all have adapters.
func adaptedFamily(t *testing.T, names ...string) goldenrun.Family {
	return goldenrun.Family{Models: names, Open: func(ops engine.Ops, set *weights.Set,
		meta map[string]string, held dit.Held,
	) (dit.Model, error) {
		d, err := models.OpenDiffusion(set, meta)
		if err != nil {
			return nil, err
		}
		base, err := d.Load(ops, held)
		if err != nil {
			return nil, err
		}
		m, err := models.Adapt(ops, base, additions(t, d, everywhere(t, d, "one")))
		return both{m, base}, err
	}}
}

// TestUnmergedEqualsMerged compares models with adapters on every matrix with models that have the same adapters merged
// into their weights.
func TestUnmergedEqualsMerged(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every matrix of every model; TestAdaptedModelsInParts has some")
	}
	networks, err := tiny.Networks()
	if err != nil {
		t.Fatal(err)
	}
	for i, names := range networks {
		name := names[i%len(names)]
		for _, ops := range []engine.Ops{ref.New(), goldenrun.NewOps()} {
			t.Run(name+" on "+strings.ReplaceAll(ops.Name(), "/", " "), func(t *testing.T) {
				set, meta, err := tiny.Checkpoint(name)
				if err != nil {
					t.Fatal(err)
				}
				d, err := models.OpenDiffusion(set, meta)
				if err != nil {
					t.Fatal(err)
				}
				list := additions(t, d, everywhere(t, d, "one"))
				plain, err := d.Load(ops, dit.Held{})
				if err != nil {
					t.Fatal(err)
				}
				defer plain.Close()
				adapted, err := models.Adapt(ops, plain, list)
				if err != nil {
					t.Fatal(err)
				}
				defer adapted.Close()
				dm, err := models.OpenDiffusion(merged(set, list), meta)
				if err != nil {
					t.Fatal(err)
				}
				whole, err := dm.Load(ops, dit.Held{})
				if err != nil {
					t.Fatal(err)
				}
				defer whole.Close()
				c := cases(t, name)
				got, want, none := run(t, ops, adapted, c), run(t, ops, whole, c), run(t, ops, plain, c)
				worst, err := goldenrun.Compare(got, want, 1e-4)
				if err != nil {
					t.Fatalf("unmerged against merged: %v", err)
				}
				effect, err := goldenrun.Compare(got, none, 1e-2)
				if err == nil {
					t.Errorf("the adapters change the result by %.2g only", effect)
				}
				t.Logf("%d adapters: error %.2g, bound 1e-4; they change the result by %.2g", len(list), worst, effect)
			})
		}
	}
}

// cases returns a recorded evaluation of a model, or one of the same kind for a model that none was recorded of.
func cases(t *testing.T, name string) goldenrun.Case {
	t.Helper()
	if all, err := goldenweights.Cases(name); err == nil && len(all) > 0 {
		return all[0]
	}
	d, err := tiny.Describe(name)
	if err != nil {
		t.Fatal(err)
	}
	return goldenrun.Case{
		Name: name + "/made", X: []int{1, d.Spec.Channels, 8, 6}, Timesteps: []float32{0.5},
		Context: []int{1, 7, d.Spec.ContextDim},
	}
}

func run(t *testing.T, ops engine.Ops, m dit.Model, c goldenrun.Case) []float32 {
	t.Helper()
	env, err := goldenrun.NewEnv(ops, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := goldenrun.Whole(env, m, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAdaptedModelsInParts runs the batteries for parallel plans on adapted models: tensor-parallel slices, blocks in
// pipeline stages, calls deferred as late as possible.
func TestAdaptedModelsInParts(t *testing.T) {
	names := []string{"flux-c", "sd3-c", "pixart-b", "hydit-b"}
	if testing.Short() {
		names = names[:2]
		t.Logf("short: only %v", names)
	}
	for _, name := range names {
		f := adaptedFamily(t, name)
		t.Run(name+"/slices", f.Slices)
		t.Run(name+"/stages", f.Stages)
		t.Run(name+"/deferred", f.Deferred)
	}
}

// counting counts the bytes that are packed and not yet freed.
type counting struct {
	engine.Ops
	bytes, packs *atomic.Int64
}

func (c counting) Pack(m engine.Matrix, channels int) (*engine.Packed, error) {
	p, err := c.Ops.Pack(m, channels)
	if err == nil {
		c.bytes.Add(int64(len(p.Buf.Host)))
		c.packs.Add(1)
	}
	return p, err
}

func (c counting) Free(b engine.Buf) {
	c.bytes.Add(-int64(len(b.Host)))
	c.Ops.Free(b)
}

// TestTwoAdaptersShareTheBase keeps two adapted models beside the plain one and checks that the base is packed once,
// that each gives the same bits as alone, in any order, and that closing one does not affect the others.
func TestTwoAdaptersShareTheBase(t *testing.T) {
	set, config, err := goldenweights.Set("flux-c")
	if err != nil {
		t.Fatal(err)
	}
	d, err := models.OpenDiffusion(set, map[string]string{"config": string(config)})
	if err != nil {
		t.Fatal(err)
	}
	ops := counting{goldenrun.NewOps(), &atomic.Int64{}, &atomic.Int64{}}
	c, alone := cases(t, "flux-c"), map[string][]float32{}
	files := map[string]*weights.Set{"one": everywhere(t, d, "one"), "two": everywhere(t, d, "two")}
	open := func(base dit.Model, seed string) dit.Model {
		m, err := models.Adapt(ops, base, additions(t, d, files[seed]))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	load := func() dit.Model {
		m, err := d.Load(ops, dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for seed := range files {
		base := load()
		m := open(base, seed)
		alone[seed] = run(t, ops, m, c)
		m.Close()
		base.Close()
	}
	base := load()
	alone["plain"] = run(t, ops, base, c)
	before, packs := ops.bytes.Load(), ops.packs.Load()
	m := map[string]dit.Model{"plain": base, "one": open(base, "one"), "two": open(base, "two")}
	if share := float64(ops.bytes.Load()-before) / float64(before); share > 0.25 || ops.packs.Load()-packs > 2*2*packs {
		t.Errorf("two sets of adapters take %.2f of the base's bytes in %d matrices, want them small beside it", share,
			ops.packs.Load()-packs)
	} else {
		t.Logf("base %d bytes, two sets of adapters %d", before, ops.bytes.Load()-before)
	}
	check := func(who string) {
		t.Helper()
		if _, err := goldenrun.Compare(run(t, ops, m[who], c), alone[who], 0); err != nil {
			t.Fatalf("%s beside others differs from %s alone: %v", who, who, err)
		}
	}
	for _, who := range []string{"one", "two", "plain", "one", "two"} {
		check(who)
	}
	m["one"].Close()
	check("two")
	check("plain")
	m["two"].Close()
	check("plain")
	if now := ops.bytes.Load(); now != before {
		t.Errorf("after closing both: %d bytes, want %d", now, before)
	}
	base.Close()
}

// TestTwoFilesAdd checks that two files on one model add up, in either order.
func TestTwoFilesAdd(t *testing.T) {
	set, config, err := goldenweights.Set("flux-c")
	if err != nil {
		t.Fatal(err)
	}
	meta := map[string]string{"config": string(config)}
	d, err := models.OpenDiffusion(set, meta)
	if err != nil {
		t.Fatal(err)
	}
	one, two := additions(t, d, everywhere(t, d, "one")), additions(t, d, everywhere(t, d, "two"))
	ops, c := goldenrun.NewOps(), cases(t, "flux-c")
	dm, err := models.OpenDiffusion(merged(merged(set, one), two), meta)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := dm.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	want := run(t, ops, whole, c)
	base, err := d.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	for i, list := range [][]weights.LowRank{
		append(append([]weights.LowRank{}, one...), two...),
		append(append([]weights.LowRank{}, two...), one...),
	} {
		m, err := models.Adapt(ops, base, list)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := goldenrun.Compare(run(t, ops, m, c), want, 1e-4); err != nil {
			t.Error(fmt.Errorf("order %d: %w", i, err))
		}
		m.Close()
	}
}
