package sampling

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"patchbay/tests/golden"
)

func parseSeed(t *testing.T, text string) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func TestNoiseGoldens(t *testing.T) {
	read, names := goldenTensors(t, "noise.safetensors")
	worst, count := map[string]float64{}, map[string]int{}
	for _, name := range names {
		part := strings.Split(name, "/")
		seed := parseSeed(t, part[1])
		var got []float32
		bound := 3e-6
		want := read(name)
		switch part[0] {
		case "noise":
			dims, n := shapeOf(t, part[2])
			v, _, err := PrepareNoise(seed, dims[0], n/dims[0], nil)
			if err != nil {
				t.Fatal(err)
			}
			got = v
		case "batch_index":
			_, n := shapeOf(t, part[3])
			var indices []int
			for _, word := range strings.Split(part[2], "-") {
				i, err := strconv.Atoi(word)
				if err != nil {
					t.Fatal(err)
				}
				indices = append(indices, i)
			}
			v, _, err := PrepareNoise(seed, len(indices), n, indices)
			if err != nil {
				t.Fatal(err)
			}
			got = v
		case "ancestral":
			_, n := shapeOf(t, part[2])
			d, err := NewDraws(Ancestral, seed, n, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range len(want) / n {
				v, err := d.Draw(i, 1, 0.5)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, v...)
			}
		case "brownian":
			got = brownianGolden(t, name, seed, part[2])
			bound = 1e-5
		default:
			t.Fatalf("unknown golden %q", name)
		}
		d, at := absolute(got, want)
		if d > bound {
			t.Errorf("%s: differs by %.3g at %d of %d, bound %.3g", name, d, at, len(want), bound)
		}
		worst[part[0]] = max(worst[part[0]], d)
		count[part[0]]++
	}
	for kind, d := range worst {
		t.Logf("%-12s %2d cases, largest difference %.3g", kind, count[kind], d)
	}
}

func brownianGolden(t *testing.T, name string, seed uint64, shape string) []float32 {
	t.Helper()
	var cases map[string]any
	if err := golden.JSON("noise.json", &cases); err != nil {
		t.Fatal(err)
	}
	c := cases[name].(map[string]any)
	_, n := shapeOf(t, shape)
	tree, err := NewBrownianTree(seed, n, float32(c["sigma_min"].(float64)), float32(c["sigma_max"].(float64)))
	if err != nil {
		t.Fatal(err)
	}
	var out []float32
	for _, p := range c["pairs"].([]any) {
		pair := p.([]any)
		out = append(out, tree.Increment(float32(pair[0].(float64)), float32(pair[1].(float64)))...)
	}
	return out
}

