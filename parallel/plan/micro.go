package plan

import "fmt"

// Micro names one micro-step.
type Micro struct {
	Evaluation int
	Patch      int
	Whole      bool // synchronous evaluation: the patch is the whole picture
}

// String returns "e3 p1" or "e0 whole".
func (m Micro) String() string {
	if m.Whole {
		return fmt.Sprintf("e%d whole", m.Evaluation)
	}
	return fmt.Sprintf("e%d p%d", m.Evaluation, m.Patch)
}

// ModulationRows bounds how many timesteps have their modulations computed ahead; the rest is computed when its
// evaluation comes.
const ModulationRows = 128

// PostsAhead is how many micro-steps a stage posts receives for before it needs them, and how many it may have on their
// way to the next stage.
const PostsAhead = 2
