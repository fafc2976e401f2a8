package weights_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/weights"
	"patchbay/tests/golden"
)

// TestRoundedAsComfyUIRounds rounds files of bf16 and f16 to fp8 and compares type and bytes of every tensor, vectors
// too, with what ComfyUI's loader made of them (weight_dtype).
func TestRoundedAsComfyUIRounds(t *testing.T) {
	var models map[string]struct {
		Tensors [][5]any `json:"tensors"`
	}
	var want map[string]map[string][2]string
	if err := golden.JSON("weights.json", &models); err != nil {
		t.Fatal(err)
	}
	if err := golden.JSON("modern33/weight_dtype.json", &want); err != nil {
		t.Fatal(err)
	}
	types := map[string]engine.DType{
		"bfloat16": engine.BF16, "float16": engine.F16, "float8_e4m3fn": engine.F8E4M3, "float8_e5m2": engine.F8E5M2,
	}
	for _, run := range []string{
		"bfloat16 float8_e4m3fn", "bfloat16 float8_e5m2", "float16 float8_e4m3fn", "float16 float8_e5m2",
	} {
		stored, to, _ := strings.Cut(run, " ")
		file := map[string]weights.Stored{}
		for _, row := range models["flux-a"].Tensors {
			name, n, shape := row[0].(string), 1, []int(nil)
			for _, d := range row[1].([]any) {
				shape = append(shape, int(d.(float64)))
				n *= int(d.(float64))
			}
			v := golden.Fill("flux-a/"+name, n, row[3].(float64), row[4].(float64))
			s := weights.Stored{DType: types[stored], Shape: shape, Data: make([]byte, 2*n)}
			engine.Narrow(s.Data, v, s.DType)
			file[name] = s
		}
		set := weights.FromMap(file).Rounded(types[to])
		if len(want[run]) != len(set.Names()) || len(set.Names()) < 80 {
			t.Fatalf("%s: %d tensors are recorded, the set has %d", run, len(want[run]), len(set.Names()))
		}
		for key, w := range want[run] {
			name := key
			if !set.Has(name) { // ComfyUI's name of a norm
				name = strings.Replace(name, "norm.weight", "norm.scale", 1)
			}
			s, ok := set.Get(name)
			if !ok {
				t.Fatalf("%s: there is no %s", run, key)
			}
			sum := sha256.Sum256(s.Elements(0, s.Len()))
			if got := hex.EncodeToString(sum[:8]); s.DType != types[w[0]] || got != w[1] {
				t.Errorf("%s: %s is %s %s, want %s %s", run, key, s.DType, got, w[0], w[1])
			}
		}
	}
}
