package rank

import (
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// session is one request on one rank: the network of its model, and what belongs to it alone.
type session struct {
	network
	skips   skips
	control control
	stages  *stageExchange
	peek    func(i int) *Command // peeks at waiting commands; nil: none are
	replays replays
	usage   usage
}

// usage is what a session has used so far.
type usage struct {
	tokens TokenCount
	sent   [plan.AxisCount]comm.Traffic
	chosen map[string]int64 // counts of the device before the session
}

// count counts the rows of an entry in a micro-step.
func (u *usage) count(rows dit.Rows, items int) {
	u.tokens.Text += int64(rows.Text.Len() * items)
	u.tokens.Image += int64(rows.Image.Len() * items)
}

// prepare prepares the model, its control nets and patches, and the exchange with other stages.
func (s *session) prepare() error {
	err := s.network.prepare(func(i int, e *sessionEntry) { s.skips.reserve(&s.network, i, e) })
	if err != nil {
		return err
	}
	if err := s.control.prepare(&s.network); err != nil {
		return err
	}
	var values []int
	if p := s.open.Plan; p.Pipe > 1 && p.Patches > 1 && p.Overlap && len(s.entries) > 0 {
		values = s.largestPatch()
	}
	s.stages = newStageExchange(s.comms[plan.AxisPipe], s.comm, s.env.DType, values)
	return nil
}

// largestPatch returns, by entry, the most values [B, L/P, E] that a stage receives in one micro-step of a patch.
func (s *session) largestPatch() []int {
	out := make([]int, len(s.entries))
	for m, tokens := range plan.PatchRanges(s.open.Text, s.entries[0].grid, s.open.Plan.Patches) {
		c := EvaluateCommand{Patch: m, Tokens: tokens, Text: m == 0}
		for i := range s.entries {
			out[i] = max(out[i], s.values(&c, i))
		}
	}
	return out
}

// values returns how many values of an entry a micro-step passes from stage to stage.
func (s *session) values(c *EvaluateCommand, entry int) int {
	e := s.entries[entry]
	if e.p == nil {
		return 0
	}
	_, _, narrow := s.rows(c, e)
	return s.open.Batch * narrow.Len() * s.model.Spec().Width
}

// lookAhead posts receives for commands that are waiting.
func (s *session) lookAhead() {
	if s.stages.in == nil || s.peek == nil || s.replays.recording {
		return
	}
	for i := s.stages.posted; i < plan.PostsAhead; i++ {
		c := s.peek(i)
		if c == nil || c.Session != s.id || c.Evaluate == nil || c.Evaluate.Whole {
			return
		}
		values := make([]int, len(c.Evaluate.Entries))
		for k, e := range c.Evaluate.Entries {
			values[k] = s.values(c.Evaluate, e)
		}
		s.stages.post(c.Evaluate.Entries, values)
	}
}
