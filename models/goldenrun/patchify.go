package goldenrun

import "patchbay/models/dit"

// patchify writes the tokens of a latent [C, Y, X] as rows [Li, stride], features ordered (channel, row in token,
// column in token), tokens row by row, frame after frame. Sides that are not whole tokens are padded circularly on the
// right and at the bottom, as ComfyUI does.
func patchify(rows, latent []float32, c, stride int, g dit.Grid, p int) {
	token, frame := 0, g.Frame()
	for ty := range g.Y {
		top := ty / frame.Y * frame.LatentY
		for tx := range g.X {
			at := token * stride
			token++
			for ch := range c {
				for y := range p {
					line := latent[(ch*g.LatentY+top+(ty%frame.Y*p+y)%frame.LatentY)*g.LatentX:]
					for x := range p {
						rows[at] = line[(tx*p+x)%g.LatentX]
						at++
					}
				}
			}
		}
	}
}

// eachSound visits the elements of the tokens of sound: the index in all rows [tokens, stride] and that in the sound.
func eachSound(spec *dit.Spec, g dit.Grid, stride int, visit func(row, at int)) {
	for t := range g.Sound {
		for i := range spec.Sound.Channels * spec.Sound.Patch {
			c, k := i/spec.Sound.Patch, i%spec.Sound.Patch
			visit((g.Y*g.X+t)*stride+i, c*g.SoundY*g.SoundX+t*spec.Sound.Patch+k)
		}
	}
}

// unpatchify is the inverse of patchify: it converts rows [Li, stride] to a latent [C, Y, X] without the padding.
// stride is the number of features of a row, at least C*p*p. Only the first C channels are used, since models that
// also predict a variance write twice as many.
func unpatchify(latent, rows []float32, c, stride int, g dit.Grid, p int) {
	frame := g.Frame()
	for ch := range c {
		for row := range g.LatentY {
			y := row % frame.LatentY
			for x := range g.LatentX {
				token := (row/frame.LatentY*frame.Y+y/p)*g.X + x/p
				latent[(ch*g.LatentY+row)*g.LatentX+x] = rows[token*stride+(ch*p+y%p)*p+x%p]
			}
		}
	}
}
