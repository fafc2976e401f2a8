package goldenrun

import "patchbay/models/dit"

// patchify writes the tokens of a latent [C, Y, X] as rows [Li, C*p*p], features ordered (channel, row in token, column
// in token), tokens row by row. Sides that are not whole tokens are continued circularly on the right and at the
// bottom, as ComfyUI pads them.
func patchify(rows, latent []float32, c int, g dit.Grid, p int) {
	at := 0
	for ty := range g.Y {
		for tx := range g.X {
			for ch := range c {
				for y := range p {
					line := latent[(ch*g.LatentY+(ty*p+y)%g.LatentY)*g.LatentX:]
					for x := range p {
						rows[at] = line[(tx*p+x)%g.LatentX]
						at++
					}
				}
			}
		}
	}
}

// unpatchify is the inverse of patchify: rows [Li, stride] to a latent [C, Y, X], the padding is cropped. stride is the
// number of features of a row, at least C*p*p; the first C channels are taken (models that also predict a variance
// write twice as many).
func unpatchify(latent, rows []float32, c, stride int, g dit.Grid, p int) {
	for ch := range c {
		for y := range g.LatentY {
			for x := range g.LatentX {
				token := y/p*g.X + x/p
				latent[(ch*g.LatentY+y)*g.LatentX+x] = rows[token*stride+(ch*p+y%p)*p+x%p]
			}
		}
	}
}
