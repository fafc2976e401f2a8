package sampling

import "math"

const (
	mtWords = 624
	mtShift = 397
)

// Generator is torch's CPU generator: MT19937 (Matsumoto and Nishimura 1998) seeded with the low 32 bits of the seed.
// It keeps the unused second half of a pair of scalar normals. It is not safe for concurrent use.
type Generator struct {
	words  [mtWords]uint32
	next   int
	cached float64
	full   bool
}

// NewGenerator returns a generator in the state after torch.manual_seed(seed). Only the low 32 bits of the seed matter.
func NewGenerator(seed uint64) *Generator {
	g := &Generator{next: mtWords}
	g.words[0] = uint32(seed)
	for i := 1; i < mtWords; i++ {
		prev := g.words[i-1]
		g.words[i] = 1812433253*(prev^prev>>30) + uint32(i)
	}
	return g
}

// Uint32 returns the next tempered word.
func (g *Generator) Uint32() uint32 {
	if g.next == mtWords {
		for i := range g.words {
			y := g.words[i]&0x80000000 | g.words[(i+1)%mtWords]&0x7fffffff
			v := g.words[(i+mtShift)%mtWords] ^ y>>1
			if y&1 != 0 {
				v ^= 0x9908b0df
			}
			g.words[i] = v
		}
		g.next = 0
	}
	y := g.words[g.next]
	g.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// float32 returns a uniform number in [0, 1) with 24 random bits.
func (g *Generator) float32() float32 {
	return float32(g.Uint32()&(1<<24-1)) / (1 << 24)
}

// Float64 returns a uniform number in [0, 1) with 53 random bits; the first word drawn is the high half.
func (g *Generator) Float64() float64 {
	high := uint64(g.Uint32())
	low := uint64(g.Uint32())
	return float64((high<<32|low)&(1<<53-1)) / (1 << 53)
}

// Randn returns n standard normal float32 values as drawn by torch.randn on a CPU, to about 2e-6 (torch's vector code
// rounds its logarithm and sines differently from one CPU to the next; the uniforms are exact). For n >= 16: n
// uniforms, then Box-Muller in blocks of 16 that pairs j with j+8; if n is not a multiple of 16, the last 16 values are
// made from 16 fresh uniforms. Below 16: scalar Box-Muller in float64, whose second value is kept, even for the next
// call.
func (g *Generator) Randn(n int) []float32 {
	out := make([]float32, n)
	if n < 16 {
		for i := range out {
			out[i] = float32(g.normal())
		}
		return out
	}
	for i := range out {
		out[i] = g.float32()
	}
	for i := 0; i+16 <= n; i += 16 {
		boxMuller16(out[i : i+16])
	}
	if n%16 != 0 {
		last := out[n-16:]
		for i := range last {
			last[i] = g.float32()
		}
		boxMuller16(last)
	}
	return out
}

// boxMuller16 turns 16 uniforms into 16 normals in place (Box and Muller 1958).
func boxMuller16(v []float32) {
	for j := range 8 {
		radius := math.Sqrt(-2 * logUniform(float64(1-v[j])))
		sin, cos := turn(float64(v[j+8]))
		v[j], v[j+8] = float32(radius*cos), float32(radius*sin)
	}
}

// logUniform returns the natural logarithm of v in (0, 1] to a relative precision of about 1e-10: the exponent, and the
// series of the inverse hyperbolic tangent for the mantissa. Noise is drawn by the hundred million, and math.Log
// computes bits that float32 cannot hold.
func logUniform(v float64) float64 {
	bits := math.Float64bits(v)
	exponent := int(bits>>52) - 1023
	m := math.Float64frombits(bits&(1<<52-1) | 1023<<52)
	if m > math.Sqrt2 {
		m /= 2
		exponent++
	}
	s := (m - 1) / (m + 1)
	q := s * s
	series := 1 + q*(1.0/3+q*(1.0/5+q*(1.0/7+q*(1.0/9+q*(1.0/11)))))
	return float64(exponent)*math.Ln2 + 2*s*series
}

// turn returns sine and cosine of u turns, u in [0, 1), to about 1e-11: the nearest quarter turn is subtracted exactly,
// the rest is a Taylor series.
func turn(u float64) (sin, cos float64) {
	quarter := int(u*4 + 0.5)
	t := 2 * math.Pi * (u - float64(quarter)/4)
	q := t * t
	s := t * (1 + q*(-1.0/6+q*(1.0/120+q*(-1.0/5040+q*(1.0/362880+q*(-1.0/39916800))))))
	c := 1 + q*(-1.0/2+q*(1.0/24+q*(-1.0/720+q*(1.0/40320+q*(-1.0/3628800+q*(1.0/479001600))))))
	switch quarter & 3 {
	case 1:
		return c, -s
	case 2:
		return -s, -c
	case 3:
		return -c, s
	}
	return s, c
}

// normal returns one standard normal value in float64.
func (g *Generator) normal() float64 {
	if g.full {
		g.full = false
		return g.cached
	}
	u1 := g.Float64()
	u2 := g.Float64()
	radius := math.Sqrt(-2 * math.Log1p(-u2))
	sin, cos := math.Sincos(2 * math.Pi * u1)
	g.cached, g.full = radius*sin, true
	return radius * cos
}
