package forecast

import (
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// blockWork is what a block does on one rank of a tensor group, as its calls say when it runs on an engine.Recorder.
type blockWork struct {
	text, image float64 // floating-point operations of the products of one text row, and of one image row
	cross       float64 // those of attention to text outside the sequence, for one image row and one token of the text
	// those of attention over the image inside a whole network (dit.Spec.Whole), for one pair of image rows; its calls,
	// and the values that its products write for one image row
	inside, calls, values float64
	gathers               []dit.Rows // rows of each gather before column-parallel projections, in the scattered form
	sums                  []dit.Rows // rows of each sum after row-parallel projections
	stats                 []float64  // values of each sum of statistics (dit.Env.Sum), for one image row
}

// recordingKey names what is recorded once: a block, the slice of its weights, and the streams of which there are rows.
type recordingKey struct {
	block       int
	rank, ranks int
	text, image bool
}

// recorded returns what block n does on rank c with rows of these streams.
func (o *Partition) recorded(c plan.Coord, n int, text, image bool) *blockWork {
	first := 0 // a rank with as many heads
	for first < c.Tensor && o.localHeads(plan.Coord{Tensor: first}) != o.localHeads(c) {
		first++
	}
	key := recordingKey{o.like[n], first, o.plan.Tensor, text, image}
	if w, ok := o.Spec.Outline.Recorded.Load(key); ok {
		return w.(*blockWork)
	}
	var err error
	for _, side := range []int{referenceSide, 48, 32, 24, 16, 8, 4, 2, 1} { // some models take small pictures only
		var w *blockWork
		if w, err = o.record(key, side); err == nil {
			o.Spec.Outline.Recorded.Store(key, w)
			return w
		}
	}
	panic(fmt.Sprintf("forecast: block %d of %s cannot be recorded: %v", key.block, o.Spec.Family, err))
}

// record runs a block of a model, or of a net, on a picture of that many tokens a side with referenceText, or on one
// stream of it.
func (o *Partition) record(key recordingKey, side int) (*blockWork, error) {
	w, env := square(o.Spec, side), dit.Env{
		Ops: engine.NewRecorder(), Arena: engine.NewMeasuringArena("reference"), DType: engine.BF16,
	}
	begin := func(spec *dit.Spec, e dit.Entry, r dit.Rows) (dit.Model, *dit.State, error) {
		model, err := outline(spec, dit.Held{Rank: key.rank, Ranks: key.ranks})
		if err != nil {
			return nil, nil, err
		}
		p, err := model.Prepare(env, []dit.Entry{e}, w.grid())
		if err != nil {
			return nil, nil, err
		}
		return model, dit.NewState(env, spec, p, model.Modulate(env, p, []float32{0}), 0, 1, r, r), nil
	}
	size := w.Sequence(0)
	whole := dit.Rows{Text: dit.Range{End: size.Text}, Image: dit.Range{End: size.Image}}
	entry, rows := w.entry(0), dit.Rows{}
	if o.net != nil {
		entry = w.netEntry(&Net{Spec: o.Spec, Hint: o.net.Hint, Entries: []int{0}}, 0, 1)
	}
	if key.text {
		rows.Text = whole.Text
	}
	if key.image {
		rows.Image = whole.Image
	}
	model, state, err := begin(o.Spec, entry, rows)
	if err != nil {
		return nil, err
	}
	if net, ok := model.(dit.Follower); ok {
		w.Spec = o.base
		_, of, err := begin(o.base, w.entry(0), whole)
		if err != nil {
			return nil, err
		}
		net.Follow(state, of)
	}
	model.PrepareBlock(env, state.P, key.block)
	model.ModulateBlock(env, state.M, key.block)
	out, calls := &blockWork{}, engine.NewRecorder()
	env.Ops, env.Attend = calls, func(dit.Attention) {}
	env.Gather = func(_, _ engine.Tensor, of dit.Rows) { out.gathers = append(out.gathers, of) }
	env.Scatter = func(_, _ engine.Tensor, of dit.Rows) { out.sums = append(out.sums, of) }
	env.Sum = func(t engine.Tensor) { out.stats = append(out.stats, float64(t.Len())/float64(size.Image)) }
	var skip engine.Tensor
	if o.Spec.Blocks[key.block].Skip >= 0 {
		skip = state.X
	}
	model.Block(env, key.block, state, skip)
	products := 0.
	for _, l := range calls.Linears {
		products += 2 * float64(l.Rows) * float64(l.N) * float64(l.K)
	}
	switch {
	case key.text && !key.image:
		out.text = products / float64(size.Text)
	case key.image && !key.text:
		out.image = products / float64(size.Image)
	}
	if o.Spec.Whole {
		o.wholeWork(out, calls, float64(size.Image))
		return out, nil
	}
	for _, a := range calls.Attentions {
		out.cross += 4 * float64(a.Lq) * float64(a.H*a.D) / float64(size.Image)
	}
	return out, nil
}

// wholeWork sets the work of a whole network, which was recorded on n image rows and one entry.
func (o *Partition) wholeWork(out *blockWork, calls *engine.Recorder, n float64) {
	products := 0.
	add := func(rows, columns, k int) {
		products += 2 * float64(rows) * float64(columns) * float64(k)
		out.values += float64(rows) * float64(columns) / n
	}
	for _, l := range calls.Linears {
		add(l.Rows, l.N, l.K)
	}
	for _, c := range calls.Convs {
		add(c.Pixels, c.N, c.K)
	}
	for _, a := range calls.Attentions {
		pairs := 4 * float64(a.Lq) * float64(a.H*a.D)
		if a.Lk == referenceText {
			out.cross += pairs / n
		} else {
			out.inside += pairs * float64(a.Lk) / (n * n)
		}
	}
	for _, count := range calls.Calls {
		out.calls += float64(count)
	}
	out.image = products / n
}

// preparing returns the values of each sum of statistics while rank c prepares block n of entry i.
func (o *Partition) preparing(c plan.Coord, n, i int) (values []int) {
	if o.plan.Tensor == 1 || len(o.recorded(c, n, false, true).stats) == 0 {
		return nil
	}
	model, err := outline(o.Spec, dit.Held{Rank: c.Tensor, Ranks: o.plan.Tensor})
	if err != nil {
		return nil
	}
	env := dit.Env{Ops: engine.NewRecorder(), Arena: engine.NewMeasuringArena("preparing"), DType: engine.BF16}
	p, err := model.Prepare(env, slices.Repeat([]dit.Entry{o.entry(i)}, o.each), o.grid())
	if err != nil {
		return nil
	}
	env.Sum = func(t engine.Tensor) { values = append(values, t.Len()) }
	model.PrepareBlock(env, p, n)
	return values
}

// streams returns the rows of r that are of the same streams as all.
func streams(all, r dit.Rows) (out dit.Rows) {
	if all.Text.Len() > 0 {
		out.Text = r.Text
	}
	if all.Image.Len() > 0 {
		out.Image = r.Image
	}
	return out
}
