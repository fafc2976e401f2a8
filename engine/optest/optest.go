// Package optest is the conformance suite of engine.Ops: every implementation must pass the same cases.
//
// A case is a function that allocates operands and makes calls. It runs twice with the same numbers, on the
// implementation under test and on engine/ref, and all outputs are compared. Operands lie in slabs with guard zones
// and, in the gapped layout, with gaps between rows. Guards and gaps hold NaN, so a stray read shows in the result. A
// stray write is found afterwards, and inputs must keep every bit. rig.go has the slabs, compare.go the comparison,
// cases_*.go the cases, misuse.go the calls that must panic.
package optest

import (
	"fmt"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
)

// Options says what an implementation supports beyond the minimum.
type Options struct {
	BF16 bool // activations may be bf16
	// Reference caches the results of ref for runs with other implementations. Nil means a cache for this run alone.
	Reference *Reference
}

// Reference caches the results of engine/ref by case name: for each operand, its outputs in row-major order. The zero
// value is an empty cache. It is not safe for concurrent use.
type Reference struct{ outputs map[string][][]float64 }

// of returns the outputs of c on ref. It runs the case only the first time.
func (k *Reference) of(t testing.TB, c testCase, name string, dtype engine.DType, gapped bool) [][]float64 {
	t.Helper()
	if out, ok := k.outputs[name]; ok {
		return out
	}
	oracle := c.oracle
	if oracle == nil {
		oracle = c.run
	}
	r := newRig(t, ref.New(), "ref: "+name, dtype, gapped)
	oracle(r)
	r.finish()
	out := make([][]float64, len(r.slabs))
	for i, s := range r.slabs {
		out[i] = written(s)
	}
	if k.outputs == nil {
		k.outputs = map[string][][]float64{}
	}
	k.outputs[name] = out
	return out
}

// testCase is one comparison. tol bounds the error of its outputs.
type testCase struct {
	name   string
	tol    tolerance
	run    func(r *rig)
	oracle func(r *rig) // what ref runs instead of run, another way to the same result; nil: run
}

// Run compares ops with engine/ref on every operation and checks that misuse panics with an *engine.ShapeError. A
// failure names the case, operand, first bad index, got, want, error and bound.
func Run(t *testing.T, ops engine.Ops, o Options) {
	t.Helper()
	if o.Reference == nil {
		o.Reference = &Reference{}
	}
	dtypes := []engine.DType{engine.F32}
	if o.BF16 {
		dtypes = append(dtypes, engine.BF16)
	}
	for _, group := range []struct {
		op    string
		cases []testCase
	}{
		{"Transfer", transferCases()},
		{"Copy", copyCases()},
		{"Linear", linearCases()},
		{"LayerNorm", layerNormCases()},
		{"RMSNorm", rmsNormCases()},
		{"AdaLN", adaLNCases()},
		{"GatedAdd", gatedAddCases()},
		{"Add", addCases()},
		{"Activate", activateCases()},
		{"ActivateMul", activateMulCases()},
		{"QKNormRoPE", qkNormCases()},
		{"Attention", attentionCases()},
		{"MergeAttention", mergeCases()},
		{"Gather", gatherCases()},
		{"MeanRows", meanRowsCases()},
		{"Quantise", quantiseCases()},
		{"Conv2D", convCases()},
		{"GroupNorm", groupNormCases()},
		{"Upsample2x", upsampleCases()},
	} {
		t.Run(group.op, func(t *testing.T) {
			for _, c := range group.cases {
				for _, dtype := range dtypes {
					for _, gapped := range []bool{false, true} {
						runCase(t, ops, o.Reference, c, dtype, gapped)
					}
				}
			}
		})
	}
	t.Run("Pieces", func(t *testing.T) { runPieces(t, ops) })
	t.Run("Misuse", func(t *testing.T) { runMisuse(t, ops) })
}

// runCase runs c on ops and compares the outputs with those of ref. Cases are no subtests, because there are thousands.
func runCase(t testing.TB, ops engine.Ops, known *Reference, c testCase, dtype engine.DType, gapped bool) {
	t.Helper()
	layout := "dense"
	if gapped {
		layout = "gapped"
	}
	name := fmt.Sprintf("%s/%s/%s", c.name, dtype, layout)
	want := known.of(t, c, name, dtype, gapped)
	got := newRig(t, ops, name, dtype, gapped)
	c.run(got)
	got.finish()
	if len(got.slabs) != len(want) {
		t.Errorf("%s: %d operands, ref has %d: is there another case of this name?", name, len(got.slabs), len(want))
		return
	}
	for i, s := range got.slabs {
		if err := compareSlab(s, want[i], c.tol, dtype); err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}
