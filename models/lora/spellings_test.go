package lora

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/models"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// TestEverySpellingOfComfyUI gives each tiny model files with one pair, one for each module name that ComfyUI 0.33.0
// takes for it, and checks which rows of which weight the pair is added to. The names are what comfy/lora.py,
// model_lora_keys_unet, returned for the models (tests/golden/modern33/lora_keys.json): model, weight without
// ".weight", "first row+rows" (with "swapped" if the halves are exchanged), names.
func TestEverySpellingOfComfyUI(t *testing.T) {
	var record map[string]map[string]map[string][]string
	if err := golden.JSON("modern33/lora_keys.json", &record); err != nil {
		t.Fatal(err)
	}
	for model, byWeight := range record {
		t.Run(model, func(t *testing.T) {
			set, config, err := goldenweights.Set(model)
			if err != nil {
				t.Fatal(err)
			}
			d, err := models.OpenDiffusion(set, map[string]string{"config": string(config)})
			if err != nil {
				t.Fatal(err)
			}
			declared, err := d.Declare()
			if err != nil {
				t.Fatal(err)
			}
			f, _ := models.Named(d.Spec.Family)
			keys := Diffusion(f.Name, f.Names, declared)
			var wrong []string
			total := 0
			for name, ranges := range byWeight {
				s, _ := set.Get(name + ".weight")
				columns := s.Len() / s.Shape[0]
				for rows, spellings := range ranges {
					var first, n int
					text, swapped := strings.CutSuffix(rows, " swapped")
					if _, err := fmt.Sscanf(text, "%d+%d", &first, &n); err != nil {
						t.Fatal(err)
					}
					want := []Addition{{Name: name, First: first, Rows: n, Scale: 1}}
					if swapped {
						want = []Addition{
							{Name: name, First: first, Rows: n / 2, UpRow: n / 2, Scale: 1},
							{Name: name, First: first + n/2, Rows: n - n/2, Scale: 1},
						}
					}
					for _, module := range spellings {
						total++
						up, down := module+".lora_up.weight", module+".lora_down.weight"
						got, err := Match(weights.FromMap(map[string]weights.Stored{
							up: tensor(make([]float32, n), n, 1), down: tensor(make([]float32, columns), 1, columns),
						}), keys)
						for i := range want {
							want[i].Up, want[i].Down = up, down
						}
						switch {
						case err != nil:
							wrong = append(wrong, module+" (refused)")
						case !slices.Equal(got.Additions, want):
							wrong = append(wrong, fmt.Sprintf("%s: %+v, want %+v", module, got.Additions, want))
						}
					}
				}
			}
			if total < 100 {
				t.Errorf("only %d names are recorded", total)
			}
			if slices.Sort(wrong); len(wrong) > 0 {
				t.Errorf("%d of %d names: %s", len(wrong), total, strings.Join(wrong, "\n"))
			}
		})
	}
	if families := slices.Sorted(maps.Keys(record)); len(families) != 11 {
		t.Errorf("recorded are %v, want all eleven families", families)
	}
}
