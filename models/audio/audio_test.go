package audio_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/audio"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// tolerance is that of tests/golden/h3, relative to the largest value.
const tolerance = 1e-4

func checkpoint(t testing.TB) *weights.Set {
	t.Helper()
	set, _, err := goldenweights.Set("h3audio-a")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func open(t testing.TB, ops engine.Ops) *audio.VAE {
	t.Helper()
	v, err := audio.Open(ops, checkpoint(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

// compare fails the test if the largest difference exceeds the tolerance, relative to the largest wanted value.
func compare(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	scale, worst := 0.0, 0.0
	for i := range want {
		scale = max(scale, math.Abs(float64(want[i])))
		if d := math.Abs(float64(got[i]) - float64(want[i])); !(d <= worst) {
			worst = d
		}
		if math.IsNaN(worst) {
			break
		}
	}
	if !(worst <= tolerance*scale) {
		t.Errorf("%s: relative error %.3g", what, worst/scale)
		return
	}
	t.Logf("%s: relative error %.2g", what, worst/scale)
}

// TestGolden compares decoded and encoded sounds with ComfyUI's, some of them shorter than a latent.
func TestGolden(t *testing.T) {
	f, err := golden.Open("h3/vae.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	checked := 0
	for name, ops := range backends(t) {
		v := open(t, ops)
		for _, key := range f.Names() {
			rest, ok := strings.CutPrefix(key, "h3audio-a/")
			if !ok || strings.Contains(key, "#") {
				continue
			}
			kind, number, _ := strings.Cut(rest, "/")
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			if name == "ref" && n > 1 && n != 800 {
				continue // slow there
			}
			e, _ := f.Entry(key)
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			checked++
			var got []float32
			if kind == "decode" {
				got, err = v.Decode(audio.Env{Ops: ops}, golden.Input("h3audio-a/latent/"+number, 32*2*n), 2, n)
			} else {
				got, err = v.Encode(audio.Env{Ops: ops}, golden.Fill("input:h3audio-a/wave/"+number, 2*n, 1, 0), 2, n)
			}
			if err != nil {
				t.Fatal(err)
			}
			compare(t, name+" "+key, got, want)
		}
	}
	if checked < 6 {
		t.Errorf("%d cases were compared, want all 6 on the fastest backend", checked)
	}
}

// TestWideHead compares what ComfyUI encodes with an attention whose heads are twice as wide as a latent: neighbors are
// averaged (testdata/make_wide.py).
func TestWideHead(t *testing.T) {
	text, err := os.ReadFile("testdata/wide.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Tensors [][]json.RawMessage
		Latent  []float32
	}
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	set, wide := checkpoint(t), map[string]weights.Stored{}
	for _, name := range set.Names() {
		wide[name], _ = set.Get(name)
	}
	for _, row := range recorded.Tensors {
		var (
			name          string
			shape         []int
			scale, offset float64
		)
		for i, to := range []any{&name, &shape, &scale, &offset} {
			if err := json.Unmarshal(row[i], to); err != nil {
				t.Fatal(err)
			}
		}
		n := weights.Stored{Shape: shape}.Len()
		wide[name] = weights.Floats(golden.Fill("h3audio-wide/"+name, n, scale, offset), shape...)
	}
	for name, ops := range backends(t) {
		v, err := audio.Open(ops, weights.FromMap(wide), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := v.Encode(audio.Env{Ops: ops}, golden.Fill("input:h3audio-wide/wave", 2400, 1, 0), 1, 2400)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, name, got, recorded.Latent)
		v.Close()
	}
}

// TestChannelsAlone checks that a channel of a sound is coded as it is alone.
func TestChannelsAlone(t *testing.T) {
	ops := fastest(t)
	v := open(t, ops)
	two := golden.Fill("input:two", 2*1600, 1, 0)
	both, err := v.Encode(audio.Env{Ops: ops}, two, 2, 1600)
	if err != nil {
		t.Fatal(err)
	}
	second, err := v.Encode(audio.Env{Ops: ops}, two[1600:], 1, 1600)
	if err != nil {
		t.Fatal(err)
	}
	for k := range v.Config.Channels {
		if !slices.Equal(both[k*4+2:k*4+4], second[k*2:k*2+2]) {
			t.Fatalf("channel %d of the latent differs", k)
		}
	}
}

// TestBadInput checks what is refused: sizes that do not fit, a file without an activation, one of another family.
func TestBadInput(t *testing.T) {
	ops := fastest(t)
	v := open(t, ops)
	if _, err := v.Decode(audio.Env{Ops: ops}, make([]float32, 31), 1, 1); err == nil {
		t.Error("a latent of 31 values is decoded")
	}
	if _, err := v.Encode(audio.Env{Ops: ops}, nil, 1, 0); err == nil {
		t.Error("a sound of no samples is encoded")
	}
	set, less := checkpoint(t), map[string]weights.Stored{}
	for _, name := range set.Names() {
		if name != "decoder.activation_post.act.beta" {
			less[name], _ = set.Get(name)
		}
	}
	if _, err := audio.Open(ops, weights.FromMap(less), nil); err == nil ||
		!strings.Contains(err.Error(), "activation_post.act.beta has 0 values") {
		t.Errorf("a file without an activation: %v", err)
	}
	if audio.Is(weights.FromMap(map[string]weights.Stored{"decoder.conv_in.weight": weights.Floats(nil, 0)})) {
		t.Error("an autoencoder of pictures is taken for one of sound")
	}
	if unused := audio.Unused(set, nil); len(unused) > 0 {
		t.Errorf("not used: %v", unused)
	}
}

// backends returns the Ops that golden tests run on: all that this build has, with -short only the fastest one.
func backends(t testing.TB) map[string]engine.Ops {
	t.Helper()
	all := nativeBackends(t)
	if testing.Short() {
		ops := fastest(t)
		return map[string]engine.Ops{ops.Name(): ops}
	}
	all["ref"] = ref.New()
	return all
}

// fastest returns the best backend of this machine.
func fastest(t testing.TB) engine.Ops {
	t.Helper()
	all := nativeBackends(t)
	for _, name := range []string{"cpu/avx512", "cpu/avx2", "cpu/generic"} {
		if ops := all[name]; ops != nil {
			return ops
		}
	}
	return ref.New()
}
