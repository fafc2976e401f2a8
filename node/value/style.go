package value

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/dit"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/upscale"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
	"patchbay/parallel/request"
)

// VisionEncoder is a CLIP_VISION: a picture encoder whose weights are read on demand.
type VisionEncoder struct{ lazy }

// Style is a STYLE_MODEL: a network that turns picture encoder states into text rows.
type Style struct {
	lazy
	In, Out int // widths of the states it reads and of its rows
}

// VisionOutput is a CLIP_VISION_OUTPUT: Data holds the final states of all pictures, [Rows, Cols] with Rows counting
// those of all pictures, and Deep, for each picture, the states after the layers text.Deep, without those that the
// encoder does not have.
type VisionOutput struct {
	Rows, Cols int
	Data, Deep []float32
	Pictures   int
}

// Before returns the states after the last layer but one that a batch of videos reads, of one picture. Like ComfyUI it
// takes the first picture for a single video; for more videos it returns an error that names the input field, unless
// there is one picture. It returns one too if the encoder has a single layer.
func (o VisionOutput) Before(field string, batch int) (dit.Array, error) {
	switch {
	case o.Pictures > 1 && batch > 1:
		return dit.Array{}, fault.Bad(field, "%d pictures for %d videos: want one picture (ImageFromBatch takes one out "+
			"of several), or a batch_size of 1, which reads the first", o.Pictures, batch)
	case o.Pictures < 1 || len(o.Deep) < o.Rows*o.Cols:
		return dit.Array{}, fault.Bad(field, "has no states before those of the last layer: its encoder has one layer")
	}
	rows, end := o.Rows/o.Pictures, len(o.Deep)/o.Pictures
	return dit.Array{Rows: rows, Cols: o.Cols, Data: o.Deep[end-rows*o.Cols : end]}, nil
}

// lazy is a file with a small network that is loaded on demand.
type lazy struct {
	name string
	file source.File
}

// OpenVisionEncoder returns a handle after checking that the file holds a supported picture encoder (CLIP vision or
// SigLIP).
func OpenVisionEncoder(h files.Header) (*VisionEncoder, error) {
	if err := text.CheckPictureEncoder(h.Weights.Set()); err != nil {
		return nil, fault.New(fault.WrongFamily, "%s %v: it looks like %s", h.Name, err,
			models.GuessKind(h.Weights.Set()))
	}
	return &VisionEncoder{lazy{h.Name, h.File}}, nil
}

// OpenStyle returns a handle after checking that the file holds a style model.
func OpenStyle(h files.Header) (*Style, error) {
	set := h.Weights.Set()
	s := &Style{
		lazy: lazy{h.Name, h.File}, In: set.Dim("redux_up.weight", 1), Out: set.Dim("redux_down.weight", 0),
	}
	if s.In == 0 || s.Out == 0 || set.Dim("redux_up.weight", 0) != set.Dim("redux_down.weight", 1) {
		return nil, fault.New(fault.WrongFamily, "%s holds no style model: redux_up and redux_down are read, "+
			"it looks like %s", h.Name, models.GuessKind(set))
	}
	return s, nil
}

// on runs f on the device with the network of a file, which open loads; field is the input that the file came from.
func on[T resident](u Use, z lazy, field string, open func(*parallel.Workspace, engine.Ops, *weights.File) (T, error),
	f func(*parallel.Workspace, T) error,
) error {
	return u.do(field+" "+z.name, func(l *parallel.Workspace) error {
		k := keeping{key: field + " " + z.file.Key(), file: z.file, field: field}
		net, err := cached(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File) (T, error) { return open(l, ops, file) })
		if err != nil {
			return err
		}
		return f(l, net)
	})
}

// envOf returns the environment in which networks of package text run on the device.
func envOf(l *parallel.Workspace) text.Env {
	return text.Env{Ops: l.Ops, DType: l.DType, Check: l.Check, Take: l.Arena, Bring: l.Bring(l.Ops)}
}

// taskEnv returns the environment in which other networks run on the device.
func taskEnv(l *parallel.Workspace) dit.TaskEnv {
	return dit.TaskEnv{Ops: l.Ops, Take: l.Arena, Check: l.Check}
}

