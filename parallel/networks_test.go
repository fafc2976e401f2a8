package parallel

import (
	"slices"
	"testing"

	"patchbay/models/tiny"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// network is a model and the sides of a latent that it takes.
type network struct {
	name string
	y, x int
}

// sized returns a model with the first of these latents, from number k on, that it takes.
func sized(t *testing.T, name string, k int, sides ...[2]int) network {
	t.Helper()
	spec := describe(t, name).Spec
	text := 13
	if spec.Context2Dim > 0 { // HunyuanDiT's texts are never shorter
		text = spec.ContextTokens + 256
	}
	var err error
	for i := range sides {
		s := sides[(k+i)%len(sides)]
		w := forecast.Workload{Spec: &spec, Y: s[0], X: s[1], Batch: 1, Text: []int{text}, Evaluations: 1}
		if _, err = forecast.MemoryByRank(w, plan.OneRank(), 4, 4); err == nil {
			return network{name, s[0], s[1]}
		}
	}
	t.Fatalf("%s takes none of the latents %v: %v", name, sides, err)
	return network{}
}

// oddSides are sides of latents, most of them prime. PixArt takes no smaller ones than the last.
func oddSides() [][2]int { return [][2]int{{6, 5}, {7, 11}, {5, 7}, {5, 6}, {4, 62}} }

// families returns the tiny model of every family that takes all plans and a model with channels beside the latent,
// with latents that have tokens for all plans.
func families(t *testing.T) (out []network) {
	t.Helper()
	for k, name := range append(splitNames(t), "fill-a") {
		out = append(out, sized(t, name, k, [2]int{9, 8}, [2]int{11, 8}, [2]int{9, 7}, [2]int{10, 9}, [2]int{4, 62}))
	}
	return out
}

// splitNames returns the names of the families whose networks plans may divide.
func splitNames(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(tiny.Names(), func(name string) bool { return !takesAll(t, name) })
}

// takesAll reports whether a network takes every kind of plan. TestWholeNetworks and TestNetworksWithSoundBeside have
// the others.
func takesAll(t *testing.T, name string) bool {
	t.Helper()
	spec := describe(t, name).Spec
	return !spec.Whole && spec.Sound.Width == 0
}

// recordedNetworks returns the models of all families that golden numbers were recorded with, without those that have
// one head of keys and values and so take no tensor group, and without those that take not every kind of plan.
func recordedNetworks(t *testing.T) (out [][]string) {
	t.Helper()
	out, err := tiny.Networks()
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		out[i] = slices.DeleteFunc(out[i], func(name string) bool {
			spec := describe(t, name).Spec
			return spec.Groups() < 2 || !takesAll(t, name)
		})
	}
	return slices.DeleteFunc(out, func(names []string) bool { return len(names) == 0 })
}
