package forecast

import (
	"math"

	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// Memory is what one rank needs, in bytes, without text encoders and VAE.
type Memory struct {
	// Weights are all blocks, split by the tensor axis, and the whole of embeddings, conditioning and head. With
	// shard=on they are those of the rank's stage alone, or 1/P of all and two gather buffers.
	Weights     int64
	Session     int64 // prepared text, positions, modulations and, in a pipeline, the K/V store
	Activations int64
	Exchange    int64 // communication buffers
	KV          int64 // part of Session: keys and values kept between evaluations
	Workspace   int64 // of the device's libraries; MemoryByRank leaves it 0
}

// Total returns the sum of all fields but KV, which is part of Session.
func (m Memory) Total() int64 {
	return m.Weights + m.Session + m.Activations + m.Exchange + m.Workspace
}

// MemoryByRank returns what every rank of a plan needs, from the workload alone. weightBytes is the size of one weight,
// valueBytes that of one activation (4 for f32, 2 for bf16; tables, vectors and modulations are always f32). Session,
// Activations and Exchange are the peaks that the executor finds with measuring arenas; in a folded pipeline they are
// the sums of both lanes of a stage. The weights of nets are not included.
func MemoryByRank(w Workload, p plan.Plan, weightBytes float64, valueBytes int) []Memory {
	o, out := NewPartition(w, p), make([]Memory, p.Ranks())
	for r := range out {
		c := o.mesh.At(r)
		if t := o.twin(c); t != c {
			out[r] = out[o.mesh.Rank(t)]
			continue
		}
		o.own(c, func(k int) {
			m := o.LaneMemory(c, k, valueBytes)
			out[r].Session += m.Session
			out[r].Activations += m.Activations
			out[r].Exchange += m.Exchange
			out[r].KV += m.KV
		})
		out[r].Weights = int64(float64(o.heldParams(c)) * weightBytes)
	}
	return out
}

// ends returns the number of parameters outside the blocks.
func (o *Partition) ends() int64 {
	n := o.Spec.Params
	for _, b := range o.Spec.Blocks {
		n -= b.Params
	}
	return n
}

// LaneMemory returns what lane k of rank c needs besides weights.
func (o *Partition) LaneMemory(c plan.Coord, k, valueBytes int) (m Memory) {
	session, acts, comm := stack{value: valueBytes}, stack{value: valueBytes}, stack{value: valueBytes}
	b, held := o.batch[c.Data].Len(), o.Lanes[k]
	for _, i := range o.entries[c.CFG] {
		m.KV += o.sessionEntry(&session, c, k, i, b)
	}
	o.linkBuffers(&comm, c, k, b)
	whole := held
	if o.spreads(k) {
		whole = dit.Range{End: len(o.Spec.Blocks)}
	}
	for n := whole.Start; n < whole.End; n++ {
		for _, i := range o.entries[c.CFG] {
			o.sessionBlock(&session, c, n, i)
		}
	}
	follow := o.sessionNets(&session, c, k)
	if o.spreads(k) {
		o.spreadOut.evaluation(&acts, &comm, o.spreadCoord(c), 0, b, plan.Micro{Whole: true})
	} else if !o.plan.Spread {
		o.evaluation(&acts, &comm, c, k, b, plan.Micro{Whole: true})
	}
	if o.plan.PatchesMayTakeMore(o.Spec) {
		for _, j := range []int{0, min(1, len(o.Patches)-1), len(o.Patches) - 1} { // no other patch is longer
			o.evaluation(&acts, &comm, c, k, b, plan.Micro{Patch: j})
		}
	}
	m.Session, m.Activations, m.Exchange = session.peak, acts.peak+follow, comm.peak
	return m
}

// evaluation adds the buffers of one micro-step of lane k.
func (o *Partition) evaluation(acts, comm *stack, c plan.Coord, k, b int, m plan.Micro) {
	mark := acts.top
	o.begin(acts, c, k, b, m)
	for _, own := range o.nets {
		if !own.net.Spec.Follows {
			own.evaluation(acts, comm, own.at(c), 0, own.batch[c.Data].Len(), plan.Micro{Whole: true})
		}
	}
	acts.top = mark
	o.activations(acts, c, k, b, m)
	acts.top = mark
	for _, i := range o.entries[c.CFG] {
		rows := o.rows(m, i)
		for _, n := range o.kinds[k] {
			plan.EachAttention(o.Spec.Blocks[n.block], func(imageOnly bool) {
				before := comm.top
				if o.plan.KV8 || o.plan.InOrder() && o.plan.Pipe == 1 && !o.stores { // memory of the attention alone
					l := o.Tokens()
					if !imageOnly {
						l += o.Sequence(i).Text
					}
					comm.alloc(b * l * 2 * o.heads(c)[c.Ulysses].Len() * o.Spec.HeadDim)
				}
				o.exchangeBuffers(comm, c, rows, b, imageOnly)
				comm.top = before
			})
		}
	}
}

// blockParams returns the parameters of block n on a tensor rank: projections are split, modulation and norms are not.
func (o *Partition) blockParams(n int) int64 {
	b := o.Spec.Blocks[n]
	if o.plan.Tensor == 1 {
		return b.Params
	}
	shared := int64(float64(o.Spec.Width*o.Spec.Width) * tokenWeights(o.Spec, b))
	if b.Kind == dit.Double {
		shared *= 2 // text and image have separate weights
	}
	if b.Skip >= 0 {
		shared -= 2 * int64(o.Spec.Width*o.Spec.Width) // the skip's projection is whole
	}
	shared = min(shared, b.Params)
	return b.Params - shared + (shared+int64(o.plan.Tensor)-1)/int64(o.plan.Tensor)
}

// tokenWeights returns how many weights one token is multiplied by in a block, in units of E^2: 4 for attention, less
// where several queries share a key, 1 for its gate, 2 r for an MLP of ratio r, 2 for cross-attention (queries and
// output; keys and values are computed once), 4 for a second attention, 2 for a skip.
func tokenWeights(spec *dit.Spec, b dit.BlockSpec) float64 {
	w := 2 + 2/float64(spec.Group()) + 2*spec.MLPRatio
	if b.GatedAttention {
		w++
	}
	if b.Kind == dit.Cross && !b.Sandwich {
		w += 2
	}
	if b.Attends > 1 {
		w += 4
	}
	if b.Skip >= 0 {
		w += 2
	}
	return w
}

// traits are what the shape of a model implies for its tables: skip-connected models modulate by a shift alone; in
// models of sandwich blocks the text first goes through such blocks of its own; bare control nets have neither text nor
// positions.
type traits struct{ shiftOnly, sandwich, gated, serial, bare bool }

func traitsOf(spec *dit.Spec) traits {
	first := &spec.Blocks[0]
	return traits{plan.Skips(spec), first.Sandwich, first.Gated, first.Serial, spec.ContextDim == 0}
}

// modulation returns how many modulation values block n has per timestep, by stream.
func (o *Partition) modulation(n int) (image, text int) {
	e := o.Spec.Width
	switch b := o.Spec.Blocks[n]; {
	case o.Spec.OneModulation, o.Spec.Distilled > 0:
		return 0, 0
	case b.Sandwich:
		return 4 * e, 0
	case o.Spec.Tables, o.bare:
		return 6 * e, 0
	case b.Kind == dit.Single && b.AttentionFeedsMLP:
		return 6 * e, 0
	case b.Kind == dit.Single:
		return 3 * e, 0
	case b.Kind == dit.Cross && o.shiftOnly:
		return 2 * e, 0
	default:
		image, text = 6*e, 6*e
		if b.Attends > 1 {
			image = 9 * e
		}
		if b.LastText {
			text = 2 * e
		}
		return image, text
	}
}

// localHeads returns the number of key and value heads of a tensor rank.
func (o *Partition) localHeads(c plan.Coord) int {
	return dit.Held{Rank: c.Tensor, Ranks: o.plan.Tensor}.Share(o.Spec.Groups()).Len()
}

// sessionEntry adds what is kept of one entry, and the peak until it is prepared. It returns the bytes of its K/V
// store.
func (o *Partition) sessionEntry(s *stack, c plan.Coord, k, i, b int) (kv int64) {
	at, back := o.Lanes[k], o.back(k)
	spec, e, lt, li, n := o.Spec, o.Spec.Width, o.each*o.Text[i], o.Tokens(), o.each
	vector := !spec.JointText() || spec.PooledDim > 0 // has a vector that does not depend on the timestep
	embeds := !o.plan.Held(o.Lanes, c).NoEmbed
	switch { // text, or what its keys and values are computed from
	case spec.JointText() && !embeds || o.bare:
	case spec.JointText():
		s.alloc(n * o.Sequence(i).Text * e)
	case o.shiftOnly:
		s.f32(lt * spec.ContextDim)
	default:
		s.f32(lt * e)
	}
	if vector {
		s.f32(n * e)
	}
	if !spec.Rotates && embeds && !o.bare {
		s.alloc(li * e)
	}
	if spec.Rotates {
		table := (o.Sequence(i).Text + li) * (spec.HeadDim / 2)
		s.f32(table)
		s.f32(table)
	}
	if embeds {
		s.f32(n * li * spec.Concat * spec.PatchSize * spec.PatchSize)
	}
	if o.bare { // the pooled vector goes through two MLPs
		s.f32Scratch(n*e, n*spec.PooledDim, n*e)
	} else if o.shiftOnly {
		// two text encoders, of which the first gives 77 tokens; the states of the second go through an MLP of four
		// times their width
		second := max(lt-77*n, 0)
		s.f32Scratch(second*spec.Context2Dim, min(lt, 77*n)*spec.ContextDim, 4*second*spec.Context2Dim)
	} else if !vector {
		if spec.TakesGuidance && spec.Distilled == 0 {
			s.f32(n * e)
			s.f32Scratch(n*256, n*e)
		}
		if embeds {
			o.textScratch(s, i)
		}
	} else if spec.JointText() {
		if embeds {
			o.textScratch(s, i)
		}
		s.f32Scratch(n*spec.PooledDim, n*e)
	} else {
		s.f32Scratch(lt*spec.ContextDim, lt*e)
	}
	if o.net != nil {
		o.hints(s, b)
	}
	o.modulate(s, c, n*min(o.Evaluations, plan.ModulationRows))
	before := s.top
	if o.plan.Pipe > 1 {
		heads := o.heads(c)[c.Ulysses].Len()
		spare := 0
		for j, blk := range spec.Blocks {
			for a := range max(blk.Attends, 1) {
				if mine := at.Has(j); !mine && (!o.spreads(k) || o.plan.KV8 || back.Has(j) || a < spare) {
					continue // other stages' blocks take turns in the spare memory
				} else if !mine {
					spare++
				}
				rows := b * plan.StoreRows(o.Sequence(i).Text, li, a) * 2 * heads
				if o.plan.KV8 {
					s.take(rows*spec.HeadDim, 1)
					s.f32(rows)
					continue
				}
				s.alloc(rows * spec.HeadDim)
			}
		}
	}
	kv = s.top - before
	for _, blk := range spec.Blocks {
		switch own := blk.Skip >= 0 && at.Has(blk.Skip); {
		case own && o.plan.Pipe == 1:
			s.alloc(b * o.keptImage(c, i) * e)
		case own:
			s.alloc(b * li * e)
		case blk.Skip >= 0 && o.spreads(k):
			s.alloc(b * o.spreadOut.keptImage(o.spreadCoord(c), i) * e)
		}
	}
	s.f32(valueOf(o.Biases, i) * (o.Sequence(i).Text + li))
	return kv
}

// textScratch adds the buffers in which the text of entry i, and then its references, are embedded: the context, in
// sandwich models also its projection and what the blocks of the text need.
func (o *Partition) textScratch(s *stack, i int) {
	mark, e, own, lt := s.top, o.Spec.Width, o.each*o.Text[i], o.each*o.Sequence(i).Text
	s.f32Scratch(o.each * o.Prefix * e)
	s.f32(own * o.Spec.ContextDim)
	if taps := o.Spec.Taps; taps > 0 && own > 0 {
		w, some := o.Spec.ContextDim/taps, min(own, dit.TappedTokens)
		s.f32(own * w)
		for _, rows := range []int{some * taps, own} { // blocks over the taps of some tokens, then over all tokens
			s.f32Scratch(rows*w, rows*w, rows*w, rows*w, rows*w)
			s.f32Scratch(rows*w, rows*o.Spec.TapsMLP, rows*o.Spec.TapsMLP)
		}
		s.f32(own * e)
	}
	if o.sandwich {
		s.alloc(own * e)
	}
	s.f32Scratch(s.projected(own * e))
	if r := o.each * valueOf(o.References, i); r > 0 {
		s.top = mark
		s.f32Scratch(r*o.Spec.Channels*o.Spec.PatchSize*o.Spec.PatchSize, s.projected(r*e))
	}
	if o.sandwich {
		s.alloc(lt * e)
		s.alloc(lt * e)
		s.scratch(lt*(e+2*e/o.Spec.Group()), lt*e)
		s.scratch(lt*o.hidden(), lt*o.hidden())
	}
	s.top = mark
}

// hidden returns the width between the projections of an MLP. A gated MLP has three projections of this width.
func (o *Partition) hidden() int {
	wide := o.Spec.MLPRatio * float64(o.Spec.Width)
	if o.gated {
		wide *= 2. / 3
	}
	return int(math.Round(wide))
}

// keptImage returns how many image rows of entry i rank c keeps in an evaluation of the whole image.
func (o *Partition) keptImage(c plan.Coord, i int) int {
	return o.plan.Kept(o.rows(plan.Micro{Whole: true}, i)[c.SequenceRank(o.plan)], c.Tensor).Image.Len()
}

// modulate adds what is computed before the blocks for the given number of timesteps: the head's modulation, and what
// the modulations of the blocks are computed from.
func (o *Partition) modulate(s *stack, c plan.Coord, rows int) {
	e, head := o.Spec.Width, o.net == nil && !o.plan.Held(o.Lanes, c).NoHead
	if o.sandwich { // a narrow vector; the head's scale, and a -1 for each value that it writes
		n := o.Spec.OutChannels * o.Spec.PatchSize * o.Spec.PatchSize
		s.f32(rows * o.Spec.VectorDim)
		if head {
			s.f32(rows * (e + n))
			s.f32Scratch(rows*256, rows*e, rows*n)
		}
		return
	}
	if d, n := o.Spec.Distilled, o.Spec.Modulations(); d > 0 { // computed one timestep after the other
		s.f32(rows * n * e)
		s.f32Scratch(64*n, n*d, n*d, n*d)
		return
	}
	if head {
		s.f32(rows * 2 * e)
	}
	if o.Spec.OneModulation {
		s.f32(rows * 15 * e)
		s.f32Scratch(rows*e, rows*256, rows*e)
		return
	}
	if o.Spec.Tables { // one projection for all blocks
		s.f32(rows * 6 * e)
		s.f32Scratch(rows*e, rows*256, rows*e)
		return
	}
	s.f32(rows * e)
	s.f32Scratch(rows*256, rows*e)
}

// sessionBlock adds what is kept of one entry for block n: modulations, and keys and values of the text.
func (o *Partition) sessionBlock(s *stack, c plan.Coord, n, entry int) {
	if !o.Spec.JointText() && !o.bare {
		kv := o.each * o.Text[entry] * 2 * o.localHeads(c) * o.Spec.HeadDim
		s.alloc(kv)
		s.f32Scratch(s.projected(kv))
	}
	o.modulated(s, n, o.each*min(o.Evaluations, plan.ModulationRows))
}

// modulated adds the modulations of block n for the given number of timesteps.
func (o *Partition) modulated(s *stack, n, rows int) {
	image, text := o.modulation(n)
	s.f32(rows * image)
	s.f32(rows * text)
	if o.Spec.Blocks[n].Sandwich { // hyperbolic tangents
		s.f32Scratch(2, rows*o.Spec.Width, rows*o.Spec.Width)
	}
}

// begin adds what a lane allocates for all entries at the start of a micro-step. It returns, by entry, the rows that c
// keeps and those that it computes.
func (o *Partition) begin(s *stack, c plan.Coord, k, b int, m plan.Micro) (mine, wide []dit.Rows) {
	spec, e := o.Spec, o.Spec.Width
	for _, i := range o.entries[c.CFG] {
		all := o.rows(m, i)[c.SequenceRank(o.plan)]
		r := o.plan.Kept(all, c.Tensor)
		mine, wide = append(mine, r), append(wide, all)
		o.modulate(s, c, o.each) // for a timestep that was not announced
		s.alloc(b * r.Len() * e)
		if together := all.Text.End == o.Sequence(i).Text && all.Image.Start == 0; spec.Rotates && all.Text.Len() > 0 &&
			all.Image.Len() > 0 && !together {
			s.f32(all.Len() * spec.HeadDim / 2)
			s.f32(all.Len() * spec.HeadDim / 2)
		}
		if k == 0 {
			s.alloc(b * r.Image.Len() * spec.Channels * spec.PatchSize * spec.PatchSize)
		}
		if o.bare { // the rows that all blocks start from
			s.alloc(b * r.Image.Len() * e)
		}
	}
	return mine, wide
}

// activations adds the activations of one micro-step of a lane, for all entries.
func (o *Partition) activations(s *stack, c plan.Coord, k, b int, m plan.Micro) {
	spec, e := o.Spec, o.Spec.Width
	token := spec.PatchSize * spec.PatchSize
	mine, wide := o.begin(s, c, k, b, m)
	for i, r := range mine {
		if k == 0 && spec.Concat > 0 {
			s.scratch(b * r.Image.Len() * (spec.Channels + spec.Concat) * token)
		}
		for _, n := range o.kinds[k] {
			o.blockScratch(s, c, n.block, wide[i], r, b)
		}
	}
	if o.sends(k) || o.net != nil {
		return
	}
	for _, r := range mine {
		s.alloc(b * r.Image.Len() * spec.OutChannels * token)
		s.scratch(b*r.Image.Len()*e, o.zeros(r.ImageOnly()))
	}
}

// exchangeBuffers adds the buffers of one attention on the sequence axes.
func (o *Partition) exchangeBuffers(s *stack, c plan.Coord, rows []dit.Rows, b int, imageOnly bool) {
	d, g, u, r := o.Spec.HeadDim, o.Spec.Group(), o.plan.Ulysses, o.plan.Ring
	mine := attended(rows[c.SequenceRank(o.plan)], imageOnly)
	group := o.gathered(rows, c.Ring, imageOnly)
	heads := o.heads(c)
	own, all := heads[c.Ulysses].Len(), heads[u-1].End
	var sizes []int // all are live until the attention ends
	switch {
	case r > 1 && o.stored():
		everyone := 0
		for i := range r {
			everyone += o.gathered(rows, i, imageOnly)
		}
		sizes = append(sizes, group*b*2*own*d, everyone*b*2*own*d)
	case r > 1:
		most, sums := 0, b*g*own*group*4/s.value // sums of exponentials are f32
		for i := range r {
			most = max(most, o.gathered(rows, i, imageOnly))
		}
		sizes = append(sizes, most*b*2*own*d, most*b*2*own*d, b*group*g*own*d, sums, sums)
	}
	if u > 1 {
		sizes = append(sizes, group*b*(g+2)*own*d, (g+2)*mine*b*all*d, group*b*g*own*d, mine*b*g*all*d)
	}
	s.scratch(sizes...)
}

// linkBuffers adds the buffers that rank.stageLink has for lane k of rank c.
func (o *Partition) linkBuffers(s *stack, c plan.Coord, k, b int) {
	if len(o.Lanes) == 1 || len(o.Patches) == 1 || !o.plan.Overlap {
		return
	}
	sides := 2
	if k == 0 || k == len(o.Lanes)-1 {
		sides = 1
	}
	for range sides * plan.PostsAhead {
		for _, i := range o.entries[c.CFG] {
			most := 0
			for _, j := range []int{0, 1, len(o.Patches) - 1} {
				most = max(most, o.plan.Kept(o.rows(plan.Micro{Patch: j}, i)[c.SequenceRank(o.plan)], c.Tensor).Len())
			}
			s.alloc(b * most * o.Spec.Width)
		}
	}
}
