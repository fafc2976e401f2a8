package golden

// Pictures is pictures.json: what nodes of ComfyUI 0.33.0 made of pictures that are drawn by a formula, and of prompts.
type Pictures struct {
	Edges []struct {
		Picture   string
		Shape     [3]int // B, Y, X
		Low, High float64
		White     int
		Edges     []byte // bits, first pixel first
	}
	Models   map[string][]Weight // files of upscale models
	Upscaled []Upscaled
	Prompts  []struct{ System, User, Text string } // what CLIPTextEncodeLumina2 has encoded
}

// Weight is a tensor of a model whose elements are a formula: [key, shape, scale, offset].
type Weight [4]any

// Name returns the name of the tensor in the file.
func (w Weight) Name() string { return w[0].(string) }

// Fill returns the shape and the elements of the tensor; model is the name of the file in the record.
func (w Weight) Fill(model string) (shape []int, v []float32) {
	n := 1
	for _, d := range w[1].([]any) {
		shape, n = append(shape, int(d.(float64))), n*int(d.(float64))
	}
	return shape, Fill("upscale/"+model+"/"+w.Name(), n, w[2].(float64), w[3].(float64))
}

// Upscaled is a picture that a model has enlarged in tiles of Tile pixels a side.
type Upscaled struct {
	Model, Picture string
	Scale          int
	Shape          [3]int // B, Y, X
	Tile           int
	Size           [4]int // of the result
	Step           int    // only every Step-th value of the result is kept
	Values         []float32
}

// Picture draws pictures [b, y, x, 3] of 0..1: "noise", or "shapes", whose values are those of 8 bits and often equal.
func Picture(kind string, b, y, x int) []float32 {
	if kind == "noise" {
		return Fill("input:picture", b*y*x*3, 1, 0.5)
	}
	out := make([]float32, 0, b*y*x*3)
	for i := range b * y * x * 3 {
		c, q, r, b := i%3, i/3%x, i/3/x%y, i/3/x/y
		v := (7*q + 3*r + 40*c + 90*b) % 256
		if dx, dy := q-x/2, r-y/2; 9*(dx*dx+dy*dy) < min(y, x)*min(y, x) {
			v = 255 - (q+r)%64
		}
		if r%17 == 5 {
			v = 20 * c
		}
		if q == r {
			v = 255
		}
		out = append(out, float32(float64(v)/255))
	}
	return out
}
