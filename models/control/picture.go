package control

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/weights"
)

// Picture holds the layers with which a net for FLUX reads a picture itself, where others read its latent: convolutions
// with SiLU between them, three of which halve the picture (ComfyUI comfy/ldm/flux/controlnet.py). It holds weights
// only.
type Picture struct {
	net    convolutions
	halves []int // indices of the layers that halve the picture
	mem    *weights.Loaded
}

type convolutions struct {
	List []convolution `weight:"list"`
}

type convolution struct {
	Conv *engine.Weight `weight:"conv,conv"`
	side int            // of the kernel
}

// pixelChannels is the number of channels of a picture; pixels is how many pixels a side of an output value covers.
const pixelChannels, pixels = 3, 8

// convolved returns the index of a layer of Picture and the rest of its name. In files, activations are numbered too.
func convolved(key string) (n int, part string, ok bool) {
	for _, list := range []string{"input_hint_block.", "input_cond_block.encoder."} { // XLabs, MistoLine
		if rest, found := strings.CutPrefix(key, list); found {
			number, part, _ := strings.Cut(rest, ".")
			n, err := strconv.Atoi(number)
			return n / 2, part, err == nil && n%2 == 0
		}
	}
	return 0, "", false
}

// pictureIn describes the layers in a set; it returns nil, nil if there are none.
func pictureIn(set *weights.Set) (p *Picture, convs *weights.Set, err error) {
	list := map[string]weights.Stored{}
	p = &Picture{}
	for _, key := range set.Names() {
		if n, part, ok := convolved(key); ok {
			list[fmt.Sprintf("list.%d.conv.%s", n, part)], _ = set.Get(key)
		}
	}
	if len(list) == 0 {
		return nil, nil, nil
	}
	convs = weights.FromMap(list)
	layers := convs.Count("list")
	switch layers {
	case 8: // XLabs
		p.halves = []int{2, 4, 6}
	case 10: // MistoLine
		p.halves = []int{3, 5, 7}
	default:
		return nil, nil, fmt.Errorf("a control net that reads a picture by %d layers: want 8 (XLabs) or 10 (MistoLine)",
			layers)
	}
	for i := range layers {
		s, in := convs.Shape(fmt.Sprintf("list.%d.conv.weight", i)), pixelChannels
		if i > 0 {
			in = convs.Dim(fmt.Sprintf("list.%d.conv.weight", i-1), 0)
		}
		if len(s) != 4 || s[1] != in || s[2] != s[3] || s[2] != 1 && s[2] != 3 {
			return nil, nil, fmt.Errorf("a control net whose layer %d of its picture is %v: want [n, %d, 3, 3] or [n, %d, 1, 1]",
				i, s, in, in)
		}
		p.net.List = append(p.net.List, convolution{side: s[2]})
	}
	return p, convs, nil
}

// OpenPicture loads the picture layers of the net in a set. The caller closes the result.
func OpenPicture(ops engine.Ops, set *weights.Set) (*Picture, error) {
	p, convs, err := pictureIn(set)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, fmt.Errorf("a control net without layers for a picture")
	}
	p.mem, err = weights.Load(ops, convs, &p.net, weights.Options{Model: "control net"})
	return p, err
}

// Bytes returns the memory of the weights if the backend reports it.
func (p *Picture) Bytes() int64 { return p.mem.Bytes() }

// Close frees the memory of the weights.
func (p *Picture) Close() { p.mem.Close() }

// Read computes a net's hint [C, y/8, x/8] from a picture [y, x, 3] in 0..1 with sides that are multiples of 8. Errors:
// a wrong number of values, and those of Check, the device and memory allocation.
func (p *Picture) Read(env dit.TaskEnv, rgb []float32, y, x int) ([]float32, error) {
	if y%pixels != 0 || x%pixels != 0 || len(rgb) != y*x*pixelChannels {
		return nil, fmt.Errorf("control net: %d values for a picture [%d, %d, %d]", len(rgb), y, x, pixelChannels)
	}
	in := make([]float32, len(rgb))
	for i, v := range rgb {
		in[i] = 2*v - 1
	}
	size := engine.NewMeasuringArena("control net")
	if _, err := p.walk(dit.TaskEnv{Ops: engine.NewRecorder()}, size, in, y, x); err != nil {
		return nil, err
	}
	arena, err := env.Take(size.Peak())
	if err != nil {
		return nil, err
	}
	last, err := p.walk(env, arena, in, y, x)
	if err != nil {
		return nil, err
	}
	n, c := last.Dim(1)*last.Dim(2), last.Dim(3)
	rows, out := make([]float32, n*c), make([]float32, n*c)
	err = env.Ops.Download(rows, last).Wait()
	for i, v := range rows {
		out[i%c*n+i/c] = v
	}
	return out, err
}

// walk runs all layers, holding two tensors of the largest size.
func (p *Picture) walk(env dit.TaskEnv, arena *engine.Arena, in []float32, y, x int) (engine.Tensor, error) {
	largest := 0
	for _, l := range p.net.List {
		largest = max(largest, l.Conv.N())
	}
	buffers := [2]engine.Tensor{arena.Alloc(engine.F32, largest*y*x), arena.Alloc(engine.F32, largest*y*x)}
	at := func(k, y, x, c int) engine.Tensor { return buffers[k%2].Slice(0, 0, y*x*c).Split(0, 1, y, x, c) }
	from := at(1, y, x, pixelChannels)
	env.Ops.Upload(from, in)
	for i, l := range p.net.List {
		if env.Check != nil {
			if err := env.Check(); err != nil {
				return from, err
			}
		}
		args := engine.ConvArgs{KY: l.side, KX: l.side, Stride: 1}
		if l.side == 3 {
			args.Top, args.Bottom, args.Left, args.Right = 1, 1, 1, 1
		}
		if slices.Contains(p.halves, i) {
			args.Stride, y, x = 2, y/2, x/2
		}
		to := at(i, y, x, l.Conv.N())
		env.Ops.Conv2D(to, from, l.Conv, args)
		if i < len(p.net.List)-1 {
			env.Ops.Activate(to, to, engine.SiLU)
		}
		from = to
	}
	return from, nil
}
