package picture

import "math"

// CannySide is the smallest side in pixels of what Canny takes: the blur mirrors two pixels at the border.
const CannySide = 3

// cannyBlur are the weights of a Gaussian of standard deviation 1 over five pixels, the f32 values that kornia
// computes.
var cannyBlur = [5]float32{0x1.be5f1p-5, 0x1.f41fd8p-3, 0x1.9c4868p-2, 0x1.f41fd8p-3, 0x1.be5f1p-5}

// Canny returns white edges on black, [B, Y, X, 3] of 0 or 1, of pictures [B, Y, X, 3] with sides of at least
// CannySide (J. Canny, A Computational Approach to Edge Detection, 1986): gray values, a Gaussian blur, Sobel
// gradients whose magnitude is the largest along their direction, strong above high, and weak above low where they
// touch strong ones. Sums are fused and ordered as in kornia 0.9.0 (kornia.filters.canny), which ComfyUI calls: among
// pixels that are equal by symmetry, the last bit decides which one is the edge.
func Canny(im *Image, low, high float32) *Image {
	out, n := &Image{B: im.B, Y: im.Y, X: im.X, C: 3}, im.Y*im.X
	for b := range im.B {
		p := plane{im.Y, im.X, make([]float32, n)}
		for i := range p.v {
			c := im.Data[(b*n+i)*im.C:]
			p.v[i] = fma(c[2], 0.114, fma(c[1], 0.587, c[0]*0.299))
		}
		p = p.blurred()
		for _, white := range p.edges(low, high) {
			out.Data = append(out.Data, white, white, white)
		}
	}
	return out
}

// fma returns a*b + c rounded once, but for a tie that rounding to f64 makes, about one case in 2^29.
func fma(a, b, c float32) float32 { return float32(float64(a)*float64(b) + float64(c)) }

// plane is one channel of a picture.
type plane struct {
	y, x int
	v    []float32
}

// blurred convolves rows, then columns. Beyond the border pixels are mirrored, without the border pixel itself.
func (p plane) blurred() plane {
	for _, step := range []int{1, p.x} {
		out, size := make([]float32, len(p.v)), p.x
		if step != 1 {
			size = p.y
		}
		for i := range out {
			at, sum := i/step%size, float32(0)
			for k, w := range cannyBlur {
				j := at + k - 2
				if j = max(j, -j); j >= size {
					j = 2*(size-1) - j
				}
				sum = fma(p.v[i+(j-at)*step], w, sum)
			}
			out[i] = sum
		}
		p.v = out
	}
	return p
}

// gradient returns Sobel's gradient at a pixel, not normalized; the border is repeated.
func (p plane) gradient(y, x int) (gx, gy float32) {
	for dy := -1; dy <= 1; dy++ {
		for dx := -1; dx <= 1; dx++ {
			v := p.v[min(max(y+dy, 0), p.y-1)*p.x+min(max(x+dx, 0), p.x-1)]
			gx = fma(v, float32(dx*(2-dy*dy)), gx)
			gy = fma(v, float32(dy*(2-dx*dx)), gy)
		}
	}
	return gx, gy
}

// around are the steps (y, x) to the neighbors at multiples of 45 degrees, from +x towards +y.
var around = [8][2]int{{0, 1}, {1, 1}, {1, 0}, {1, -1}, {0, -1}, {-1, -1}, {-1, 0}, {-1, 1}}

// edges returns 1 for pixels on an edge, 0 for others.
func (p plane) edges(low, high float32) []float32 {
	const still = 1e-6 // added to the square of a magnitude, also beyond the border
	border := float32(math.Sqrt(float64(float32(still))))
	size, toward := make([]float32, len(p.v)), make([]uint8, len(p.v))
	for i := range size {
		gx, gy := p.gradient(i/p.x, i%p.x)
		size[i] = float32(math.Sqrt(float64(float32(float32(gx*gx)+float32(gy*gy)) + still)))
		angle := float32(math.Atan2(float64(gy), float64(gx)))
		toward[i] = uint8(int(math.RoundToEven(float64(angle*float32(4/math.Pi))))+8) % 8
	}
	at := func(y, x int) float32 {
		if y < 0 || x < 0 || y >= p.y || x >= p.x {
			return border
		}
		return size[y*p.x+x]
	}
	// Of two equal neighbors the left or upper one is the edge; on a diagonal neither is.
	largest := func(i int) bool {
		for _, k := range []uint8{toward[i], (toward[i] + 4) % 8} {
			other := at(i/p.x+around[k][0], i%p.x+around[k][1])
			if !(size[i] > other || size[i] == other && (k == 0 || k == 2)) {
				return false
			}
		}
		return size[i] > border
	}
	weak, out := make([]bool, len(p.v)), make([]float32, len(p.v))
	var reached []int
	for i := range out {
		weak[i] = size[i] > low && largest(i)
		if weak[i] && size[i] > high {
			out[i], reached = 1, append(reached, i)
		}
	}
	for len(reached) > 0 {
		i := reached[len(reached)-1]
		reached = reached[:len(reached)-1]
		for _, step := range around {
			y, x := i/p.x+step[0], i%p.x+step[1]
			if y < 0 || x < 0 || y >= p.y || x >= p.x {
				continue
			}
			if j := y*p.x + x; weak[j] && out[j] == 0 {
				out[j], reached = 1, append(reached, j)
			}
		}
	}
	return out
}
