package classes

import (
	"testing"

	"patchbay/node/graph"
	"patchbay/node/value"
)

// TestLoadTellsTheLatentSpace checks that scale and shift are the file's, not the family's (FLUX: 0.3611, 0.1159).
func TestLoadTellsTheLatentSpace(t *testing.T) {
	run, err := graph.NewRunner(graph.Config{Engine: refEngine(t), Roots: demoRoots(), Catalogue: All()})
	check(t, err)
	defer run.Close()
	got, err := run.Load(t.Context(), value.ModelFile{Name: "demo_flux.safetensors"}, "")
	check(t, err)
	if l := got.Latent; l.Channels != 16 || l.Scale != 0.5728 || l.Shift != 0.0275 || got.Bytes == 0 {
		t.Errorf("got %d channels, scale %v, shift %v and %d bytes; the file says 16, 0.5728 and 0.0275", l.Channels, l.Scale,
			l.Shift, got.Bytes)
	}
}
