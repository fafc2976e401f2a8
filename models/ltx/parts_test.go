package ltx

import (
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// load returns a golden model on ref and an Env.
func load(t *testing.T, name string) (*Model, dit.Env) {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := goldenrun.Of(Family())(goldenrun.NewOps(), set, map[string]string{"config": string(config)}, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	env, err := goldenrun.NewEnv(goldenrun.NewOps(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*Model), env
}

func values(t *testing.T, env dit.Env, x engine.Tensor) []float32 {
	t.Helper()
	out, mark := make([]float32, x.Len()), env.Arena.Mark()
	whole := env.Arena.Alloc(engine.F32, x.Shape()...)
	env.Ops.Copy(whole, x)
	if err := env.Ops.Download(out, whole).Wait(); err != nil {
		t.Fatal(err)
	}
	env.Arena.Release(mark)
	return out
}

// TestConnectors compares the rows that were recorded of 1024 that connectors make of 5 and of 60.
func TestConnectors(t *testing.T) {
	var cases map[string]struct {
		Context, Output, Rows []int
	}
	if err := golden.JSON("ltx/connectors.json", &cases); err != nil {
		t.Fatal(err)
	}
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for name, c := range cases {
		model, _, _ := strings.Cut(name, "/")
		m, env := load(t, model)
		n, cols := c.Context[1], c.Context[2]
		e := dit.Entry{Context: dit.Array{Rows: n, Cols: cols, Data: golden.Input(name+"/context", n*cols)}}
		video, sound := m.contexts(env, []dit.Entry{e})
		want, _, err := file.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		v, a := values(t, env, video), values(t, env, sound)
		if video.Dim(1) != c.Output[1] || video.Dim(2)+sound.Dim(2) != c.Output[2] {
			t.Fatalf("%s: %d rows of %d and %d columns, want %v", name, video.Dim(1), video.Dim(2), sound.Dim(2), c.Output)
		}
		var got []float32
		for _, row := range c.Rows {
			got = append(got, v[row*video.Dim(2):(row+1)*video.Dim(2)]...)
			got = append(got, a[row*sound.Dim(2):(row+1)*sound.Dim(2)]...)
		}
		worst, err := goldenrun.Compare(got, want, goldenrun.Rel)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: error %.2g, bound %.2g", name, worst, goldenrun.Rel)
	}
}

// TestRotationTables compares all four tables of every model with ComfyUI's, which are matrices of each pair.
func TestRotationTables(t *testing.T) {
	file, err := goldenweights.OpenResults()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, name := range []string{"ltx-a/2x3x4", "ltx-b/2x3x4", "ltx-c/3x2x4"} {
		model, _, _ := strings.Cut(name, "/")
		m, env := load(t, model)
		cases, err := goldenweights.Cases(model)
		if err != nil {
			t.Fatal(err)
		}
		c := cases[slices.IndexFunc(cases, func(c goldenweights.Case) bool { return c.Name == name })]
		p, err := m.Prepare(env, c.Entries(), c.Grid(m.Spec()))
		if err != nil {
			t.Fatal(err)
		}
		v, a := m.cfg.Hidden/2, m.cfg.Sound/2
		for part, table := range map[string]engine.RoPE{
			"video": columns(p.RoPE, 0, v), "video_av": columns(p.RoPE, v, v+a), "audio": columns(p.SoundRoPE, 0, a),
			"audio_av": columns(p.SoundRoPE, a, 2*a),
		} {
			want, _, err := file.Get(name + "#rope_" + part)
			if err != nil {
				t.Fatal(err)
			}
			var got []float32
			cos, sin := values(t, env, table.Cos), values(t, env, table.Sin)
			for i := range cos {
				got = append(got, cos[i], -sin[i], sin[i], cos[i])
			}
			worst, err := goldenrun.Compare(got, want, 1e-6)
			if err != nil {
				t.Fatalf("%s of %s: %v", part, name, err)
			}
			t.Logf("%s of %s: error %.2g, bound 1e-6", part, name, worst)
		}
	}
}
