package classes

import (
	"math"
	"slices"

	"patchbay/fault"
	"patchbay/models/sampling"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
)

// imageFilterClasses returns the classes that turn, pad and filter pictures without regard to what they show.
func imageFilterClasses() []graph.Class {
	const images, processing, dataset = "comfy_extras.nodes_images", "comfy_extras.nodes_post_processing",
		"comfy_extras.nodes_dataset"
	const morphology = "comfy_extras.nodes_morphology"
	image, batch := graph.Link("image", "IMAGE", ""), graph.Link("images", "IMAGE", "")
	out := []graph.Slot{{Name: "images", Type: "IMAGE"}}
	size := func(name string) graph.Input { return graph.Int(name, "in pixels", 1, 1, 31, 1) }
	return graph.Rows(graph.Class{Category: "image/filters", Outputs: graph.Slots("IMAGE")}, []graph.Class{
		{
			Name: "ImageRotate", Display: "Rotate Image", Module: images, Category: "image/transform",
			Aliases: "turn, flip orientation", Essential: "Image Tools",
			Inputs: []graph.Input{
				image, graph.Combo("rotation", "clockwise", "none", "90 degrees", "180 degrees", "270 degrees"),
			},
			Run: imageRotate,
		},
		{
			Name: "ResizeAndPadImage", Display: "Resize And Pad Image", Module: images, Category: "image/transform",
			Aliases: "fit to size",
			Inputs: []graph.Input{
				image, pixels("target_width", 512, 1, 1), pixels("target_height", 512, 1, 1),
				graph.Combo("padding_color", "", "white", "black").AsAdvanced(),
				graph.Combo("interpolation", "", "area", "bicubic", "nearest-exact", "bilinear", "lanczos").AsAdvanced(),
			},
			Run: resizeAndPad,
		},
		{
			Name: "ImageBlur", Display: "Blur Image", Module: processing,
			Inputs: []graph.Input{image, size("blur_radius"), graph.Float("sigma", "", 1, 0.1, 10, 0.1)},
			Run: func(c *graph.Call) ([]any, error) {
				v, err := blurred(c, "blur_radius")
				if err != nil {
					return nil, err
				}
				im := *c.Image("image")
				im.Data = make([]float32, len(v))
				for i := range v {
					im.Data[i] = float32(v[i])
				}
				return []any{&im}, nil
			},
		},
		{
			Name: "ImageSharpen", Display: "Sharpen Image", Module: processing,
			Inputs: []graph.Input{
				image, size("sharpen_radius").AsAdvanced(), graph.Float("sigma", "", 1, 0.1, 10, 0.01).AsAdvanced(),
				graph.Float("alpha", "how much", 1, 0, 5, 0.01).AsAdvanced(),
			},
			Run: imageSharpen,
		},
		{
			Name: "ImageAddNoise", Display: "Add Noise to Image", Module: images, Aliases: "film grain",
			Inputs: []graph.Input{image, graph.SeedInput("seed"), graph.Float("strength", "", 0.5, 0, 1, 0.01)},
			Run:    imageAddNoise,
		},
		{
			Name: "Morphology", Display: "Apply Morphology", Module: morphology, Aliases: "erode, dilate",
			Inputs: []graph.Input{
				image, graph.Combo("operation", "", "erode", "dilate", "open", "close", "gradient", "bottom_hat", "top_hat"),
				graph.Int("kernel_size", "side of the square around a pixel", 3, 3, 999, 1),
			},
			Run: morph,
		},
		{
			Name: "ImageRGBToYUV", Display: "Image RGB to YUV", Module: morphology, Category: "image/color",
			Aliases: "color space conversion", Inputs: []graph.Input{image},
			Outputs: []graph.Slot{{Name: "Y", Type: "IMAGE"}, {Name: "U", Type: "IMAGE"}, {Name: "V", Type: "IMAGE"}},
			Run:     rgbToYUV,
		},
		{
			Name: "ImageYUVToRGB", Display: "Image YUV to RGB", Module: morphology, Category: "image/color",
			Aliases: "color space conversion",
			Inputs:  []graph.Input{graph.Link("Y", "IMAGE", ""), graph.Link("U", "IMAGE", ""), graph.Link("V", "IMAGE", "")},
			Run:     yuvToRGB,
		},
		{
			Name: "AdjustBrightness", Display: "Adjust Brightness", Module: dataset, Category: "image/adjustments",
			Aliases: "brightness", Description: "Multiplies all values.", Experimental: true,
			Inputs:  []graph.Input{batch, graph.Float("factor", "", 1, 0, 2, 0)},
			Outputs: out, Run: perValue("factor", func(v, f float32) float32 { return min(max(v*f, 0), 1) }),
		},
		{
			Name: "AdjustContrast", Display: "Adjust Contrast", Module: dataset, Category: "image/adjustments",
			Aliases: "contrast", Description: "Multiplies the distance of all values to one half.", Experimental: true,
			Inputs:  []graph.Input{batch, graph.Float("factor", "", 1, 0, 2, 0)},
			Outputs: out,
			Run: perValue("factor", func(v, f float32) float32 {
				return min(max(float32((v-0.5)*f)+0.5, 0), 1)
			}),
		},
	})
}

