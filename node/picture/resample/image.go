package resample

import (
	"fmt"
	"math"
)

// Layout says where the channels of an Image are.
type Layout uint8

// The layouts: latents and models use ChannelsFirst, ComfyUI's IMAGE and MASK values ChannelsLast.
const (
	ChannelsFirst Layout = iota // [B, C, Y, X]
	ChannelsLast                // [B, Y, X, C]
)

// Image is a batch of pictures or latents. A mask [B, Y, X] has C = 1 in either layout. Latents with frames [B, C, T,
// Y, X] are passed as C*T channels, but for bislerp, which needs the channels of a pixel together: [B*T, C, Y, X].
type Image struct {
	Data       []float32 // B*C*Y*X values in the order of Layout
	B, C, Y, X int
	Layout     Layout
}

// The methods, spelled as in ComfyUI's nodes. Lanczos works on pictures of 1 to 4 channels with values in [0, 1]; 2 and
// 4 channels have alpha last.
const (
	Nearest      = "torch's nearest" // no node offers it
	NearestExact = "nearest-exact"
	Bilinear     = "bilinear"
	Area         = "area"
	Bicubic      = "bicubic"
	Lanczos      = "lanczos"
	Bislerp      = "bislerp"
)

// The crops say what happens when the aspect ratio changes, spelled as in ComfyUI's nodes.
const (
	CropDisabled = "disabled" // stretch
	CropCenter   = "center"   // cut equal margins off first
)

// maxValues bounds a result to 16 GiB.
const maxValues = 1 << 32

// Upscale resizes m to width x height, up or down, in its own layout, like common_upscale. m is not changed; the
// result is new memory. It returns an error for wrong arguments: an unknown method or crop, empty sizes, more channels
// than lanczos can take, more values than 16 GiB.
func Upscale(m Image, width, height int, method, crop string) (Image, error) {
	if m.B < 1 || m.C < 1 || m.Y < 1 || m.X < 1 || len(m.Data) != m.B*m.C*m.Y*m.X {
		return Image{}, fmt.Errorf("resize: %d values are no picture of %d channels, %d x %d, batch %d", len(m.Data),
			m.C, m.X, m.Y, m.B)
	}
	// This bounds the result and the picture between the two passes.
	rows := float64(max(height, m.Y))
	if width < 1 || height < 1 || float64(m.B)*float64(m.C)*rows*float64(width) > maxValues {
		return Image{}, fmt.Errorf("resize: %d pictures of %d channels to %d x %d: sides must be at least 1 and all "+
			"values together at most %d", m.B, m.C, width, height, maxValues)
	}
	cropped := false
	switch crop {
	case CropDisabled:
	case CropCenter:
		x, y := margins(m, width, height)
		if 2*x >= m.X || 2*y >= m.Y {
			return Image{}, fmt.Errorf("resize: a center crop of %d x %d to the shape of %d x %d leaves nothing; use crop "+
				"disabled", m.X, m.Y, width, height)
		}
		if cropped = x > 0 || y > 0; cropped {
			m = cut(m, x, y)
		}
	default:
		return Image{}, fmt.Errorf("resize: unknown crop %q (allowed: %s, %s)", crop, CropDisabled, CropCenter)
	}
	k := kernel(m, width, height, cropped)
	switch method {
	case Nearest:
		return nearest(m, firstIndex(m.X, width), firstIndex(m.Y, height)), nil
	case NearestExact:
		return nearest(m, nearestIndex(m.X, width, k), nearestIndex(m.Y, height, k)), nil
	case Bilinear:
		return separable(m, linear(m.X, width, k), linear(m.Y, height, k)), nil
	case Bicubic:
		return separable(m, cubic(m.X, width), cubic(m.Y, height)), nil
	case Area:
		return area(m, width, height), nil
	case Lanczos:
		if m.C > 4 {
			return Image{}, fmt.Errorf("resize: lanczos works on pictures of 1 to 4 channels, not on %d (latents: bislerp, "+
				"bicubic, bilinear, area, nearest-exact)", m.C)
		}
		return lanczos(m, width, height), nil
	case Bislerp:
		return bislerp(m, width, height), nil
	default:
		return Image{}, fmt.Errorf("resize: unknown method %q (allowed: %s, %s, %s, %s, %s, %s)", method, NearestExact,
			Bilinear, Area, Bicubic, Lanczos, Bislerp)
	}
}

// margins returns the columns and rows that a center crop takes off each side; halves round to even, as Python does.
func margins(m Image, width, height int) (x, y int) {
	before, after := float64(m.X)/float64(m.Y), float64(width)/float64(height)
	switch {
	case before > after:
		x = int(math.RoundToEven((float64(m.X) - float64(float64(m.X)*(after/before))) / 2))
	case before < after:
		y = int(math.RoundToEven((float64(m.Y) - float64(float64(m.Y)*(before/after))) / 2))
	}
	return x, y
}

// cut returns a copy of m without x columns on the left and right and y rows at the top and bottom.
func cut(m Image, x, y int) Image {
	out := m.sized(m.X-2*x, m.Y-2*y)
	planes, inner := m.planes()
	row := out.X * inner
	for p := range planes {
		for i := range out.Y {
			from := ((p*m.Y+y+i)*m.X + x) * inner
			copy(out.Data[(p*out.Y+i)*row:][:row], m.Data[from:])
		}
	}
	return out
}

// sized returns an image of zeros like m, with other sides.
func (m Image) sized(width, height int) Image {
	m.X, m.Y, m.Data = width, height, make([]float32, m.B*m.C*width*height)
	return m
}

// planes returns the dimensions of the image as [planes, Y, X, inner]: channels are part of planes or are inner.
func (m Image) planes() (planes, inner int) {
	if m.Layout == ChannelsLast {
		return m.B, m.C
	}
	return m.B * m.C, 1
}
