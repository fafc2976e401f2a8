package sdxl

import (
	"patchbay/engine"
	"patchbay/models/family"
)

// net names the weights of the whole model. Sizes in the tags: M channels of the first level, C those that the first
// convolution reads, O those that the last one writes, T columns of the context, V of the vector. Structs of a level
// add sizes of their own (weights.Sized): N channels, I channels before.
type net struct {
	Time   embedder       `weight:"time_embed"`
	Label  *label         `weight:"label_emb.0"` // nil: version 1
	Down   []down         `weight:"input_blocks"`
	Middle middle         `weight:"middle_block"`
	Up     []up           `weight:"output_blocks"`
	Norm   norm           `weight:"out.0"`
	Last   *engine.Weight `weight:"out.2,conv" shape:"O,N,3,3"`
	n      int
}

func (w *net) Sizes() map[string]int { return map[string]int{"N": w.n} }

type embedder struct {
	In  *engine.Weight `weight:"0" shape:"4M,M"`
	Out *engine.Weight `weight:"2" shape:"4M,4M"`
}

type label struct {
	In  *engine.Weight `weight:"0" shape:"4M,V"`
	Out *engine.Weight `weight:"2" shape:"4M,4M"`
}

// down is a layer of the way down: the first convolution, one that halves the picture, or a residual block with or
// without transformers.
type down struct {
	First *first   `weight:""`
	Halve *halve   `weight:"0"`
	Res   *resnet  `weight:"0"`
	Trans *spatial `weight:"1"`
}

// up is a residual block of the way up, with or without transformers and a convolution of the doubled picture.
type up struct {
	Res    resnet   `weight:"0"`
	Trans  *spatial `weight:"1"`
	Double *double  `weight:"1"` // without transformers
	After  *double  `weight:"2"` // behind them
}

type middle struct {
	Before resnet  `weight:"0"`
	Trans  spatial `weight:"1"`
	After  resnet  `weight:"2"`
}

type first struct {
	Conv *engine.Weight `weight:"0,conv" shape:"M,C,3,3"`
}

type halve struct {
	n    int
	Conv *engine.Weight `weight:"op,conv" shape:"N,N,3,3"`
}

func (w *halve) Sizes() map[string]int { return map[string]int{"N": w.n} }

type double struct {
	n    int
	Conv *engine.Weight `weight:"conv,conv" shape:"N,N,3,3"`
}

func (w *double) Sizes() map[string]int { return map[string]int{"N": w.n} }

// resnet is skip(x) + conv(silu(norm(conv(silu(norm(x))) + time(vector)))).
type resnet struct {
	in, n int
	Norm1 inNorm         `weight:"in_layers.0"`
	Conv1 *engine.Weight `weight:"in_layers.2,conv" shape:"N,I,3,3"`
	Time  *engine.Weight `weight:"emb_layers.1" shape:"N,4M"`
	Norm2 norm           `weight:"out_layers.0"`
	Conv2 *engine.Weight `weight:"out_layers.3,conv" shape:"N,N,3,3"`
	Skip  *skip          `weight:""` // nil: the channels do not change
}

func (w *resnet) Sizes() map[string]int { return map[string]int{"I": w.in, "N": w.n} }

type skip struct {
	Conv *engine.Weight `weight:"skip_connection" shape:"N,I,1,1"`
}

// norm is a group norm or a layer norm of N channels.
type norm struct {
	Weight engine.Tensor `weight:"weight" shape:"N"`
	Bias   engine.Tensor `weight:"bias" shape:"N"`
}

type inNorm struct {
	Weight engine.Tensor `weight:"weight" shape:"I"`
	Bias   engine.Tensor `weight:"bias" shape:"I"`
}

// spatial is transformer blocks over the pixels of a level.
type spatial struct {
	n      int
	Norm   norm      `weight:"norm"`
	Matrix *ends     `weight:""` // of XL
	Conv   *endConvs `weight:""` // of version 1
	Blocks []block   `weight:"transformer_blocks"`
}

func (w *spatial) Sizes() map[string]int { return map[string]int{"N": w.n} }

// ends are the layers around the blocks. Convolutions of one pixel are matrices too.
type ends struct {
	In  *engine.Weight `weight:"proj_in" shape:"N,N"`
	Out *engine.Weight `weight:"proj_out" shape:"N,N"`
}