// perValue returns the function of a class that computes each value of "images" from it and a FLOAT input.
func perValue(name string, f func(v, by float32) float32) func(*graph.Call) ([]any, error) {
	return func(c *graph.Call) ([]any, error) {
		im, by := *c.Image("images"), float32(c.Decimal(name))
		im.Data = mapped(im.Data, func(v float32) float32 { return f(v, by) })
		return []any{&im}, nil
	}
}

func imageRotate(c *graph.Call) ([]any, error) {
	im := c.Image("image")
	y, x := im.Y, im.X
	var from func(r, k int) (row, column int)
	switch c.Str("rotation") {
	case "90 degrees":
		y, x, from = im.X, im.Y, func(r, k int) (int, int) { return im.Y - 1 - k, r }
	case "180 degrees":
		from = func(r, k int) (int, int) { return im.Y - 1 - r, im.X - 1 - k }
	case "270 degrees":
		y, x, from = im.X, im.Y, func(r, k int) (int, int) { return k, im.X - 1 - r }
	default:
		return []any{im}, nil
	}
	out := &picture.Image{B: im.B, Y: y, X: x, C: im.C, Data: make([]float32, 0, len(im.Data))}
	for i := range im.B * y * x {
		row, column := from(i/x%y, i%x)
		at := ((i/x/y*im.Y+row)*im.X + column) * im.C
		out.Data = append(out.Data, im.Data[at:at+im.C]...)
	}
	return []any{out}, nil
}

// resizeAndPad scales pictures to fit into the target and centers them on white or black.
func resizeAndPad(c *graph.Call) ([]any, error) {
	im, w, h := c.Image("image"), c.Whole("target_width"), c.Whole("target_height")
	by := min(float64(w)/float64(im.X), float64(h)/float64(im.Y))
	x, y := int(float64(im.X)*by), int(float64(im.Y)*by)
	if x == 0 || y == 0 {
		return nil, fault.Bad("target_width", "a picture of %d x %d has no pixel left in %d x %d", im.X, im.Y, w, h)
	}
	if err := checkSize("target_width", im.B, h, w, im.C); err != nil {
		return nil, err
	}
	out, err := resizedImage(im, x, y, c.Str("interpolation"), resample.CropDisabled, "image")
	if err != nil {
		return nil, err
	}
	return []any{framed(out, h, w, (h-y)/2, (w-x)/2, one(c.Str("padding_color") != "black"))}, nil
}

