package rank

import (
	"maps"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// Synchronous evaluations of a pipeline may be spread: instead of passing the whole picture from stage to stage, which
// leaves all stages but one idle, all of them run all blocks on their part of the sequence. One all-gather per
// attention gives keys and values to everyone, so that each rank ends with whole stores for the blocks of its own
// stage, as after any synchronous evaluation. Those of other blocks share one spare piece of memory. Every rank needs
// the weights of all blocks for this: ranks in one process share them, devices each hold them.

// spreads reports whether c runs on all stages at once.
func (s *session) spreads(c *EvaluateCommand) bool { return c.Whole && s.open.Plan.Spread }

// up reports whether this rank is an up lane, on which micro-steps of a folded pipeline come back to their stage.
func (s *session) up() bool { return s.comms[plan.AxisPipe].Rank() >= s.open.Plan.Pipe }

// prepared returns the blocks that entries are prepared for.
func (s *session) prepared() dit.Range {
	if s.open.Plan.Spread && !s.up() {
		return dit.Range{End: len(s.model.Spec().Blocks)}
	}
	return s.held
}

// outer returns the comm of the ranks that share K and V: the ring, together with all stages in a spread evaluation.
func (s *session) outer(c *EvaluateCommand) comm.Comm {
	if s.spreads(c) {
		return s.comms[plan.AxisSpread]
	}
	return s.comms[plan.AxisRing]
}

// rows returns what the ranks of the sequence compute of an entry in an evaluation (ring outside), the part of this
// rank, and what it keeps of that between products.
func (s *session) rows(c *EvaluateCommand, e *sessionEntry) (all []dit.Rows, wide, kept dit.Rows) {
	p, ulysses := s.open.Plan, s.comms[plan.AxisUlysses]
	places := p.Places(s.spreads(c))
	all = c.Rows(s.size(e), places)
	if s.controlNet != nil { // the image rows of the model, whose text may be of another length
		for i, r := range c.Rows(e.modelSequence, places) {
			all[i].Image = e.imageOf(r)
		}
	}
	wide = all[s.outer(c).Rank()*ulysses.Size()+ulysses.Rank()]
	return all, wide, p.Kept(wide, s.comms[plan.AxisTensor].Rank())
}

// size returns how many tokens of an entry go through the blocks.
func (s *session) size(e *sessionEntry) plan.Sequence {
	return plan.Sequence{Text: s.textOf(e.p), Image: e.grid.Tokens()}
}

// whole returns an evaluation of all tokens, as far as rows are concerned.
func whole() *EvaluateCommand { return &EvaluateCommand{Whole: true} }

// widen takes what spread evaluations of an entry need besides its store. In a folded pipeline the down lane of a stage
// runs them, and keys and values of the blocks that its up lane owns go into the up lane's store, which it lends: both
// lanes are on one device, and never work at the same time.
func (s *session) widen(entry int, e *sessionEntry) {
	if !s.open.Plan.Spread {
		return
	}
	if s.up() {
		s.lanes.lend(entryKey{s.id, entry}, e.store)
		return
	}
	if plan.Skips(s.model.Spec()) {
		e.skips = map[int]engine.Tensor{}
	}
	e.wide = e.store.widened(s.env, s.model.Spec(), s.open.Batch, s.back())
}

// back returns the blocks of the up lane of this stage; none on the last stage and without a fold.
func (s *session) back() dit.Range {
	k := len(s.open.Lanes) - 1 - s.comms[plan.AxisPipe].Rank()
	if k < s.open.Plan.Pipe {
		return dit.Range{}
	}
	return s.open.Lanes[k]
}

// spreadRows returns the image rows of this rank in a spread evaluation.
func (s *session) spreadRows(e *sessionEntry) dit.Range {
	if !s.open.Plan.Spread || s.up() {
		return dit.Range{}
	}
	_, _, kept := s.rows(whole(), e)
	return kept.Image
}

// borrow adds the places that another store has, which replace those for the same attentions.
func (s *kvStore) borrow(other *kvStore) {
	if other != nil {
		maps.Copy(s.at, other.at)
	}
}

// widened returns the store for spread evaluations: own blocks keep their places, those of back are left out (they are
// borrowed), and the others use spare memory, one after the other.
func (s *kvStore) widened(env dit.Env, spec *dit.Spec, b int, back dit.Range) *kvStore {
	out := *s
	out.at = maps.Clone(s.at)
	if s.apart { // its attentions allocate their own memory
		return &out
	}
	var spare []stored
	for i, blk := range spec.Blocks {
		for a := range max(blk.Attends, 1) {
			at := [2]int{i, a}
			if _, own := s.at[at]; own {
				continue
			}
			if back.Has(i) {
				if env.Arena.Measuring() { // memory of the other lane
					lent := env
					lent.Arena = engine.NewMeasuringArena("lent")
					out.at[at] = s.alloc(lent, spec, b, a)
				}
				continue
			}
			if a == len(spare) {
				spare = append(spare, s.alloc(env, spec, b, a))
			}
			out.at[at] = spare[a]
		}
	}
	return &out
}