func TestBigNoiseGoldens(t *testing.T) {
	var cases map[string]any
	if err := golden.JSON("noise.json", &cases); err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{42, 4294967303} {
		c := cases[fmt.Sprintf("big/%d/1x16x128x128", seed)].(map[string]any)
		v, _, err := PrepareNoise(seed, 1, 16*128*128, nil)
		if err != nil {
			t.Fatal(err)
		}
		for key, got := range map[string][]float32{"first32": v[:32], "last32": v[len(v)-32:]} {
			var want []float32
			for _, w := range c[key].([]any) {
				want = append(want, float32(w.(float64)))
			}
			if d, at := absolute(got, want); d > 3e-6 {
				t.Errorf("seed %d %s: differs by %.3g at %d", seed, key, d, at)
			}
		}
		sum, squares := 0.0, 0.0
		for _, x := range v {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		for key, got := range map[string]float64{"sum_f64": sum, "sumsq_f64": squares} {
			if want := c[key].(float64); !(math.Abs(got-want) <= 0.02) {
				t.Errorf("seed %d %s: got %v, want %v", seed, key, got, want)
			}
		}
	}
}

func TestMersenneTwisterKnownWords(t *testing.T) {
	// First outputs of the reference implementation for seed 5489.
	g := NewGenerator(5489)
	for i, want := range []uint32{3499211612, 581869302, 3890346734, 3586334585, 545404204} {
		if got := g.Uint32(); got != want {
			t.Fatalf("word %d: got %d, want %d", i, got, want)
		}
	}
	for range 10000 - 6 {
		g.Uint32()
	}
	if got := g.Uint32(); got != 4123659995 {
		t.Fatalf("word 10000: got %d, want 4123659995 (C++ standard, [rand.predef])", got)
	}
}

func TestFastLogAndTurn(t *testing.T) {
	for k := 1; k <= 1<<24; k += 997 {
		v := float64(k) / (1 << 24)
		want := math.Log(v)
		if got := logUniform(v); !(math.Abs(got-want) <= 2e-10*math.Abs(want)+1e-17) {
			t.Fatalf("log(%v): got %v, want %v", v, got, want)
		}
		u := float64(k-1) / (1 << 24)
		sin, cos := turn(u)
		wantSin, wantCos := math.Sincos(2 * math.Pi * u)
		if !(math.Abs(sin-wantSin) <= 2e-11) || !(math.Abs(cos-wantCos) <= 2e-11) {
			t.Fatalf("%v turns: got %v, %v, want %v, %v", u, sin, cos, wantSin, wantCos)
		}
	}
	if got := logUniform(1); got != 0 {
		t.Errorf("log(1): got %v", got)
	}
}

func TestSeedsActThroughTheirBits(t *testing.T) {
	a, b := NewGenerator(7).Randn(32), NewGenerator(7+1<<32).Randn(32)
	if d, _ := absolute(a, b); d != 0 {
		t.Errorf("initial noise of seeds 7 and 7+2^32 differs by %g, want the same", d)
	}
	one, err := NewBrownianTree(7, 32, 0.1, 1)
	if err != nil {
		t.Fatal(err)
	}
	two, err := NewBrownianTree(7+1<<32, 32, 0.1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := absolute(one.Increment(1, 0.5), two.Increment(1, 0.5)); d < 0.1 || math.IsInf(d, 1) {
		t.Errorf("brownian motions of seeds 7 and 7+2^32 differ by %g only", d)
	}
	if got, want := MaskNoise(math.MaxUint64, 16), NewGenerator(0).Randn(16); got[0] != want[0] {
		t.Errorf("mask noise of seed 2^64-1: got %v, want that of seed 0 %v", got[0], want[0])
	}
}

func TestBrownianTreeDoesNotDependOnTheOrderOfQueries(t *testing.T) {
	pairs := [][2]float32{{1, 0.9}, {0.9, 0.35}, {0.9, 0.1}, {0.35, 0.1}, {0.50001, 0.5}, {1, 0.1}}
	forward, err := NewBrownianTree(3, 20, 0.1, 1)
	if err != nil {
		t.Fatal(err)
	}
	var want [][]float32
	for _, p := range pairs {
		want = append(want, forward.Increment(p[0], p[1]))
	}
	for i := len(pairs) - 1; i >= 0; i-- {
		fresh, err := NewBrownianTree(3, 20, 0.1, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := fresh.Increment(pairs[i][0], pairs[i][1])
		if d, at := absolute(got, want[i]); d != 0 {
			t.Errorf("pair %v asked first differs by %g at %d", pairs[i], d, at)
		}
	}
	// The increments over 0.9..0.35 and 0.35..0.1 add up to the one over 0.9..0.1.
	for k := range want[1] {
		sum := float64(want[1][k])*math.Sqrt(0.55) + float64(want[3][k])*math.Sqrt(0.25)
		if d := math.Abs(sum - float64(want[2][k])*math.Sqrt(0.8)); !(d <= 1e-5) {
			t.Fatalf("element %d: increments do not add up, off by %g", k, d)
		}
	}
}

func TestDrawsAreSharedByIndex(t *testing.T) {
	d, err := NewDraws(Ancestral, 1, 16, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	late, err := d.Draw(2, 1, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	early, err := d.Draw(0, 1, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	g := NewGenerator(2)
	if want := g.Randn(16); early[3] != want[3] {
		t.Errorf("draw 0: got %v, want %v", early[3], want[3])
	}
	g.Randn(16)
	if want := g.Randn(16); late[3] != want[3] {
		t.Errorf("draw 2: got %v, want %v", late[3], want[3])
	}
	d.Forget(2)
	if _, err := d.Draw(1, 1, 0.5); err == nil {
		t.Error("a forgotten draw came back without error")
	}
	if again, err := d.Draw(2, 1, 0.5); err != nil || again[3] != late[3] {
		t.Errorf("draw 2 again: got %v, %v", again[3], err)
	}
}

func TestContinuedNoiseGoesOnWhereTheInitialNoiseEnded(t *testing.T) {
	noise, stream, err := PrepareNoise(4, 1, 32, nil)
	if err != nil {
		t.Fatal(err)
	}
	both := NewGenerator(4)
	if want := both.Randn(32); noise[5] != want[5] {
		t.Fatalf("initial noise: got %v, want %v", noise[5], want[5])
	}
	for _, c := range []struct {
		what   string
		stream *Generator
		want   []float32
	}{{"after the initial noise", stream, both.Randn(32)}, {"without it", nil, NewGenerator(4).Randn(32)}} {
		d, err := NewDraws(Continued, 4, 32, nil, c.stream)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Draw(0, 1, 1.1)
		if err != nil {
			t.Fatal(err)
		}
		if diff, at := absolute(got, c.want); diff != 0 {
			t.Errorf("%s: differs by %g at %d", c.what, diff, at)
		}
	}
}

func TestNoiseErrors(t *testing.T) {
	if _, err := NewDraws(NoiseKind(9), 1, 16, nil, nil); err == nil {
		t.Error("unknown kind of noise: no error")
	}
	none, err := NewDraws(NoNoise, 1, 16, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := none.Draw(0, 1, 0.5); err == nil {
		t.Error("draw from a run without noise: no error")
	}
	if _, err := NewBrownianTree(1, 16, 1, 1); err == nil {
		t.Error("brownian motion over nothing: no error")
	}
	if _, _, err := PrepareNoise(1, 2, 4, []int{0, -1}); err == nil {
		t.Error("negative batch_index: no error")
	}
}

func BenchmarkRandn(b *testing.B) {
	b.SetBytes(4 * 16 * 128 * 128)
	for b.Loop() {
		NewGenerator(1).Randn(16 * 128 * 128)
	}
}

func BenchmarkBrownian20Steps(b *testing.B) {
	for b.Loop() {
		tree, err := NewBrownianTree(1, 16*128*128, 0.03, 14.6)
		if err != nil {
			b.Fatal(err)
		}
		for i := range 20 {
			tree.Increment(14.6-0.7*float32(i), 14.6-0.7*float32(i+1))
		}
	}
}
