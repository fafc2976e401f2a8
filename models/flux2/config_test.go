package flux2

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
)

// TestReleasedSizes counts the parameters of the releases by hand.
func TestReleasedSizes(t *testing.T) {
	for _, r := range Family().Releases {
		d, err := r.Config.Describe(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := r.Config.(Config)
		e, f := int64(c.Hidden), int64(c.MLPHidden)
		double, single := 2*(4*e*e+3*e*f+2*128), 3*e*e+2*e*f+e*(e+f)+2*128
		want := int64(c.Depth)*double + int64(c.DepthSingle)*single + e*128 + e*int64(c.ContextDim) + 256*e + e*e + 15*e*e +
			2*e*e + 128*e
		if c.Guidance {
			want += 256*e + e*e
		}
		if s := d.Spec; s.Params != want || s.Blocks[0].Params != double || s.HeadDim != 128 || !s.JointText() {
			t.Errorf("%s: got %d parameters, %d in a block, head dim %d; want %d, %d, 128", r.Name, s.Params,
				s.Blocks[0].Params, s.HeadDim, want, double)
		}
	}
}

// shapes returns the tensors of a config by name, with shapes but without data.
func shapes(t *testing.T, c Config) map[string]weights.Stored {
	t.Helper()
	d, err := c.Describe(nil)
	if err != nil {
		t.Fatal(err)
	}
	declared, err := d.Declare()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]weights.Stored{}
	for _, d := range declared {
		m[d.Name] = weights.Stored{Shape: d.Shape}
	}
	return m
}

func TestDetectFindsTheConfig(t *testing.T) {
	for _, r := range Family().Releases {
		want := r.Config.(Config)
		want.Depth, want.DepthSingle = 2, 3
		names := shapes(t, want)
		if got, err := Detect(weights.FromMap(names), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		for name, s := range names { // as newer tools save them
			if at, ok := strings.CutSuffix(name, "_norm.scale"); ok {
				delete(names, name)
				names[at+"_norm.weight"] = s
			}
		}
		if got, err := Detect(weights.FromMap(names), nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("with norms called weight: got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestDetectRefusesWithReasons(t *testing.T) {
	tiny := Family().Tiny.(Config)
	wide := shapes(t, tiny)
	wide["img_in.weight"] = weights.Stored{Shape: []int{tiny.Hidden, 256}}
	for _, c := range []struct {
		set  map[string]weights.Stored
		meta string
		want string
	}{
		{shapes(t, tiny), `{}`, "axes_dim [] must be 4 sizes"},
		{shapes(t, tiny), `{"axes_dim": [5, 7, 6, 6]}`, "even"},
		{shapes(t, tiny), `{`, "metadata"},
		{nil, `{}`, "head dim 0"},
		{wide, `{"axes_dim": [6, 6, 6, 6]}`, "reads 256 channels"},
	} {
		_, err := Detect(weights.FromMap(c.set), map[string]string{"config": c.meta})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that says %q", err, c.want)
		}
	}
}

// TestPositions compares the position of every token with the one ComfyUI recorded.
func TestPositions(t *testing.T) {
	goldens().Positions(t, func(m dit.Model, c goldenrun.Case) [][]float32 {
		e, g := c.Entries()[0], m.Spec().Tokens(c.X[2], c.X[3])
		at := m.(*Model).positions(&e, g)
		textRows, lt := e.Context.Rows, m.Spec().JointTokens(&e) // ComfyUI puts references last
		return goldenrun.Axes(slices.Concat(at[:textRows], at[lt:], at[textRows:lt]))
	})
}
