package request

import (
	"cmp"
	"maps"
	"slices"

	"patchbay/models/dit"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// Workload returns what the planner must know of a request. Its Device is left zero.
func (r *Request) Workload() forecast.Workload {
	nets := map[string]*forecast.Net{}
	w := forecast.Workload{
		Spec: r.Model.Spec, T: r.Latent.T, Y: r.Latent.Y, X: r.Latent.X, Batch: r.Latent.B,
		SoundY: r.Latent.Sound.Y, SoundX: r.Latent.Sound.X, Evaluations: max(len(r.Sigmas)-1, 1),
	}
	for i, b := range r.Branches {
		for _, e := range b.Entries {
			for _, c := range e.Control {
				n := nets[c.Net.Key]
				if n == nil {
					made := c.Forecast(w.Spec)
					n = &made
					nets[c.Net.Key] = n
				}
				n.Entries, n.Each = append(n.Entries, len(w.Text)), n.Each || c.Hint.B > 1
				n.Types = append(n.Types, min(c.Mode, 1))
			}
			w.Text = append(w.Text, e.Context.Rows+e.Context2.Rows)
			w.Prefix, w.Vision, w.Frames = e.Prefix.Rows, max(w.Vision, e.Vision.Rows), e.Frames
			w.SoundRows, w.Connected, w.Keyframes = e.SoundRows, e.Connected, e.Keyframes
			w.References, w.Branches = append(w.References, w.Spec.ReferenceTokens(&e.Entry)), append(w.Branches, i)
			w.Biases, w.SoundReferences = append(w.Biases, len(e.Biases)), append(w.SoundReferences, e.SoundReference.Rows)
		}
	}
	w.Unlike = r.unlike()
	for _, key := range slices.Sorted(maps.Keys(nets)) {
		w.Nets = append(w.Nets, *nets[key])
	}
	if len(w.Text) == 0 { // no entries
		w.Text, w.References, w.Biases, w.Branches = []int{0}, []int{0}, []int{0}, []int{0}
	}
	return w
}

// Forecast returns what the planner must know of a net that runs beside base. Entries, Each and Types are left to the
// caller. Only the channels of the hint are read.
func (c *Control) Forecast(base *dit.Spec) forecast.Net {
	n := forecast.Net{
		Key: c.Net.Key, Spec: c.Net.Spec, Bytes: c.Net.WeightBytes, Patch: c.Patch,
		Hint: c.Hint.C * c.Net.Spec.PatchSize * c.Net.Spec.PatchSize,
	}
	if c.Feeds != nil {
		n.Feeds = c.Feeds(base)
	}
	return n
}

// unlike reports whether entries differ in more than the length of their texts, so that they cannot be one batch.
func (r *Request) unlike() bool {
	var first *Entry
	for _, b := range r.Branches {
		for i := range b.Entries {
			e := &b.Entries[i]
			if first == nil {
				first = e
			}
			if len(e.Residuals) > 0 || len(e.Control) > 0 || e.Rectangle() != (Area{}) || e.Ranged ||
				!sameShapes(&e.Entry, &first.Entry) {
				return true
			}
		}
	}
	return false
}

// sameShapes reports whether entries can share one call of a dit.Model's Prepare and of its blocks.
func sameShapes(a, b *dit.Entry) bool {
	size := func(r dit.Reference) [2]int { return [2]int{r.Y, r.X} }
	return a.Prefix.Rows == b.Prefix.Rows && a.Context.Rows == b.Context.Rows && a.Context2.Rows == b.Context2.Rows &&
		(a.Guidance == nil) == (b.Guidance == nil) && (a.Pooled == nil) == (b.Pooled == nil) &&
		len(a.Size) == len(b.Size) && a.Method == b.Method && size(a.Concat) == size(b.Concat) &&
		a.Vision.Rows == b.Vision.Rows && slices.Equal(a.Frames, b.Frames) && slices.Equal(a.SoundRows, b.SoundRows) &&
		a.SoundReference.Rows == b.SoundReference.Rows &&
		a.FrameRate == b.FrameRate && a.SameKeyframes(b) && a.Connected == b.Connected && slices.Equal(a.Slots, b.Slots) &&
		slices.Equal(a.Biases, b.Biases) && slices.Equal(a.Pictures, b.Pictures) &&
		slices.EqualFunc(a.References, b.References, func(x, y dit.Reference) bool { return x.Like(&y) })
}

// HasArea reports whether any entry is limited to a part of the picture.
func (r *Request) HasArea() bool {
	for _, b := range r.Branches {
		for _, e := range b.Entries {
			if e.Rectangle() != (Area{}) {
				return true
			}
		}
	}
	return false
}

// LoadedBytes returns the size of a model's weights in the memory of the ranks, which may widen them.
func (m Model) LoadedBytes() int64 { return cmp.Or(m.WideBytes, m.WeightBytes) }

// HeldBytes estimates the memory of a part of the weights: what stays, for each rank that uses it the places to which
// it brings blocks before their use, and what it brings there from host memory.
func (m Model) HeldBytes(held dit.Held) (stay, places, streamed int64) {
	if m.Spec == nil || m.Spec.Params == 0 {
		return m.WeightBytes / int64(max(held.Ranks, 1)), 0, 0
	}
	of := func(params int64) int64 {
		return int64(float64(m.WeightBytes) * float64(params) / float64(m.Spec.Params))
	}
	largest := int64(0)
	if stay = m.WeightBytes; held.Blocks != nil || held.Ranks > 1 {
		stay = of(plan.HeldParams(m.Spec, held))
	}
	for b, brought := range held.Streamed(len(m.Spec.Blocks)) {
		if n := m.Spec.Blocks[b].HeldParams(held); brought || held.Parts > 1 {
			largest = max(largest, n)
			if brought {
				streamed += of(n)
			}
		}
	}
	stay -= streamed
	parts := int64(max(held.Parts, 1))
	if places = 2 * of(largest); parts > 1 && held.Stream > 0 {
		places += places / parts
	}
	return stay / parts, places, streamed / parts
}
