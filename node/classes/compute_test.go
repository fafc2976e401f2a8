package classes

import (
	"bytes"
	"context"
	"image"
	"image/png"
	"math"
	"testing"

	"patchbay/node/graph"
	"patchbay/node/value"
)

// TestDemoInBF16 checks that the demo's image with bf16 activations has a PSNR of at least 45 dB against that with f32
// (design section 9).
func TestDemoInBF16(t *testing.T) {
	if testing.Short() {
		t.Skip("short: runs the demo model twice; the long form does it")
	}
	picture := func(c value.Compute) (image.Image, string) {
		runner, err := graph.NewRunner(graph.Config{
			Engine: engineOf(t, fastOps), Roots: demoRoots(),
			Compute: c, Catalogue: All(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer runner.Close()
		result, err := runner.Run(context.Background(), graph.Job{ID: "demo", Workflow: demoWorkflow(t)},
			func(graph.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		im, err := png.Decode(bytes.NewReader(result.Outputs[0].Data))
		if err != nil {
			t.Fatal(err)
		}
		return im, result.Stats[0].Compute.String()
	}
	wide, f32 := picture(value.ComputeF32)
	narrow, bf16 := picture(value.ComputeBF16)
	if f32 != "f32" || bf16 != "bf16" {
		t.Fatalf("computed in %s and %s, want f32 and bf16", f32, bf16)
	}
	sum := 0.0
	for y := range 128 {
		for x := range 128 {
			a, b := rgb(wide, x, y), rgb(narrow, x, y)
			for i := range a {
				sum += (a[i] - b[i]) * (a[i] - b[i])
			}
		}
	}
	db := 10 * math.Log10(255*255*128*128*3/sum)
	t.Logf("%.1f dB", db)
	if !(db >= 45) || math.IsInf(db, 1) {
		t.Errorf("bf16 is %.1f dB from f32, want at least 45 and a difference", db)
	}
}

func rgb(im image.Image, x, y int) [3]float64 {
	r, g, b, _ := im.At(x, y).RGBA()
	return [3]float64{float64(r >> 8), float64(g >> 8), float64(b >> 8)}
}
