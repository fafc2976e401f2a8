package dit

import "patchbay/engine"

// Shards are the weights of a Model of which some are not in place when they are needed: a unit is brought into a slot
// just before it is used, the next one while it is in use. It is gathered from ranks that hold a part of its bytes each
// (Held.Parts; ZeRO stage 3, arXiv:1910.02054, sec. 5.3), read from host memory (Held.Stream), or both: each rank reads
// its part, which is then gathered. Units are the blocks in order, then everything outside of blocks:
// embeddings, conditioning, head.
type Shards struct {
	Units []Unit
	Part  int // of this rank, in Unit.Counts
	// View returns a model that reads units where they are brought to, and a function that marks the bytes of a unit as
	// present or absent. Reading a weight of a unit that is not open panics. The model has the lifetime of the one that
	// it is a view of, and is not closed.
	View func(slots [2]engine.Buf) (view Model, open func(unit int, yes bool))
	// Reader returns a function that fills dst with this rank's part of a unit from host memory, from byte at on. It may
	// be called from one goroutine at a time. Where a part is packed as it is read, beside makes the Ops for that, and
	// dst must be the whole part.
	Reader func(beside func() (engine.Ops, error)) (func(unit int, dst []byte, at int) error, error)
}

// SlotBytes returns how many bytes each slot needs.
func (s *Shards) SlotBytes() (n [2]int) {
	for i := range s.Units {
		if u := &s.Units[i]; u.Slot >= 0 {
			n[u.Slot] = max(n[u.Slot], u.Bytes())
		}
	}
	return n
}

// StagingBytes returns how many bytes each place needs to which parts are brought before they are gathered.
func (s *Shards) StagingBytes() (n [2]int) {
	for i := range s.Units {
		if u := &s.Units[i]; u.Staging >= 0 {
			n[u.Staging] = max(n[u.Staging], u.Counts[s.Part])
		}
	}
	return n
}

// Unit is the weights of one block, or of everything outside of blocks. Prepare, Modulate, Embed and Head read the last
// unit; PrepareBlock, ModulateBlock and Block read that of their block.
type Unit struct {
	Counts []int         // bytes that each part holds, in order; one if units are not gathered
	Mine   engine.Tensor // u8 [Counts[part]]: the bytes of this part; absent if they come from host memory
	// Slot is where the unit is brought before its use, 0 or 1; neighbors in the order of use differ where that is
	// possible. -1: it is always in place.
	Slot int
	// Staging is where this part is brought before the unit is gathered, 0 or 1. -1: it is there already, or the whole
	// unit is brought into its slot.
	Staging int
	Stream  bool // the bytes of this part come from host memory
	Read    int  // how many, without padding
}

// Bytes returns the size of the unit.
func (u *Unit) Bytes() (n int) {
	for _, c := range u.Counts {
		n += c
	}
	return n
}
