package plan

import "fmt"

// Micro identifies one micro-step.
type Micro struct {
	Evaluation int
	Patch      int
	Whole      bool // synchronous evaluation: the patch is the whole image
}

// String returns "e3 p1" or "e0 whole".
func (m Micro) String() string {
	if m.Whole {
		return fmt.Sprintf("e%d whole", m.Evaluation)
	}
	return fmt.Sprintf("e%d p%d", m.Evaluation, m.Patch)
}

// ModulationRows bounds for how many timesteps modulations are computed in advance. Those of the other timesteps are
// computed in their evaluations.
const ModulationRows = 128

// PostsAhead is how many micro-steps in advance a stage posts receives, and how many micro-steps it may have in flight
// to the next stage.
const PostsAhead = 2
