package goldenrun

import (
	"testing"

	"patchbay/models/dit"
)

// TestPatchifyOrder checks every element against the definition, on a latent of two channels with odd sides.
func TestPatchifyOrder(t *testing.T) {
	const c, y, x, p = 2, 5, 3, 2
	spec := dit.Spec{PatchSize: p, Channels: c}
	g := spec.Tokens(y, x)
	if g.Y != 3 || g.X != 2 {
		t.Fatalf("grid of 5 x 3: got %d x %d tokens, want 3 x 2", g.Y, g.X)
	}
	latent := make([]float32, c*y*x)
	for i := range latent {
		latent[i] = float32(i)
	}
	rows := make([]float32, g.Tokens()*c*p*p)
	patchify(rows, latent, c, c*p*p, g, p)
	for token := range g.Tokens() {
		for ch := range c {
			for py := range p {
				for px := range p {
					yy, xx := (token/g.X*p+py)%y, (token%g.X*p+px)%x
					got, want := rows[token*c*p*p+ch*p*p+py*p+px], latent[(ch*y+yy)*x+xx]
					if got != want {
						t.Fatalf("token %d channel %d pixel (%d,%d): got %v, want %v", token, ch, py, px, got, want)
					}
				}
			}
		}
	}
	back := make([]float32, len(latent))
	unpatchify(back, rows, c, c*p*p, g, p)
	for i := range latent {
		if back[i] != latent[i] {
			t.Fatalf("round trip: element %d: got %v, want %v", i, back[i], latent[i])
		}
	}
	first := make([]float32, y*x)
	unpatchify(first, rows, 1, c*p*p, g, p)
	for i := range first {
		if first[i] != latent[i] {
			t.Fatalf("first channel only: element %d: got %v, want %v", i, first[i], latent[i])
		}
	}
}
