package parallel

import (
	"context"
	"math"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models"
	"patchbay/models/goldenrun"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// rounded8 returns a checkpoint whose block matrices are rotated in groups of 64 and rounded to 8 bits, as converters
// write int8 files.
func rounded8(t *testing.T, set *weights.Set) *weights.Set {
	t.Helper()
	out, count := map[string]weights.Stored{}, 0
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		out[name] = s
		if len(s.Shape) != 2 || s.Shape[1]%64 != 0 || !strings.Contains(name, "_blocks.") {
			continue
		}
		v, k := s.F32(), s.Shape[1]
		q := weights.Stored{
			DType: engine.I8, Shape: s.Shape, Data: make([]byte, len(v)), Scales: make([]float32, s.Shape[0]), Rotated: 64,
		}
		engine.Rotate(v, 64)
		for row := range s.Shape[0] {
			codes := make([]int8, k)
			q.Scales[row] = ref.QuantiseRow(codes, v[row*k:(row+1)*k], 0, false)
			for i, c := range codes {
				q.Data[row*k+i] = byte(c)
			}
		}
		out[name] = q
		count++
	}
	if count < 20 {
		t.Fatalf("only %d matrices are rounded", count)
	}
	return weights.FromMap(out)
}

// TestPlansOfInt8Weights samples with 8-bit weights on several ranks. Where ranks compute what one rank would, bits
// are equal. Other plans differ in the last bits of sums, which flips roundings of activations, and tensor ranks round
// their columns by themselves: they stay within 1.5 times what rounding costs. Sharded blocks, still of 8 bits, give
// the bits of whole ones.
func TestPlansOfInt8Weights(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	for _, name := range []string{"flux-a", "f3-c"} {
		t.Run(name, func(t *testing.T) { plansOfInt8Weights(t, name) })
	}
}

func plansOfInt8Weights(t *testing.T, name string) {
	t.Helper()
	set, meta, err := tiny.Checkpoint(name)
	if err != nil {
		t.Fatal(err)
	}
	set = rounded8(t, set)
	e := newEngine(t)
	sample := func(set *weights.Set, key, text string) []float32 {
		t.Helper()
		d, err := models.OpenDiffusion(set, meta)
		if err != nil {
			t.Fatal(err)
		}
		r := tinyRequest(t, name, 1, 8, 12, 1)
		r.Plan, r.Model.Key, r.Model.Weights = text, key, request.LoadFunc(d.Load)
		result, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return result.Latent.Data
	}
	want := sample(set, "int8", "")
	off := func(got []float32) float64 {
		worst, top := 0.0, 0.0
		for i, v := range got {
			if diff := math.Abs(float64(v) - float64(want[i])); !(diff <= worst) {
				worst = diff
			}
			top = max(top, math.Abs(float64(want[i])))
		}
		return worst / top
	}
	cost := 1.5 * off(sample(set.Dequantized(engine.F32), "widened", ""))
	for _, text := range []string{"cfg=2,shard=on", "ring=2,ulysses=2,deterministic=on"} {
		if got := off(sample(set, "int8", text)); got != 0 {
			t.Errorf("%s: off by %.3g, want the bits of one rank", text, got)
		}
	}
	for _, text := range []string{"ulysses=2", "tensor=2,cfg=2", "tensor=2,ulysses=2,form=scatter"} {
		plain := sample(set, "int8", text)
		if got := off(plain); !(got <= cost) {
			t.Errorf("%s: off by %.3g of the largest value, bound %.3g", text, got, cost)
		}
		if got := sample(set, "int8", text+",shard=on"); firstDifference(got, plain) >= 0 {
			t.Errorf("%s: blocks in parts give other bits than whole ones", text)
		}
	}
}

// TestMemoryOfInt8Weights compares the forecast of 8-bit weights with what loading them takes.
func TestMemoryOfInt8Weights(t *testing.T) {
	set, meta, err := tiny.Checkpoint("flux-a")
	if err != nil {
		t.Fatal(err)
	}
	set = rounded8(t, set)
	d, err := models.OpenDiffusion(set, meta)
	if err != nil {
		t.Fatal(err)
	}
	r := tinyRequest(t, "flux-a", 1, 8, 12, 1)
	each := float64(set.Bytes()) / float64(d.Spec.Params)
	for _, text := range []string{"data=1", "tensor=2"} {
		p := planOf(t, text)
		forecasts := forecast.WeightsByRank(workloadOf(r), p, each)
		for rank, bytes := range forecasts {
			count := &weighing{Ops: goldenrun.NewOps()}
			model, err := d.Load(count, p.Held(nil, plan.Mesh{Plan: p}.At(rank)))
			if err != nil {
				t.Fatal(err)
			}
			model.Close()
			// panels of tiny matrices are filled up, as in TestStagesReadTheirOwnWeights
			if off := float64(bytes)/float64(count.peak) - 1; !near(off, 0, 0.15) {
				t.Errorf("%s, rank %d: forecast %d bytes of weights, loading took %d: off by %.1f %%", text, rank, bytes,
					count.peak, 100*off)
			}
		}
	}
}
