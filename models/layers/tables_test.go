package layers

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/tests/golden"
)

func recorded(t *testing.T, f *safetensors.File, name string) ([]float32, []int) {
	t.Helper()
	e, ok := f.Entry(name)
	if !ok {
		t.Fatalf("no recorded tensor %q", name)
	}
	v, err := e.F32()
	if err != nil {
		t.Fatal(err)
	}
	return v, e.Shape
}

func open(t *testing.T) *safetensors.File {
	t.Helper()
	f, err := golden.Open("models.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// near fails the test at the first element that differs from want by more than bound.
func near(t *testing.T, what string, got, want []float32, bound float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d values, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= bound) {
			t.Fatalf("%s: element %d: got %v, want %v, error %.3g of bound %.3g", what, i, got[i], want[i], d, bound)
		}
		worst = math.Max(worst, d)
	}
	t.Logf("%s: error %.3g of bound %.3g", what, worst, bound)
}

// TestTimestepFeatures compares with recorded features. A frequency that is wrong by one ulp would cause an error of
// 6e-5 at a timestep of 1000 and 0.06 at 10^6.
func TestTimestepFeatures(t *testing.T) {
	f := open(t)
	for i, times := range [][]float32{{0, 1, 12.5, 500, 999, 1000}, {0.001, 0.875, 3.5}} {
		want, _ := recorded(t, f, fmt.Sprintf("timestep_embedding/plain/%d", i))
		near(t, "plain", TimestepFeatures(times, 256), want, 2e-7)
		scaled := make([]float32, len(times))
		for k, v := range times {
			scaled[k] = 1000 * v
		}
		want, _ = recorded(t, f, fmt.Sprintf("timestep_embedding/flux/%d", i))
		near(t, "times 1000", TimestepFeatures(scaled, 256), want, 2e-7)
	}
}

func TestPositionRotation(t *testing.T) {
	f := open(t)
	for _, c := range []struct {
		name string
		axes []int
		lt   int
		g    dit.Grid
	}{
		{"rope/flux/16-56-56/txt5/4x6", []int{16, 56, 56}, 5, dit.Grid{Y: 4, X: 6}},
		{"rope/flux/8-12-12/txt3/64x2", []int{8, 12, 12}, 3, dit.Grid{Y: 64, X: 2}},
	} {
		want, shape := recorded(t, f, c.name) // [1, 1, L, D/2, 2, 2], matrices [[cos, -sin], [sin, cos]]
		e := dit.Entry{Context: dit.Array{Rows: c.lt}}
		at := Positions(&dit.Spec{PatchSize: 2}, &e, c.g, "", 1, func(int) [4]int { return [4]int{} })
		r := PositionRotation(c.axes, 10000, at)
		if len(r.Cos) != shape[2]*shape[3] || r.Pairs != shape[3] {
			t.Fatalf("%s: got %d values in rows of %d, want %v", c.name, len(r.Cos), r.Pairs, shape)
		}
		got := make([]float32, len(want))
		for i := range r.Cos {
			got[4*i], got[4*i+1], got[4*i+2], got[4*i+3] = r.Cos[i], -r.Sin[i], r.Sin[i], r.Cos[i]
		}
		near(t, c.name, got, want, 1e-7)
	}
}

func TestFillRotation(t *testing.T) {
	f := open(t)
	var cases map[string]struct{ Rows []int }
	if err := golden.JSON("models.json", &cases); err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, name := range f.Names() {
		stem, ok := strings.CutSuffix(name, "#cos")
		if !ok || !strings.HasPrefix(name, "rope/hydit/") {
			continue
		}
		var y, x, d int
		if _, err := fmt.Sscanf(stem, "rope/hydit/%dx%d/head%d", &y, &x, &d); err != nil {
			t.Fatal(err)
		}
		spec := dit.Spec{PatchSize: 2}
		r := FillRotation(d, 32, spec.Tokens(y, x))
		for part, table := range map[string][]float32{"#cos": r.Cos, "#sin": r.Sin} {
			want, _ := recorded(t, f, stem+part)
			rows := cases[stem].Rows
			if rows == nil {
				for i := range len(want) / d {
					rows = append(rows, i)
				}
			}
			var got []float32
			for _, row := range rows {
				for pair := range d / 2 { // recorded values are doubled, one for each member of a pair
					v := table[row*d/2+pair]
					got = append(got, v, v)
				}
			}
			near(t, stem+part, got, want, 5e-6)
		}
		checked++
	}
	if checked != 4 {
		t.Fatalf("checked %d tables, want 4", checked)
	}
}

// TestSinCosPositions compares with the definition in f64, and checks that the features of the column come first.
func TestSinCosPositions(t *testing.T) {
	const e, base, interpolation = 8, 32, 2.0
	g := dit.Grid{Y: 3, X: 5}
	got := SinCosPositions(e, g, base, interpolation)
	var want []float32
	for y := range g.Y {
		for x := range g.X {
			for _, pos := range []float64{float64(x) * base / 5 / interpolation, float64(y) * base / 3 / interpolation} {
				for _, f := range []func(float64) float64{math.Sin, math.Cos} {
					for i := range e / 4 {
						want = append(want, float32(f(pos*math.Pow(10000, -float64(i)/(e/4)))))
					}
				}
			}
		}
	}
	near(t, "positions", got, want, 2e-6)
}

func TestChannelsFirst(t *testing.T) {
	const c, p = 3, 2
	order := ChannelsFirst(c, p)
	for ch := range c {
		for y := range p {
			for x := range p {
				if got, want := order[(ch*p+y)*p+x], (y*p+x)*c+ch; got != want {
					t.Fatalf("channel %d pixel (%d,%d): got stored row %d, want %d", ch, y, x, got, want)
				}
			}
		}
	}
}
