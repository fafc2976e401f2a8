package dit

import "patchbay/engine"

// Shards are the weights of a Model of which every rank holds only a part of the bytes (Held.Parts; ZeRO stage 3,
// arXiv:1910.02054, sec. 5.3). A unit is gathered just before it is used. Units are the blocks in order, then
// everything outside of blocks.
type Shards struct {
	Units []Unit
}

// Ends returns the index of the unit of everything outside of blocks: embeddings, conditioning, head.
func (s *Shards) Ends() int { return len(s.Units) - 1 }

// Unit is the weights of one block, or of everything outside of blocks. Prepare, Modulate, Embed and Head read the unit
// Ends; PrepareBlock, ModulateBlock and Block read that of their block.
type Unit struct {
	Counts []int         // bytes that each part holds, in order
	Mine   engine.Tensor // u8 [Counts[part]]: the bytes of this part
	Whole  engine.Tensor // u8 [sum of Counts]: where the unit is gathered, all parts in order
	// Buffer is 0 or 1. Units with the same Buffer share the memory of Whole; neighbors in the order of use (Ends
	// before the first block) differ.
	Buffer int
	// Open marks the bytes of Whole as present or absent. Reading a weight of a unit that is not open panics.
	Open func(open bool)
}

// Bytes returns the size of the unit.
func (u *Unit) Bytes() int { return u.Whole.Len() }