// See encodes every picture of a batch. crop cuts pictures to squares; otherwise they are squeezed. It returns an error
// for pictures of fewer than three channels, and for such long ones that scaling them would take too much memory.
func (e *VisionEncoder) See(u Use, im *picture.Image, crop bool) (out VisionOutput, err error) {
	if im.C < 3 {
		return out, fault.Bad("image", "%d channels, picture encoders read red, green and blue", im.C)
	}
	const field = "clip_vision"
	err = u.do(field+" "+e.name, func(l *parallel.Workspace) error {
		k := keeping{key: field + " " + e.file.Key(), file: e.file, field: field}
		net, err := brought(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File, room int64,
		) (*text.PictureEncoder, error) {
			return text.OpenPictureEncoder(ops, file.Set().For(l.DType), files.Config(file, field), room)
		})
		if err != nil {
			return err
		}
		out.Data, out.Deep = nil, nil // of an attempt that ran out of memory
		for b := range im.B {
			pixels, err := visionInput(im, b, net, crop)
			if err != nil {
				return err
			}
			states, deep, err := net.See(envOf(l), pixels)
			if err != nil {
				return err
			}
			out.Data, out.Deep = append(out.Data, states...), append(out.Deep, deep...)
		}
		rows, width := net.Rows()
		out.Rows, out.Cols, out.Pictures = im.B*rows, width, im.B
		return nil
	})
	return out, err
}

// visionInput returns picture b as the encoder expects it: [3, Size, Size], with values quantized to 8 bits before they
// are normalized (ComfyUI comfy/clip_model.py, clip_preprocess).
func visionInput(im *picture.Image, b int, net *text.PictureEncoder, crop bool) ([]float32, error) {
	size := net.Size
	m := resample.Image{B: 1, C: 3, Y: im.Y, X: im.X, Data: make([]float32, 0, 3*im.Y*im.X)}
	for c := range 3 {
		for i := range im.Y * im.X {
			m.Data = append(m.Data, im.Data[(b*im.Y*im.X+i)*im.C+c])
		}
	}
	if im.Y != size || im.X != size {
		y, x := size, size
		if crop {
			scale := float64(size) / float64(min(im.Y, im.X))
			y, x = int(math.RoundToEven(scale*float64(im.Y))), int(math.RoundToEven(scale*float64(im.X)))
		}
		if 3*float64(y)*float64(x) > MaxValues {
			return nil, fault.Bad("image", "%d x %d pixels become %d x %d before they are cropped, more than this program "+
				"holds: want crop none, or a picture that is less long", im.X, im.Y, x, y)
		}
		m = resample.Smooth(m, x, y)
	}
	out, top, left := make([]float32, 0, 3*size*size), (m.Y-size)/2, (m.X-size)/2
	for i := range 3 * size * size {
		c, y, x := i/(size*size), i/size%size, i%size
		v := min(max(255*m.Data[(c*m.Y+top+y)*m.X+left+x], 0), 255)
		out = append(out, (float32(math.RoundToEven(float64(v)))/255-net.Mean[c])/net.Deviation[c])
	}
	return out, nil
}

// Rows turns picture encoder states into text rows.
func (s *Style) Rows(u Use, seen VisionOutput) (out dit.Array, err error) {
	if seen.Cols != s.In {
		return out, fault.Family("style_model", "%s reads states of %d values, clip_vision_output has %d: use the picture "+
			"encoder that it was made for (sigclip_vision_patch14_384)", s.name, s.In, seen.Cols)
	}
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*text.Redux, error) {
		return text.OpenRedux(ops, file.Set().For(l.DType))
	}
	err = on(u, s.lazy, "style_model", open, func(l *parallel.Workspace, net *text.Redux) (err error) {
		out = dit.Array{Rows: seen.Rows, Cols: s.Out}
		out.Data, err = net.Project(envOf(l), seen.Data)
		return err
	})
	return out, err
}

