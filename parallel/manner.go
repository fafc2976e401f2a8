package parallel

// Manner is how a program carries out a plan: what it does besides the arithmetic, and which of it overlaps. Ours is Patchbay's executor; the tests
// describe another program in the same terms, to compare predictions with numbers that were measured with it.
type Manner struct {
	// Passes is how often a block reads or writes its rows [rows, E] in memory for element-wise work.
	Passes float64 `json:"passes"`
	// MergePasses is the same for the rows of a ring, each time a part of the attention is merged with what came before.
	MergePasses float64 `json:"merge_passes"`
	// Reductions is the sums over a tensor group that a block makes; 0: as many as Patchbay's.
	Reductions int `json:"reductions"`
	// Launches is the operations that the host starts for one block and stream.
	Launches float64 `json:"launches"`
	// Gap is seconds between two operations that depend on each other, in which the device drains and fills again: what many small patches pay for.
	Gap float64 `json:"gap"`
	// Exchanges is the all-to-alls of one Ulysses attention: 2 where Q, K and V travel together, 4 where each goes alone.
	Exchanges int `json:"exchanges"`
	// Together runs all entries of a rank as one batch, so that operations are started once for all of them.
	Together bool `json:"together"`
	// RingOverlap hides a ring's transfers behind its attention.
	RingOverlap bool `json:"ring_overlap"`
	// Slots is how many messages a pipeline link holds: 0 is a rendezvous, 2 double-buffered sends.
	Slots int `json:"slots"`
	// Blocking makes a stage stand still while it sends, even where a slot is free.
	Blocking bool `json:"blocking"`
	// Stall is seconds lost by a stage in every micro-step, for device-wide synchronisation.
	Stall float64 `json:"stall"`
	// TextEveryPatch computes the text again with every patch.
	TextEveryPatch bool `json:"text_every_patch"`
	// ColdStart lets warm-up 0 begin with stale evaluations on whatever the store holds.
	ColdStart bool `json:"cold_start"`
	// EvenPatches and EvenStages cut by number, not by cost: patches of the same size, stages of ceil(blocks/stages) blocks.
	EvenPatches bool `json:"even_patches"`
	EvenStages  bool `json:"even_stages"`
}

// Ours is the manner of Patchbay's executor with transfers beside computation. Passes is what its fused operations read and write, counted in a block of
// FLUX: norms 4, queries and keys 4, residuals 4; a merge reads two parts and writes one. Launches is the operations of a stream in such a block; Gap is
// that of a recorded graph of operations.
func Ours(overlap bool) Manner {
	m := Manner{Passes: 12, MergePasses: 3, Launches: 9, Gap: 1e-6, Exchanges: 2, Slots: 2}
	if !overlap {
		m.Slots, m.Blocking = 0, true
	}
	return m
}