// blurred returns "image" under a Gaussian of the input sigma, whose square window reaches so far that the sides are 1;
// beyond its edges a picture is mirrored.
func blurred(c *graph.Call, radius string) ([]float64, error) {
	im, n, sigma := c.Image("image"), c.Whole(radius), c.Decimal("sigma")
	if n >= im.X || n >= im.Y {
		return nil, fault.Bad(radius, "%d must be less than the sides of the picture, %d x %d", n, im.X, im.Y)
	}
	weights, sum := make([]float64, 2*n+1), 0.0
	for i := range weights {
		d := float64(i-n) / float64(n)
		weights[i] = math.Exp(-d * d / (2 * sigma * sigma))
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
	mirrored := func(i, size int) int {
		if i < 0 {
			i = -i
		}
		return min(i, 2*(size-1)-i)
	}
	along := func(v []float64, size, step int) []float64 { // blurs along an axis
		out := make([]float64, len(v))
		for i := range v {
			at := i / step % size
			for k, w := range weights {
				out[i] += w * v[i+(mirrored(at+k-n, size)-at)*step]
			}
		}
		return out
	}
	v := make([]float64, len(im.Data))
	for i := range v {
		v[i] = float64(im.Data[i])
	}
	v = along(v, im.X, im.C)
	if err := c.Context.Err(); err != nil {
		return nil, err
	}
	return along(v, im.Y, im.X*im.C), nil
}

// imageSharpen moves a picture away from its blurred form by ten times alpha.
func imageSharpen(c *graph.Call) ([]any, error) {
	soft, err := blurred(c, "sharpen_radius")
	if err != nil {
		return nil, err
	}
	im, by := *c.Image("image"), 10*c.Decimal("alpha")
	im.Data = slices.Clone(im.Data)
	for i, v := range im.Data {
		im.Data[i] = float32(min(max(float64(v)*(1+by)-by*soft[i], 0), 1))
	}
	return []any{&im}, nil
}

func imageAddNoise(c *graph.Call) ([]any, error) {
	im, strength := *c.Image("image"), float32(c.Decimal("strength"))
	noise, _, err := sampling.PrepareNoise(c.Seed("seed"), im.B, im.Y*im.X*im.C, nil)
	if err != nil {
		return nil, err
	}
	for i, v := range im.Data {
		noise[i] = min(max(v+float32(strength*noise[i]), 0), 1)
	}
	im.Data = noise
	return []any{&im}, nil
}

// morph applies the largest and the smallest value of a square around each pixel.
func morph(c *graph.Call) ([]any, error) {
	im, n := c.Image("image"), c.Whole("kernel_size")
	largest := func(v []float32, before int) []float32 {
		v = extreme(v, im.X, im.C, n, before)
		return extreme(v, im.Y, im.X*im.C, n, before)
	}
	// The square of an even side is off center by half a pixel, in dilation to the other side than in erosion.
	dilate := func(v []float32) []float32 { return largest(v, (n-1)/2) }
	negative := func(v float32) float32 { return -v }
	erode := func(v []float32) []float32 { return mapped(largest(mapped(v, negative), n/2), negative) }
	minus := func(a, b []float32) []float32 {
		out := make([]float32, len(a))
		for i := range a {
			out[i] = a[i] - b[i]
		}
		return out
	}
	out := *im
	switch v := im.Data; c.Str("operation") {
	case "erode":
		out.Data = erode(v)
	case "dilate":
		out.Data = dilate(v)
	case "open":
		out.Data = dilate(erode(v))
	case "close":
		out.Data = erode(dilate(v))
	case "gradient":
		out.Data = minus(dilate(v), erode(v))
	case "bottom_hat":
		out.Data = minus(erode(dilate(v)), v)
	default:
		out.Data = minus(v, dilate(erode(v)))
	}
	return []any{&out}, nil
}

// extreme returns the largest of the n values around each, so many of them before it, along an axis of size values that
// are step apart, as far as there are any.
func extreme(v []float32, size, step, n, before int) []float32 {
	out := make([]float32, len(v))
	queue := make([]int, 0, size) // places of values that no later one exceeds
	for line := range len(v) / size {
		start := line/step*size*step + line%step
		queue = queue[:0]
		next := 0
		for i := range size {
			for ; next < size && next < i-before+n; next++ {
				for len(queue) > 0 && v[start+queue[len(queue)-1]*step] <= v[start+next*step] {
					queue = queue[:len(queue)-1]
				}
				queue = append(queue, next)
			}
			for queue[0] < i-before {
				queue = queue[1:]
			}
			out[start+i*step] = v[start+queue[0]*step]
		}
	}
	return out
}

// rgbToYUV gives three gray pictures: the luma of ITU-R BT.601, and the differences of blue and red to it.
func rgbToYUV(c *graph.Call) ([]any, error) {
	im := c.Image("image")
	if im.C != 3 {
		return nil, fault.Bad("image", "has %d channels, want 3: SplitImageWithAlpha takes alpha off", im.C)
	}
	var out [3]*picture.Image
	for i := range out {
		out[i] = &picture.Image{B: im.B, Y: im.Y, X: im.X, C: 3, Data: make([]float32, 0, len(im.Data))}
	}
	for i := 0; i < len(im.Data); i += 3 {
		r, g, b := im.Data[i], im.Data[i+1], im.Data[i+2]
		y := float32(0.299*r) + float32(0.587*g) + float32(0.114*b)
		for k, v := range []float32{y, float32((b-y)*0.564) + 0.5, float32((r-y)*0.713) + 0.5} {
			out[k].Data = append(out[k].Data, v, v, v)
		}
	}
	return []any{out[0], out[1], out[2]}, nil
}

func yuvToRGB(c *graph.Call) ([]any, error) {
	var planes [3]*picture.Image
	for i, name := range []string{"Y", "U", "V"} {
		planes[i] = gray(c.Image(name))
		if a, b := planes[0], planes[i]; a.B != b.B || a.Y != b.Y || a.X != b.X {
			return nil, fault.Bad(name, "%d pictures of %d x %d, Y has %d of %d x %d: they must be equal", b.B, b.X, b.Y, a.B,
				a.X, a.Y)
		}
	}
	out := &picture.Image{B: planes[0].B, Y: planes[0].Y, X: planes[0].X, C: 3}
	for i, y := range planes[0].Data {
		u, v := planes[1].Data[i]-0.5, planes[2].Data[i]-0.5
		out.Data = append(out.Data, y+float32(1.4025245442*v), y-float32(0.7144034731*v)-float32(0.3443401356*u),
			y+float32(1.7730496454*u))
	}
	out.Data = mapped(out.Data, func(v float32) float32 { return min(max(v, 0), 1) })
	return []any{out}, nil
}

// gray returns the mean of the channels.
func gray(im *picture.Image) *picture.Image {
	out := &picture.Image{B: im.B, Y: im.Y, X: im.X, C: 1}
	for i := 0; i < len(im.Data); i += im.C {
		var sum float32
		for _, v := range im.Data[i:][:im.C] {
			sum += v
		}
		out.Data = append(out.Data, sum/float32(im.C))
	}
	return out
}