// Show projects the deep states of a picture and puts the rows in front of the model's Prefix.
func (p *ModelPatch) Show(u Use, m *Model, seen VisionOutput) error {
	switch s := p.sizes; {
	case s == nil:
		return fault.Family("model_patch", "%s is layers for %s models: connect a feature projector", p.Name, p.Family)
	case len(seen.Deep) < len(text.Deep())*seen.Rows*seen.Cols:
		return fault.Bad("clip_vision_output", "its encoder has fewer than %d layers: use sigclip_vision_patch14_384",
			-text.Deep()[0])
	case seen.Rows != s.Tokens || seen.Cols != s.Width:
		return fault.Bad("clip_vision_output", "%d rows of %d values, %s reads %d of %d: one picture, seen by "+
			"sigclip_vision_patch14_384", seen.Rows, seen.Cols, p.Name, s.Tokens, s.Width)
	}
	if err := p.fits(m.Spec); err != nil {
		return fault.Family("model_patch", "%v", err)
	}
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*text.Features, error) {
		return text.OpenFeatures(ops, file.Set().For(l.DType))
	}
	return on(u, lazy{p.Name, p.file}, "model_patch", open, func(l *parallel.Workspace, net *text.Features) error {
		rows, err := net.Project(envOf(l), seen.Deep)
		m.Prefix = dit.Array{
			Rows: len(text.Deep())*p.sizes.Rows + m.Prefix.Rows, Cols: p.sizes.Out,
			Data: slices.Concat(rows, m.Prefix.Data),
		}
		return err
	})
}

// fits returns an error if the patch is not made for the base model.
func (p *ModelPatch) fits(base *dit.Spec) error {
	switch {
	case p.sizes == nil:
		return p.ControlNet.fits(base)
	case !base.Prefix || p.sizes.Out != base.Width:
		return fmt.Errorf("%s makes rows of %d values in front of a text, the %s model of width %d takes none of them",
			p.Name, p.sizes.Out, base.Family, base.Width)
	}
	return nil
}

// Forecast adds the patch to all entries of a planner's workload: as a net, or as text rows for a feature projector.
func (p *ModelPatch) Forecast(w *forecast.Workload) error {
	if err := p.fits(w.Spec); err != nil {
		return err
	}
	if p.sizes != nil {
		w.Prefix += len(text.Deep()) * p.sizes.Rows
		return nil
	}
	c := p.control(request.Latent{C: p.Hint}, 1)
	net := c.Forecast(w.Spec)
	for i := range w.Text {
		net.Entries = append(net.Entries, i)
	}
	w.Nets = append(w.Nets, net)
	return nil
}

// Upscaler is an UPSCALE_MODEL: a network that enlarges pictures, whose weights are read on demand.
type Upscaler struct {
	lazy
	Config upscale.Config
}

// OpenUpscaler returns a handle after checking that the file holds a supported network.
func OpenUpscaler(h files.Header) (*Upscaler, error) {
	cfg, err := upscale.Infer(h.Weights.Set())
	switch {
	case errors.Is(err, upscale.ErrUnknown):
		return nil, fault.New(fault.WrongFamily, "%s %v: it looks like %s", h.Name, err,
			models.GuessKind(h.Weights.Set()))
	case err != nil:
		return nil, fault.New(fault.WrongFamily, "%s %v", h.Name, err)
	}
	return &Upscaler{lazy{h.Name, h.File}, cfg}, nil
}

// Upscale enlarges every picture of a batch [B, Y, X, 3], retrying with smaller tiles if memory runs out. done is
// called after every tile.
func (z *Upscaler) Upscale(u Use, im *picture.Image, done func(tiles, total int)) (*picture.Image, error) {
	out := &picture.Image{B: im.B, Y: z.Config.Scale * im.Y, X: z.Config.Scale * im.X, C: upscale.Channels}
	open := func(l *parallel.Workspace, ops engine.Ops, file *weights.File) (*upscale.Model, error) {
		return upscale.Open(ops, file.Set())
	}
	n, err := im.Y*im.X*im.C, error(nil)
	for _, side := range upscale.Tiles {
		err = on(u, z.lazy, "upscale_model", open, func(l *parallel.Workspace, net *upscale.Model) error {
			out.Data = make([]float32, 0, out.B*out.Y*out.X*out.C)
			for b := range im.B {
				pixels, err := net.Upscale(taskEnv(l), im.Data[b*n:(b+1)*n],
					im.Y, im.X, side, func(tiles, total int) { done(b*total+tiles, im.B*total) })
				if err != nil {
					return err
				}
				out.Data = append(out.Data, pixels...)
			}
			return nil
		})
		if err == nil || !isFull(err) {
			break
		}
		out.Data = nil // make room for the smaller tiles
	}
	return out, err
}

// isFull reports whether the device ran out of memory without being lost.
func isFull(err error) bool {
	return !errors.Is(err, engine.ErrDeviceLost) &&
		(errors.Is(err, engine.ErrOutOfMemory) || fault.Is(err, fault.OutOfMemory))
}
