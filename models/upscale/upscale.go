// Package upscale enlarges pictures with the convolutional networks known as upscale models: RRDBNet (ESRGAN,
// arXiv:1809.00219; Real-ESRGAN, arXiv:2107.10833) and SRVGGNetCompact of Real-ESRGAN.
//
// Read names.go (how files spell names, and which other networks are rejected), rrdb.go and compact.go (the networks as
// structs whose tags are names), walk.go (what both need: strips, convolutions, slopes) and this file (the API).
// Everything on a device is channels last, [1, Y, X, C]. Pixel squares become channels, and channels squares, on the
// host.
//
// Memory: a tile of 512 x 512 of RRDBNet with 64 channels needs 0.5 GiB in f32. Layers after the blocks, on 16 times as
// many pixels, work in strips. Each strip computes the rows that it needs of the layer before, so that no layer of the
// large picture is ever held as a whole.
package upscale

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/tile"
	"patchbay/models/weights"
)

// Channels is the number of channels of a picture: that of the supported networks.
const Channels = 3

// Tiles lists tile sides in pixels, largest first, for callers to try in order until memory suffices (ComfyUI
// comfy_extras/nodes_upscale_model.py).
var Tiles = [...]int{512, 256, 128}

// Overlap is the number of pixels that neighboring tiles share, also as in ComfyUI.
const Overlap = 32

// Model is a loaded network. It holds weights only and may be shared by callers that use the same kind of Ops.
type Model struct {
	Config Config
	net    network
	loaded *weights.Loaded
	strip  int // approximate bytes of a strip of a layer's result; it does not affect the result
}

// network computes one picture on a device.
type network interface {
	// walk computes in [1, Y, X, C] and passes the rows of the result to sink in strips, in order.
	walk(w *walk, in engine.Tensor, sink func(strip engine.Tensor) error) error
}

// Open loads the network in set. All computation is in f32, as in ComfyUI. The caller closes the result. Errors name
// what the file holds instead, or all names and shapes that are wrong (*weights.MismatchError).
func Open(ops engine.Ops, set *weights.Set) (*Model, error) {
	cfg, err := Infer(set)
	if err != nil {
		return nil, err
	}
	m := &Model{Config: cfg, strip: stripBytes}
	m.net = &rrdb{Block: make([]rrdbBlock, cfg.Blocks), Up: make([]doubled, cfg.Ups)}
	if cfg.Compact {
		m.net = &compact{Layer: make([]sloped, cfg.Blocks)}
	}
	opt := weights.Options{Model: "upscale model", Dims: map[string]int{
		"E": cfg.Width, "G": cfg.Growth, "C": Channels * cfg.Unshuffle * cfg.Unshuffle,
		"N": Channels * cfg.Shuffle * cfg.Shuffle,
	}}
	m.loaded, err = weights.Load(ops, renamed(set), m.net, opt)
	return m, err
}

// Close frees the memory of the weights.
func (m *Model) Close() { m.loaded.Close() }

// Bytes returns the memory of the weights if the backend reports it.
func (m *Model) Bytes() int64 { return m.loaded.Bytes() }

// Upscale enlarges a picture [Y, X, 3] in 0..1 to [Scale*Y, Scale*X, 3], clamped to 0..1, in blended tiles with sides
// of side pixels. done, if not nil, is called after every tile. Errors: pixels of the wrong length, and those of Check,
// the device and memory allocation.
func (m *Model) Upscale(
	env dit.TaskEnv, pixels []float32, y, x, side int, done func(tiles, total int),
) ([]float32, error) {
	if y < 1 || x < 1 || len(pixels) != y*x*Channels {
		return nil, fmt.Errorf("upscale: %d values for a picture [%d, %d, %d]", len(pixels), y, x, Channels)
	}
	g := tile.Grid{C: Channels, Out: Channels, Y: y, X: x, Up: float64(m.Config.Scale)}
	check := func(tiles, total int) error {
		if done != nil {
			done(tiles, total)
		}
		return nil
	}
	return g.Pass(tile.Size{Y: side, X: side, Overlap: Overlap}, check,
		func(pixels []float32, y, x int, check func(int, int) error) ([]float32, error) {
			out, err := m.tile(env, pixels, y, x)
			if err != nil {
				return nil, err
			}
			return out, check(1, 1)
		}, pixels)
}

// tile computes one tile [y, x, 3].
func (m *Model) tile(env dit.TaskEnv, pixels []float32, y, x int) ([]float32, error) {
	c := m.Config
	tall, wide, in := y, x, pixels
	if !c.Compact { // as spandrel requires
		least, multiple := 2, 1
		if c.Unshuffle > 1 {
			least, multiple = 4, 4
		}
		in, tall, wide = padded(pixels, y, x, least, multiple)
	}
	if n := c.Unshuffle; n > 1 {
		in, tall, wide = unshuffled(in, tall, wide, n), tall/n, wide/n
	}
	run := func(w *walk, sink func(engine.Tensor) error) error {
		t := w.alloc(tall, wide, len(in)/(tall*wide))
		w.ops.Upload(t, in)
		return m.net.walk(w, t, sink)
	}
	size := &walk{ops: engine.NewRecorder(), arena: engine.NewMeasuringArena("upscale"), strip: m.strip}
	if err := run(size, func(engine.Tensor) error { return nil }); err != nil {
		return nil, err
	}
	arena, err := env.Take(size.arena.Peak())
	if err != nil {
		return nil, err
	}
	large := c.up() * c.Shuffle // size factor relative to in
	out := make([]float32, large*tall*large*wide*Channels)
	rest := out
	w := &walk{ops: env.Ops, arena: arena, check: env.Check, strip: m.strip}
	if err := run(w, func(strip engine.Tensor) error {
		n := strip.Len()
		defer func() { rest = rest[n:] }()
		return w.ops.Download(rest[:n], strip).Wait()
	}); err != nil {
		return nil, err
	}
	if c.Compact {
		out = shuffled(out, pixels, y, x, c.Shuffle)
	}
	return cut(out, large*wide, c.Scale*y, c.Scale*x), nil
}
