package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
)

// patched is a model patch on an entry. It changes each row without reading others, so every split of tokens, heads,
// entries and blocks applies it to the rows that it has.
type patched struct {
	model dit.Patch
	hint  engine.Tensor // [1, L, E] of the whole picture, which pipelines cut differently
	gate  engine.Tensor // [1, E], the strength
}

// preparePatch embeds the hint of a patch on entry i.
func (s *session) preparePatch(i int, c ControlInput) error {
	model, ok := s.resident(c.Model)
	m, isPatch := dit.As[dit.Patch](model)
	if !ok || !isPatch {
		return fmt.Errorf("model patch %s is not resident", c.Model)
	}
	p, err := m.Prepare(s.env, []dit.Entry{c.Entry}, s.entries[i].grid)
	if err != nil {
		return fmt.Errorf("entry %d: %w", i, err)
	}
	s.entries[i].patches = append(s.entries[i].patches, patched{model: m, hint: p.Hint, gate: s.gate(c.Strength)})
	return nil
}

// patch applies the model patches of a run's entry to its image rows after block b, one after the other.
func (s *session) patch(env dit.Env, run *entryRun, b int) {
	r := run.state.Rows.Image
	for _, p := range s.entries[run.entry].patches {
		layer(env, "patch")
		p.model.Apply(env, b, run.state, p.hint.Slice(1, r.Start, r.End), p.gate)
	}
}