type endConvs struct {
	In  *engine.Weight `weight:"proj_in" shape:"N,N,1,1"`
	Out *engine.Weight `weight:"proj_out" shape:"N,N,1,1"`
}

func (w *spatial) ends() ends {
	if w.Matrix != nil {
		return *w.Matrix
	}
	return ends(*w.Conv)
}

// block attends to the picture, then to the text. GateUp has the rows of the MLP's first layer and then of its gate.
type block struct {
	Norm1  norm           `weight:"norm1"`
	Self   attention      `weight:"attn1"`
	Norm2  norm           `weight:"norm2"`
	Cross  cross          `weight:"attn2"`
	Norm3  norm           `weight:"norm3"`
	UpGate *engine.Weight `weight:"ff.net.0.proj" shape:"8N,N"`
	Down   *engine.Weight `weight:"ff.net.2" shape:"N,4N"`
}

type attention struct {
	Query *engine.Weight `weight:"to_q,nobias" shape:"N,N"`
	Key   *engine.Weight `weight:"to_k,nobias" shape:"N,N"`
	Value *engine.Weight `weight:"to_v,nobias" shape:"N,N"`
	Out   *engine.Weight `weight:"to_out.0" shape:"N,N"`
}

type cross struct {
	Query *engine.Weight `weight:"to_q,nobias" shape:"N,N"`
	Key   *engine.Weight `weight:"to_k,nobias" shape:"N,T"`
	Value *engine.Weight `weight:"to_v,nobias" shape:"N,T"`
	Out   *engine.Weight `weight:"to_out.0" shape:"N,N"`
}

// net returns the empty weights of a model.
func (c Config) net() *net {
	w := &net{Label: family.NewIf[label](c.VectorDim > 0), n: c.Channels, Down: []down{{First: &first{}}}}
	trans := func(n, depth int) *spatial {
		if depth == 0 {
			return nil
		}
		return &spatial{
			n: n, Matrix: family.NewIf[ends](c.Linear), Conv: family.NewIf[endConvs](!c.Linear), Blocks: make([]block, depth),
		}
	}
	res := func(in, n int) resnet { return resnet{in: in, n: n, Skip: family.NewIf[skip](in != n)} }
	at, kept, depth := c.Channels, []int{c.Channels}, 0
	for level, m := range c.Mult {
		n := m * c.Channels
		for range c.Blocks[level] {
			r := res(at, n)
			w.Down = append(w.Down, down{Res: &r, Trans: trans(n, c.Down[depth])})
			at, kept, depth = n, append(kept, n), depth+1
		}
		if level < len(c.Mult)-1 {
			w.Down, kept = append(w.Down, down{Halve: &halve{n: n}}), append(kept, n)
		}
	}
	w.Middle = middle{Before: res(at, at), Trans: *trans(at, c.Middle), After: res(at, at)}
	depth = len(c.Up)
	for level := len(c.Mult) - 1; level >= 0; level-- {
		n := c.Mult[level] * c.Channels
		for i := range c.Blocks[level] + 1 {
			depth--
			last := len(kept) - 1
			u := up{Res: res(at+kept[last], n), Trans: trans(n, c.Up[depth])}
			if at, kept = n, kept[:last]; level > 0 && i == c.Blocks[level] {
				d := &double{n: n}
				if u.Trans == nil {
					u.Double = d
				} else {
					u.After = d
				}
			}
			w.Up = append(w.Up, u)
		}
	}
	return w
}

// eachBlock calls visit for every transformer block in order.
func (w *net) eachBlock(visit func(b *block)) {
	all := func(s *spatial) {
		if s != nil {
			for i := range s.Blocks {
				visit(&s.Blocks[i])
			}
		}
	}
	for i := range w.Down {
		all(w.Down[i].Trans)
	}
	all(&w.Middle.Trans)
	for i := range w.Up {
		all(w.Up[i].Trans)
	}
}

// eachResnet calls visit for every residual block in order.
func (w *net) eachResnet(visit func(r *resnet)) {
	for i := range w.Down {
		if r := w.Down[i].Res; r != nil {
			visit(r)
		}
	}
	visit(&w.Middle.Before)
	visit(&w.Middle.After)
	for i := range w.Up {
		visit(&w.Up[i].Res)
	}
}
