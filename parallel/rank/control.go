package rank

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/dit"
)

// control is what control nets and model patches do to the entries of a session's model.
type control struct {
	resident func(key string) (dit.Model, bool) // finds their weights
	nets     []*net
	patches  map[int][]patched // by entry, in the order in which they change rows
}

// patched is a model patch on an entry. It changes each row without reading others, so every split of tokens, heads,
// entries and blocks applies it to the rows that it has.
type patched struct {
	model dit.Patch
	hint  engine.Tensor // [1, L, E] of the whole picture, which pipelines cut differently
	gate  engine.Tensor // [1, E], the strength
}

// prepare makes all control nets and prepares them and the patches.
func (c *control) prepare(base *network) error {
	byKey := map[string]*net{}
	for i, in := range base.open.Entries {
		for _, on := range in.Control {
			if on.Patch {
				if err := c.preparePatch(base, i, on); err != nil {
					return err
				}
				continue
			}
			n := byKey[on.Model]
			if n == nil {
				model, ok := c.resident(on.Model)
				m, isNet := dit.As[dit.Control](model)
				if !ok || !isNet {
					return fmt.Errorf("control net %s is not resident", on.Model)
				}
				n = newNet(base, m)
				byKey[on.Model], c.nets = n, append(c.nets, n)
			}
			n.attach(base, i, on)
		}
	}
	for _, n := range c.nets {
		if err := n.prepareOn(base); err != nil {
			return err
		}
	}
	return nil
}

// preparePatch embeds the hint of a patch on entry i.
func (c *control) preparePatch(base *network, i int, on ControlInput) error {
	model, ok := c.resident(on.Model)
	m, isPatch := dit.As[dit.Patch](model)
	if !ok || !isPatch {
		return fmt.Errorf("model patch %s is not resident", on.Model)
	}
	p, err := m.Prepare(base.env, []dit.Entry{on.Entry}, base.entries[i].grid)
	if err != nil {
		return fmt.Errorf("entry %d: %w", i, err)
	}
	if c.patches == nil {
		c.patches = map[int][]patched{}
	}
	c.patches[i] = append(c.patches[i], patched{model: m, hint: p.Hint, gate: base.gate(on.Strength)})
	return nil
}

// begin runs the nets of the entries that an evaluation asks for.
func (c *control) begin(env dit.Env, of *EvaluateCommand, runs []*entryRun) error {
	if !env.Arena.Measuring() && of.Latents == nil {
		return nil
	}
	for _, n := range c.nets {
		if err := n.evaluate(env, of, runs); err != nil {
			return err
		}
	}
	return nil
}

// before runs the blocks of nets that follow the model up to block b, which is next.
func (c *control) before(env dit.Env, run *entryRun, b int) {
	for _, n := range c.nets {
		n.follow(env, run, b)
	}
}

// patch applies the model patches of a run's entry to its image rows after block b, one after the other.
func (c *control) patch(env dit.Env, run *entryRun, b int) {
	r := run.state.Rows.Image
	for _, p := range c.patches[run.entry] {
		layer(env, "patch")
		p.model.Apply(env, b, run.state, p.hint.Slice(1, r.Start, r.End), p.gate)
	}
}

// add adds the outputs of nets for block b to x: the image rows of a run, or the output of block b that a later block
// reads.
func (c *control) add(env dit.Env, run *entryRun, b int, x engine.Tensor) {
	r := run.state.Rows.Image
	if r.Len() == 0 || x.IsZero() || len(c.nets) == 0 {
		return
	}
	layer(env, "control")
	for _, n := range c.nets {
		n.add(env, run, b, x, r)
	}
}
