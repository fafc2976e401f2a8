package rank

import (
	"patchbay/engine"
	"patchbay/models/dit"
)

// Synchronous evaluations of a pipeline may be spread: instead of passing the whole picture from stage to stage, which
// leaves all stages but one idle, all of them run all blocks on their part of the sequence. One all-gather per
// attention gives keys and values to everyone, so that each rank ends with whole stores for the blocks of its own
// stage, as after any synchronous evaluation. Those of other blocks share one spare piece of memory. Every rank needs
// the weights of all blocks for this: ranks in one process share them, devices each hold them.

// spread is the method of a rank that runs all blocks in spread evaluations and those of its stage in others.
type spread struct {
	newStore  func() attention // makes a method that stores keys and values
	thisLane  attention        // for the blocks of this lane
	upLane    attention        // for those of the up lane of this stage; nil: not looked up yet
	elsewhere attention        // for those of other stages
	lane      lane
	lanes     *LaneStore
	entry     entryKey
}

// Reserve implements attention. In a folded pipeline the down lane of a stage runs spread evaluations, and keys and
// values of the blocks that its up lane owns go into the up lane's store: both lanes are on one device, and never work
// at the same time.
func (m *spread) Reserve(env dit.Env, e extent) (keys []dit.Rows) {
	m.thisLane = m.newStore()
	keys = m.thisLane.Reserve(env, e)
	other, back := e, e
	other.blocks, back.blocks = nil, nil
	for b := range e.spec.Blocks {
		switch {
		case m.lane.back.Has(b):
			back.blocks = append(back.blocks, b)
		case !m.lane.held.Has(b):
			other.blocks = append(other.blocks, b)
		}
	}
	m.elsewhere.Reserve(env, other)
	if env.Arena.Measuring() { // the up lane and its memory are not there
		env.Arena = engine.NewMeasuringArena("lent")
		m.upLane = m.newStore()
		m.upLane.Reserve(env, back)
	}
	return keys
}

func (m *spread) Attend(s *sequence, a dit.Attention, h heads) {
	switch {
	case !s.whole || m.lane.held.Has(a.Block):
		m.thisLane.Attend(s, a, h)
	case m.lane.back.Has(a.Block):
		if m.upLane == nil {
			m.upLane = m.lanes.store(m.entry)
		}
		m.upLane.Attend(s, a, h)
	default:
		m.elsewhere.Attend(s, a, h)
	}
}

// spare is stored for blocks whose keys and values nobody reads later: they share memory, one after the other.
type spare struct{ stored }

func (m *spare) Reserve(env dit.Env, e extent) (keys []dit.Rows) {
	m.size, m.rows = e.size, map[attentionKey]engine.Tensor{}
	var shared []engine.Tensor
	e.each(func(at attentionKey, rows int) {
		if at.index == len(shared) {
			shared = append(shared, e.alloc(env, rows))
		}
		m.rows[at] = shared[at.index]
	})
	return e.inOrder()
}

// sharedStore is the method of an up lane: the down lane of its stage uses it in spread evaluations.
type sharedStore struct {
	attention
	lanes *LaneStore
	entry entryKey
}

func (m *sharedStore) Reserve(env dit.Env, e extent) (keys []dit.Rows) {
	keys = m.attention.Reserve(env, e)
	m.lanes.putStore(m.entry, m.attention)
	return keys
}
