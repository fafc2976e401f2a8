package value

import (
	"cmp"
	"context"
	"slices"

	"patchbay/fault"
	"patchbay/parallel"
	"patchbay/parallel/forecast"
)

// Picture is what a forecast needs to know of a run: size in pixels, batch size, evaluations of the network, text
// tokens per conditioning entry, and the number of entries.
type Picture struct{ Width, Height, Batch, Steps, Text, Entries int }

// Usual replaces zeros by usual values. Entries is left alone: it depends on the model.
func (p Picture) Usual() Picture {
	p.Batch, p.Steps, p.Text = cmp.Or(p.Batch, 1), cmp.Or(p.Steps, 20), cmp.Or(p.Text, 256)
	return p
}

// Forecast predicts a run of a model file under a plan; for the plan ranks=N that is the fastest on at most N ranks.
// Only the header of the file is read. Errors are *Failure.
func (s *Store) Forecast(ctx context.Context, f ModelFile, plan string, p Picture) (*parallel.Forecast, error) {
	if s.engine == nil {
		return nil, noDevice("a forecast")
	}
	m, err := OpenFile(s.roots, f)
	if err != nil {
		return nil, err
	}
	entries := 2
	if m.Spec.TakesGuidance {
		entries = 1
	}
	p.Entries = cmp.Or(p.Entries, entries)
	const most = 1 << 16
	for field, n := range map[string]int{
		"width": p.Width / 8, "height": p.Height / 8, "batch": p.Batch, "steps": p.Steps, "text": p.Text,
		"entries": p.Entries,
	} {
		if n < 1 || n > most || field == "entries" && n > 64 {
			return nil, fault.At(fault.BadInput, "forecast."+field, "forecast.%s: out of range: want a picture of 8 to "+
				"%d pixels a side, batch, steps and text of 1 to %d, and 1 to 64 entries", field, 8*most, most)
		}
	}
	w := forecast.Workload{
		Spec: m.Spec, Y: (p.Height + 7) / 8, X: (p.Width + 7) / 8, Batch: p.Batch,
		Text: slices.Repeat([]int{p.Text}, p.Entries), Evaluations: p.Steps,
	}
	opened, err := m.openNets(s.roots, f.Nets, true)
	if err != nil {
		return nil, err
	}
	for _, n := range opened {
		if err := n.Forecast(&w); err != nil {
			return nil, fault.Family("model.nets", "%v", err)
		}
	}
	out, err := s.engine.Forecast(m.Request(), w, plan)
	if err != nil {
		return nil, fault.From(err)
	}
	return out, nil
}
