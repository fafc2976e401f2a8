package text

import (
	"fmt"
	"math"

	"patchbay/engine"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Names by which projections are recognized.
const (
	projections    = "text_embedding_projection."
	oneProjection  = projections + "weight"
	twoProjections = projections + "video_aggregate_embed.weight"
)

// Projection makes the rows that a network reads of all states that a language model has of a token (ComfyUI
// comfy/text_encoders/lt.py, LTXAVTEModel). One projection reads states that are scaled by their range over the whole
// prompt; two, of which the rows of a video and of its sound are put side by side, read states of the same length.
type Projection struct{ loaded[projectionWeights] }

type projectionWeights struct {
	One *projectionOne `weight:""` // exactly one of One and Two is set
	Two *projectionTwo `weight:""`
}

type projectionOne struct {
	Rows *engine.Weight `weight:"text_embedding_projection,optbias" shape:"V,K"`
}

type projectionTwo struct {
	Video *engine.Weight `weight:"text_embedding_projection.video_aggregate_embed,optbias" shape:"V,K"`
	Sound *engine.Weight `weight:"text_embedding_projection.audio_aggregate_embed,optbias" shape:"A,K"`
}

// openProjection loads the projection in set, beside which there may be anything, such as a whole checkpoint.
func openProjection(ops engine.Ops, set *weights.Set, _ []byte) (*Projection, error) {
	part, set, err := findPart(set, "projection")
	if err != nil {
		return nil, err
	}
	set = set.Prefix(projections).Mapped(func(name string) string { return projections + name })
	const sound = projections + "audio_aggregate_embed.weight"
	p, name := &Projection{}, oneProjection
	if set.Has(twoProjections) {
		name, p.weights.Two = twoProjections, &projectionTwo{}
	} else {
		p.weights.One = &projectionOne{}
	}
	return p, p.load(ops, set, weights.Options{Model: part.Kind, Dims: map[string]int{
		"V": set.Dim(name, 0), "A": set.Dim(sound, 0), "K": set.Dim(name, 1),
	}})
}

// Adapt implements Net.
func (p Projection) Adapt(ops engine.Ops, additions []weights.LowRank) (_ Net, err error) {
	p.loaded, err = p.adapt(ops, additions)
	return &p, err
}

// matrices returns those of the projection.
func (p *Projection) matrices() []*engine.Weight {
	if two := p.weights.Two; two != nil {
		return []*engine.Weight{two.Video, two.Sound}
	}
	return []*engine.Weight{p.weights.One.Rows}
}

// slab is how many tokens are projected at once: their rows have nearly 200,000 columns.
const slab = 128

// Encode projects rows of f.States states, side by side, that tokens have as vectors. It returns an error if their
// number of columns is not that of the projection, or memory runs out, and the errors of Check and of the device.
func (p *Projection) Encode(env Env, chunks [][]tokenizer.Token, f Form) (Encoding, error) {
	out, all := Encoding{}, p.matrices()
	for _, w := range all {
		out.Context.Cols += w.N()
	}
	k := all[0].K()
	for _, chunk := range chunks {
		for _, t := range chunk {
			if f.States < 1 || len(t.Vector) != k || k%f.States != 0 {
				return out, fmt.Errorf("project text: %d states of a token have %d columns, the file is for %d: it belongs to "+
					"another language model", f.States, len(t.Vector), k)
			}
		}
		if err := p.project(env, &out, chunk, f.States); err != nil {
			return out, err
		}
	}
	for range out.Context.Rows {
		out.Valid = append(out.Valid, 1)
	}
	return out, nil
}

// project appends the rows of a chunk to out.
func (p *Projection) project(env Env, out *Encoding, chunk []tokenizer.Token, states int) error {
	all := p.matrices()
	width := all[0].K() / states
	scale := p.scales(chunk, states)
	rows := min(slab, len(chunk))
	var x engine.Tensor
	var y []engine.Tensor
	memory := func(a *engine.Arena) {
		x, y = a.Alloc(env.DType, 1, rows, all[0].K()), nil
		for _, w := range all {
			y = append(y, a.Alloc(env.DType, 1, rows, w.N()))
		}
	}
	env, free, err := env.holding("project text", memory)
	if err != nil {
		return err
	}
	defer free()
	memory(env.Arena)
	first := out.Context.Rows * out.Context.Cols
	out.Context.Rows += len(chunk)
	out.Context.Data = append(out.Context.Data, make([]float32, len(chunk)*out.Context.Cols)...)
	flat := make([]float32, rows*all[0].K())
	for from := 0; from < len(chunk); from += rows {
		if env.Check != nil {
			if err := env.Check(); err != nil {
				return err
			}
		}
		n := min(rows, len(chunk)-from)
		column := 0
		for i, w := range all {
			by := 1.
			if len(all) > 1 {
				by = math.Sqrt(float64(w.N()) / float64(width))
			}
			for r := range n {
				// a column's states lie side by side in the matrix
				row, to := chunk[from+r].Vector, flat[r*len(chunk[from].Vector):]
				for s := range states {
					shift, factor := scale(from+r, s)
					for e, v := range row[s*width : (s+1)*width] {
						to[e*states+s] = float32((float64(v) - shift) * factor * by)
					}
				}
			}
			env.Ops.Upload(x.Slice(1, 0, n), flat[:n*all[0].K()])
			env.Ops.Linear(y[i].Slice(1, 0, n), x.Slice(1, 0, n), w, engine.Epilogue{})
			got := make([]float32, n*w.N())
			if err := env.Ops.Download(got, y[i].Slice(1, 0, n)).Wait(); err != nil {
				return err
			}
			for r := range n {
				copy(out.Context.Data[first+(from+r)*out.Context.Cols+column:], got[r*w.N():(r+1)*w.N()])
			}
			column += w.N()
		}
	}
	return nil
}

// scales returns what is subtracted from state s of a token, and the factor of the difference.
func (p *Projection) scales(chunk []tokenizer.Token, states int) func(token, s int) (shift, factor float64) {
	const eps = 1e-6
	width := p.matrices()[0].K() / states
	if p.weights.Two != nil {
		return func(token, s int) (float64, float64) {
			sum := 0.
			for _, v := range chunk[token].Vector[s*width : (s+1)*width] {
				sum += float64(v) * float64(v)
			}
			return 0, 1 / math.Sqrt(sum/float64(width)+eps)
		}
	}
	shifts, factors := make([]float64, states), make([]float64, states)
	for s := range states {
		sum, low, high := 0., math.Inf(1), math.Inf(-1)
		for _, t := range chunk {
			for _, v := range t.Vector[s*width : (s+1)*width] {
				sum, low, high = sum+float64(v), min(low, float64(v)), max(high, float64(v))
			}
		}
		shifts[s], factors[s] = sum/float64(len(chunk)*width), 8/(high-low+eps)
	}
	return func(_, s int) (float64, float64) { return shifts[s], factors[s] }
}
