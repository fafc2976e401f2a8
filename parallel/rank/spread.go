package rank

import (
	"maps"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// Synchronous evaluations of a pipeline may be spread: instead of passing the whole picture from stage to stage, which
// leaves all stages but one idle, all of them run all blocks on their part of the sequence. Keys and values go to
// everybody with one all-gather for each attention, so each rank ends with whole stores for the blocks of its own
// stage, as after a synchronous evaluation; those of other blocks pass through one spare piece of memory. Every rank
// needs the weights of all blocks for it: in-process ranks share them, devices pay for them.

// spreads tells whether c runs on all stages at once.
func (s *session) spreads(c *EvaluateCommand) bool { return c.Whole && s.open.Plan.Spread }

// up tells whether this rank is the lane on which micro-steps of a folded pipeline come back to their stage.
func (s *session) up() bool { return s.comms[plan.AxisPipe].Rank() >= s.open.Plan.Pipe }

// prepared is the blocks that entries are prepared for.
func (s *session) prepared() dit.Range {
	if s.open.Plan.Spread && !s.up() {
		return dit.Range{End: len(s.model.Spec().Blocks)}
	}
	return s.held.Range
}

// outer is the comm of the ranks that K and V are shared with: the ring, with all stages in a spread evaluation.
func (s *session) outer(c *EvaluateCommand) comm.Comm {
	if s.spreads(c) {
		return s.comms[plan.AxisSpread]
	}
	return s.comms[plan.AxisRing]
}

// widen takes what spread evaluations of an entry need besides its store. On a folded pipeline the down lane of a stage
// runs them, and keys and values of the blocks that its up lane owns go into the up lane's store, which that one lends:
// both are on one device, and neither works while the other one does.
func (s *session) widen(entry int, e *sessionEntry) {
	if !s.open.Plan.Spread {
		return
	}
	if s.up() {
		s.skips.lend(skipKey{s.id, entry, backStore}, e.store)
		return
	}
	if plan.Skips(s.model.Spec()) {
		e.skips = map[int]engine.Tensor{}
	}
	e.wide = e.store.widened(s.env, s.model.Spec(), s.open.Batch, s.heads(), s.back())
}

// back is the blocks of the up lane of this stage; none on the last stage and without a fold.
func (s *session) back() plan.Lane {
	k := len(s.open.Lanes) - 1 - s.comms[plan.AxisPipe].Rank()
	if k < s.open.Plan.Pipe {
		return plan.Lane{}
	}
	return s.open.Lanes[k]
}

// spreadRows is the image rows of this rank in a spread evaluation.
func (s *session) spreadRows(size plan.Sequence) dit.Range {
	spread := s.comms[plan.AxisSpread]
	if !s.open.Plan.Spread || s.up() {
		return dit.Range{}
	}
	ulysses, whole := s.comms[plan.AxisUlysses], EvaluateCommand{Whole: true}
	rows := whole.Rows(size, s.open.Plan.Places(true))[spread.Rank()*ulysses.Size()+ulysses.Rank()]
	return s.open.Plan.Kept(rows, s.comms[plan.AxisTensor].Rank()).Image
}

// borrow fills places with those of another store that has them.
func (s *kvStore) borrow(other *kvStore) {
	if other == nil {
		return
	}
	maps.Copy(s.kv, other.kv)
	if s.small != nil {
		maps.Copy(s.small, other.small)
	}
}

// widened is the store of a spread evaluation: own blocks in their places, those of back left out (they are borrowed),
// the others in spare memory, one after the other.
func (s *kvStore) widened(env dit.Env, spec *dit.Spec, b, heads int, back plan.Lane) *kvStore {
	out := &kvStore{lt: s.lt, li: s.li, kv: map[[2]int]engine.Tensor{}, small: maps.Clone(s.small), heads: s.heads}
	if s.small != nil { // its attentions bring their own memory
		return out
	}
	var spare []engine.Tensor
	for i, blk := range spec.Blocks {
		for a := range max(blk.Attends, 1) {
			at := [2]int{i, a}
			if own, ok := s.kv[at]; ok {
				out.kv[at] = own
				continue
			}
			if back.Keeps(i) {
				if env.Arena.Measuring() { // memory of the other lane
					out.kv[at] = engine.NewMeasuringArena("lent").Alloc(env.DType, b, plan.StoreRows(s.lt, s.li, a), 2,
						heads, spec.HeadDim)
				}
				continue
			}
			if a == len(spare) {
				spare = append(spare, env.Arena.Alloc(env.DType, b, plan.StoreRows(s.lt, s.li, a), 2, heads, spec.HeadDim))
			}
			out.kv[at] = spare[a]
		}
	}
	return out
}
