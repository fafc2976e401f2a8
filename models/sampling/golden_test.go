package sampling

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

// goldenTensors opens a golden safetensors file and returns a reader of its tensors by name.
func goldenTensors(t *testing.T, name string) (read func(string) []float32, names []string) {
	t.Helper()
	f, err := golden.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(name string) []float32 {
		e, ok := f.Entry(name)
		if !ok {
			return nil
		}
		v, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}, f.Names()
}

// goldenModel returns the model sampling that a golden name stands for.
func goldenModel(t *testing.T, name string) *ModelSampling {
	t.Helper()
	var m *ModelSampling
	var err error
	switch name {
	case "flux_dev", "qwen_image", "kontext", "krea2":
		m, err = NewFlux(1.15)
	case "flux2":
		m, err = NewFlux(2.02)
	case "q21":
		m, err = NewFlux(0.69)
	case "flux_node_1024x1024", "krea2/ModelSamplingFlux-1.15-0.5-1024x1024":
		m, err = NewFlux(FluxShift(1.15, 0.5, 1024, 1024))
	case "flux_node_768x1344":
		m, err = NewFlux(FluxShift(1.15, 0.5, 768, 1344))
	case "flux2/ModelSamplingFlux-1.15-0.5-1248x832":
		m, err = NewFlux(FluxShift(1.15, 0.5, 1248, 832))
	case "flux_schnell", "qwen_image/aura1":
		m, err = NewFlow(1, 1)
	case "sd3":
		m, err = NewFlow(3, 1000)
	case "z_image", "z_image/aura3":
		m, err = NewFlow(3, 1)
	case "qwen_image/aura3.1":
		m, err = NewFlow(3.1, 1)
	case "auraflow":
		m, err = NewFlow(1.73, 1)
	case "lumina2":
		m, err = NewFlow(6, 1)
	case "hidream":
		m, err = NewFlow(1, 1000)
	case "pixart_alpha", "pixart_sigma":
		m, err = NewDiscrete(Eps, Linear, 0.0001, 0.02, 1000)
	case "hunyuandit12":
		m, err = NewDiscrete(V, ScaledLinear, 0.00085, 0.018, 1000)
	case "eps", "v":
		m, err = NewDiscrete(map[string]Prediction{"eps": Eps, "v": V}[name], ScaledLinear, 0.00085, 0.012, 1000)
	case "zsnr":
		m, err = NewZeroSNR(V, ScaledLinear, 0.00085, 0.012, 1000)
	case "lcm":
		if m, err = NewFlow(3, 1); err == nil { // whatever it was before
			m, err = m.Discrete(LCM, false)
		}
	case "edm-eps":
		m, err = new(ModelSampling).Continuous(Eps, 0.002, 120)
	case "edm-edm":
		m, err = new(ModelSampling).Continuous(EDM, 0.002, 80)
	case "edm-v":
		m, err = new(ModelSampling).Continuous(V, 0.03, 700)
	case "edm-cosmos":
		m, err = new(ModelSampling).Continuous(CosmosFlow, 0.002, 80)
	case "edm-arc":
		m, err = new(ModelSampling).Arc(0.03, 500)
	default:
		t.Fatalf("no model sampling for golden name %q", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ulps is the distance of two float32 values in units of the last place.
func ulps(a, b float32) int64 {
	order := func(v float32) int64 {
		bits := int64(math.Float32bits(v))
		if bits >= 1<<31 {
			return 1<<31 - bits
		}
		return bits
	}
	return max(order(a)-order(b), order(b)-order(a))
}

// worstUlps returns the largest distance in ulps. It fails the test if the lengths differ or a value is NaN.
func worstUlps(t *testing.T, what string, got, want []float32) int64 {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d values %v, want %d %v", what, len(got), got, len(want), want)
	}
	worst := int64(0)
	for i := range got {
		if got[i] != got[i] {
			t.Fatalf("%s: value %d is not a number, want %v", what, i, want[i])
		}
		worst = max(worst, ulps(got[i], want[i]))
	}
	return worst
}

// absolute returns the largest difference and its index, or +Inf if the lengths differ or a value is NaN.
func absolute(got, want []float32) (worst float64, at int) {
	if len(got) != len(want) {
		return math.Inf(1), -1
	}
	for i := range got {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return math.Inf(1), i
		}
		if d > worst {
			worst, at = d, i
		}
	}
	return worst, at
}

// relative returns the largest difference relative to the largest reference value, and its index.
func relative(got, want []float32) (float64, int) {
	worst, at := absolute(got, want)
	top := 0.0
	for _, v := range want {
		top = max(top, math.Abs(float64(v)))
	}
	if worst == 0 || math.IsInf(worst, 1) {
		return worst, at
	}
	return worst / top, at
}

// shapeOf parses a shape like 1x4x8x8 and returns its dimensions and number of elements.
func shapeOf(t *testing.T, text string) (dims []int, elements int) {
	t.Helper()
	elements = 1
	for _, word := range strings.Split(text, "x") {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		dims = append(dims, n)
		elements *= n
	}
	return dims, elements
}
