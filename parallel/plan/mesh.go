package plan

// Mesh numbers the ranks of a plan: axes from outer to inner are data, cfg, pipe, ring, ulysses, tensor, so that ranks
// that communicate most are neighbors.
type Mesh struct {
	Plan Plan
	// Stages is the number of stages where Plan.Pipe counts lanes. The first Stages lanes are the down lanes, the
	// others the up lanes. 0: Plan.Pipe.
	Stages int
}

// Coord is a rank's position on every axis.
type Coord struct{ Data, CFG, Pipe, Ring, Ulysses, Tensor int }

// At returns the coordinates of a rank.
func (m Mesh) At(rank int) Coord {
	var c Coord
	take := func(degree int) int {
		i := rank % degree
		rank /= degree
		return i
	}
	p := m.Plan
	c.Tensor, c.Ulysses, c.Ring = take(p.Tensor), take(p.Ulysses), take(p.Ring)
	c.Pipe, c.CFG, c.Data = take(p.Pipe), take(p.CFG), take(p.Data)
	return c
}

// Rank is the inverse of At.
func (m Mesh) Rank(c Coord) int {
	p := m.Plan
	return ((((c.Data*p.CFG+c.CFG)*p.Pipe+c.Pipe)*p.Ring+c.Ring)*p.Ulysses+c.Ulysses)*p.Tensor + c.Tensor
}

// Axis is one direction of the mesh.
type Axis int

// The axes along which ranks exchange.
const (
	AxisUlysses Axis = iota
	AxisRing
	AxisPipe
	AxisTensor
	AxisSpread // pipe and ring together, pipe outermost: spread evaluations
	AxisShard  // ranks that hold parts of the same weights
	AxisStream // a rank and its host memory, from which it reads weights
	AxisCount  // the number of axes
)

// String names the axis as plans do.
func (a Axis) String() string {
	return [...]string{"ulysses", "ring", "pipe", "tensor", "spread", "shard", "stream"}[a]
}

// Along returns the ranks of the group of rank c along an axis, in order, and the position of c among them.
func (m Mesh) Along(a Axis, c Coord) (ranks []int, at int) {
	switch a {
	case AxisShard:
		return m.sharers(c)
	case AxisStream:
		return []int{m.Rank(c)}, 0
	}
	degree, set := 0, func(*Coord, int) {}
	switch a {
	case AxisUlysses:
		degree, at, set = m.Plan.Ulysses, c.Ulysses, func(c *Coord, i int) { c.Ulysses = i }
	case AxisRing:
		degree, at, set = m.Plan.Ring, c.Ring, func(c *Coord, i int) { c.Ring = i }
	case AxisPipe:
		degree, at, set = m.Plan.Pipe, c.Pipe, func(c *Coord, i int) { c.Pipe = i }
	case AxisTensor:
		degree, at, set = m.Plan.Tensor, c.Tensor, func(c *Coord, i int) { c.Tensor = i }
	}
	if a == AxisSpread {
		r, stages := m.Plan.Ring, m.StageCount()
		if c.Pipe >= stages { // an up lane leaves spread evaluations to the down lane of its stage
			return []int{m.Rank(c)}, 0
		}
		degree, at, set = stages*r, c.Pipe*r+c.Ring, func(c *Coord, i int) { c.Pipe, c.Ring = i/r, i%r }
	}
	for i := range degree {
		set(&c, i)
		ranks = append(ranks, m.Rank(c))
	}
	return ranks, at
}

func (m Mesh) StageCount() int {
	if m.Stages > 0 {
		return m.Stages
	}
	return m.Plan.Pipe
}

// sharers returns the ranks among which the weights of rank c are sharded, in order, and the position of c among them.
// If weights are not sharded, c is alone.
func (m Mesh) sharers(c Coord) (ranks []int, at int) {
	if m.Plan.Parts() == 1 {
		return []int{m.Rank(c)}, 0
	}
	for r := range m.Plan.Ranks() {
		o := m.At(r)
		if o.Pipe != c.Pipe || o.Tensor != c.Tensor {
			continue
		}
		if o == c {
			at = len(ranks)
		}
		ranks = append(ranks, r)
	}
	return ranks, at
}

// SequenceRank returns a rank's position among those that split the tokens of one image: ring outside, ulysses inside.
func (c Coord) SequenceRank(p Plan) int { return c.Ring*p.Ulysses + c.Ulysses }
