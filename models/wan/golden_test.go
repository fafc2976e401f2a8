package wan

import (
	"fmt"
	"testing"

	"patchbay/engine/ref"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

func goldens() goldenrun.Family {
	return goldenrun.Family{
		Models: []string{"wan-t2v-b", "wan-i2v22-a", "wan-i2v22-b", "wan-i2v21-a", "wan-ti2v-a", "wan-t2v-a"},
		Open:   goldenrun.Of(Family()),
		States: func(_ *dit.Spec, i int, x []float32, _ dit.Rows) map[string][]float32 {
			return map[string][]float32{fmt.Sprintf("blocks.%d", i): x}
		},
	}
}

func TestForwardMatchesGolden(t *testing.T)        { goldens().Forward(t) }
func TestForwardOnCPU(t *testing.T)                { goldens().Levels(t) }
func TestNothingIsReadEarly(t *testing.T)          { goldens().Deferred(t) }
func TestRowsOfPartsEqualTheWhole(t *testing.T)    { goldens().Rows(t) }
func TestBlocksOfStagesEqualTheWhole(t *testing.T) { goldens().Stages(t) }
func TestSlicesSumToTheWhole(t *testing.T)         { goldens().Slices(t) }
func TestBatchAndSteps(t *testing.T)               { goldens().Batch(t) }
func TestMemoryIsMeasurable(t *testing.T)          { goldens().Measured(t) }
func TestHalfPrecision(t *testing.T)               { goldens().Half(t) }

// TestPicturesAreEmbeddedAsByComfyUI compares what Prepare makes of a picture encoder's states with ComfyUI, of one
// picture and of two, with learned positions and without.
func TestPicturesAreEmbeddedAsByComfyUI(t *testing.T) {
	f, err := golden.Open("wan/clip_vision.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, name := range []string{"wan-i2v21-a", "wan-flf21-a"} {
		set, config, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := goldenrun.Of(Family())(ref.New(), set, map[string]string{"config": string(config)}, dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, rows := range []int{5, 10} {
			env, err := goldenrun.NewEnv(ref.New(), nil)
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf("%s/%d", name, rows)
			states := dit.Array{Rows: rows, Cols: 1280, Data: golden.Input("clip_vision/"+key, rows*1280)}
			p, err := m.Prepare(env, []dit.Entry{{
				Context: dit.Array{Rows: 2, Cols: 4096, Data: make([]float32, 2*4096)}, Vision: states,
				Concat: dit.Reference{Y: 2, X: 2, Data: make([]float32, 20*4)},
			}}, m.Spec().FrameTokens(1, 2, 2))
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, rows*256)
			if err := env.Ops.Download(got, p.Source.Slice(1, 2, 2+rows)).Wait(); err != nil {
				t.Fatal(err)
			}
			e, ok := f.Entry(key)
			if !ok {
				t.Fatalf("%s is not recorded", key)
			}
			want, err := e.F32()
			if err != nil {
				t.Fatal(err)
			}
			worst, err := goldenrun.Compare(got, want, 1e-5)
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
			t.Logf("%s: error %.2g, bound 1e-5", key, worst)
		}
	}
}
