package parallel

import (
	"context"
	"maps"
	"slices"
	"time"

	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// Loaded is the result of Load.
type Loaded struct {
	Bytes   int64   // of the weights once loaded, all parts together
	Seconds float64 // 0 if they were resident
}

// Load makes the weights of a model resident in the layout that a plan needs ("": one rank), so that the first request
// with that plan does not have to. It waits for running work. Errors are as those of Sample.
func (p *Pool) Load(ctx context.Context, m request.Model, text string) (Loaded, error) {
	out := Loaded{Bytes: m.LoadedBytes()}
	split, err := p.whole.parse(text)
	if err != nil {
		return out, err
	}
	if split.Tensor > m.Spec.Groups() {
		return out, plan.Refuse("tensor", "is %d, the model has %d heads", split.Tensor, m.Spec.Groups())
	}
	if n := plan.MaxStages(m.Spec); split.Owns() && split.Pipe > n {
		return out, plan.Refuse("pipe", "is %d, the blocks of %s make at most %d stages", split.Pipe, m.Spec.Family, n)
	}
	release, err := p.takeAll(ctx)
	if err != nil {
		return out, err
	}
	defer release()
	if err := p.usable(); err != nil {
		return out, err
	}
	e := p.whole
	if !e.current(split.Ranks()) { // the processes of the other leaders get new connections
		p.dismiss()
		p.leaders = nil
	}
	if err := e.start(split.Ranks()); err != nil {
		return out, err
	}
	if n := e.processes.Places(); n > 0 && split.Ranks() > n {
		return out, plan.Refuse("ranks", "are %d, the hosts that answer have places for %d", split.Ranks(), n)
	}
	cluster, _ := e.devices()
	split, err = e.streamed(forecast.Share(cluster, m.Spec, split), func() forecast.Search {
		return e.search(m, forecast.Reference(m.Spec, cluster.Device), split)
	})
	if err == nil {
		out.Seconds, err = e.acquire(m, split, nil)
	}
	return out, err
}

// acquire makes the weights that the ranks of a plan hold resident, each on the rank's device, with room for what
// request r takes beside them there (nil: not known). seconds is how long that took, 0 if everything was resident. All
// processes load at the same time.
func (e *Leader) acquire(m request.Model, split plan.Plan, r *request.Request) (seconds float64, err error) {
	start := time.Now()
	cluster, _ := e.devices()
	lanes := forecast.OwnLanes(m.Spec, split, cluster.Device)
	extra := e.besideWeights(r, split)
	loaded, err := e.hold(m, split, extra, func(at plan.Coord) dit.Held { return split.Held(lanes, at) })
	if loaded {
		seconds = time.Since(start).Seconds()
	}
	return seconds, err
}

// hold makes resident what held returns for each rank, with room for extra bytes more by rank (nil: none). It reports
// whether anything had to be loaded.
func (e *Leader) hold(m request.Model, split plan.Plan, extra []int64, held func(plan.Coord) dit.Held) (bool, error) {
	m.WeightBytes = m.LoadedBytes()
	need := make([][]process.Need, len(e.processes))
	for rank := range split.Ranks() {
		at, place := e.processes.PlaceOf(rank)
		h := held(plan.Mesh{Plan: split}.At(rank))
		n := process.Need{Place: place, Held: h}
		n.Bytes, n.Extra, n.Streamed = m.HeldBytes(h)
		if extra != nil {
			n.Extra += extra[rank]
		}
		need[at] = append(need[at], n)
	}
	fresh := make([]bool, len(e.processes))
	g := scope.New(nil)
	for i, h := range e.processes {
		if len(need[i]) > 0 {
			g.Go("load "+plan.ShownKey(m.Key), func() (err error) {
				fresh[i], err = h.Acquire(m.Key, m.Weights, need[i])
				return err
			})
		}
	}
	err := g.Wait()
	return slices.Contains(fresh, true), err
}

// acquireNets makes the weights of control nets and model patches resident beside those of the model. It returns an
// error if they do not fit together.
func (e *Leader) acquireNets(r *request.Request, split plan.Plan) error {
	nets, patches := map[string]request.Model{}, map[string]bool{}
	for _, b := range r.Branches {
		for _, entry := range b.Entries {
			for _, c := range entry.Control {
				nets[c.Net.Key], patches[c.Net.Key] = c.Net, c.Patch
			}
		}
	}
	evicted := false
	for pass := range 2 { // the second finds all resident unless they evict each other
		for _, key := range slices.Sorted(maps.Keys(nets)) {
			loaded, err := e.hold(nets[key], split, nil, func(at plan.Coord) (h dit.Held) {
				if !patches[key] {
					h = split.BesideHeld(at.Tensor)
				}
				return h
			})
			if err != nil {
				return err
			}
			evicted = evicted || loaded && pass > 0
		}
		if len(nets) == 0 {
			return nil
		}
		seconds, err := e.acquire(r.Model, split, r)
		if err != nil {
			return err
		}
		evicted = evicted || seconds > 0
	}
	if !evicted {
		return nil
	}
	return fault.Named(fault.OutOfMemory, "model", "the weights of %s and of %d control nets do not fit into memory "+
		"together: use fewer nets, or narrower weights", r.Model.Key, len(nets))
}
