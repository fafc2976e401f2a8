package upscale

import "patchbay/engine"

// rrdb is RRDBNet: first(x) + body(blocks(first(x))), then doublings and two convolutions.
type rrdb struct {
	First *engine.Weight `weight:"conv_first,conv" shape:"E,C,3,3"`
	Block []rrdbBlock    `weight:"body"`
	Body  *engine.Weight `weight:"conv_body,conv" shape:"E,E,3,3"`
	Up    []doubled      `weight:"up"`
	HR    *engine.Weight `weight:"conv_hr,conv" shape:"E,E,3,3"`
	Last  *engine.Weight `weight:"conv_last,conv" shape:"N,E,3,3"`
}

// doubled is the convolution after a doubling.
type doubled struct {
	Conv *engine.Weight `weight:"conv,conv" shape:"E,E,3,3"`
}

// rrdbBlock is x + 0.2*dense(dense(dense(x))).
type rrdbBlock struct {
	Dense1 dense `weight:"rdb1"`
	Dense2 dense `weight:"rdb2"`
	Dense3 dense `weight:"rdb3"`
}

// dense is x + 0.2*conv5(...), where every convolution reads x and the outputs of all those before it.
type dense struct {
	Conv1 *engine.Weight `weight:"conv1,conv" shape:"G,E,3,3"`
	Conv2 *engine.Weight `weight:"conv2,conv" shape:"G,E+G,3,3"`
	Conv3 *engine.Weight `weight:"conv3,conv" shape:"G,E+2G,3,3"`
	Conv4 *engine.Weight `weight:"conv4,conv" shape:"G,E+3G,3,3"`
	Conv5 *engine.Weight `weight:"conv5,conv" shape:"E,E+4G,3,3"`
}

// leak is the slope for values below 0, and also the factor of residuals.
const leak = 0.2

func (n *rrdb) walk(w *walk, in engine.Tensor, sink func(engine.Tensor) error) error {
	y, x, e, g := in.Dim(1), in.Dim(2), n.First.N(), n.Block[0].Dense1.Conv1.N()
	w.minus = w.constant(max(e, g), -1)
	part := w.constant(max(e, g), leak)
	first := w.alloc(y, x, e)
	mark := w.arena.Mark()
	all, cur, start := w.alloc(y, x, e+4*g), w.alloc(y, x, e), w.alloc(y, x, e)
	w.conv(first, in, n.First, nil)
	w.ops.Copy(cur, first)
	for i := range n.Block {
		b := &n.Block[i]
		w.ops.Copy(start, cur)
		for _, d := range []*dense{&b.Dense1, &b.Dense2, &b.Dense3} {
			if err := w.step(); err != nil {
				return err
			}
			d.walk(w, all, cur, part)
		}
		w.ops.GatedAdd(rows(cur), rows(start), gate(part, e), rows(cur), engine.Tensor{})
	}
	w.band(first, cur, 0, 0, y, n.Body, first)
	w.arena.Release(mark)
	t := tail{walk: w, from: first, slope: gate(part, e)}
	for _, up := range n.Up {
		t.layers = append(t.layers, layer{up.Conv, true, true})
	}
	t.layers = append(t.layers, layer{n.HR, false, true}, layer{n.Last, false, false})
	return t.run(sink)
}

// walk replaces x [1, Y, X, E] by the block's output; all [1, Y, X, E+4G] is a scratch buffer.
func (d *dense) walk(w *walk, all, x, part engine.Tensor) {
	e, g := x.Dim(3), d.Conv1.N()
	w.ops.Copy(all.Slice(3, 0, e), x)
	for i, conv := range []*engine.Weight{d.Conv1, d.Conv2, d.Conv3, d.Conv4} {
		have := e + i*g
		w.conv(all.Slice(3, have, have+g), all.Slice(3, 0, have), conv, w.leaky(gate(part, g)))
	}
	w.conv(x, all, d.Conv5, func(dst, t engine.Tensor) {
		w.ops.GatedAdd(rows(dst), rows(dst), gate(part, e), rows(t), engine.Tensor{})
	})
}
