package parallel

import (
	"patchbay/engine"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// plan is the plan of a request: the one it names, or with ranks=N the fastest of at most N ranks that the simulator
// finds on this engine's devices.
func (e *Engine) plan(r *Request) (plan.Plan, error) {
	p, err := e.parse(r.Plan)
	if err != nil {
		return p, err
	}
	if p.Choose > 0 {
		if p, err = e.choose(r, p); err != nil {
			return p, err
		}
	}
	return p, r.fits(p)
}

// parse reads a plan of this engine.
func (e *Engine) parse(text string) (plan.Plan, error) {
	p, err := plan.Parse(text)
	if err == nil && e.cfg.Deterministic && !p.Deterministic {
		return plan.Parse(text + ",deterministic=on")
	}
	return p, err
}

// choose asks the planner. Plans whose picture differs from one rank's are left out unless the request allows them;
// memory is refused by the session, which knows what is resident.
func (e *Engine) choose(r *Request, p plan.Plan) (plan.Plan, error) {
	s := e.search(r.Model, r.Workload(), p)
	s.Flat = r.hasArea()
	c, err := s.Choose()
	if err != nil {
		return p, err
	}
	return c.Best.Plan, nil
}

// search is the question which plan runs a workload fastest on as many ranks as p may take.
func (e *Engine) search(m Model, w forecast.Workload, p plan.Plan) forecast.Search {
	cluster := e.cluster
	cluster.Device = e.onDevice(cluster.Device, m)
	cluster.PerHost = p.Ranks()
	return forecast.Search{
		Workload: w, Cluster: cluster, Exact: !p.Stale, Warmup: 1, Blocking: !p.Overlap, Deterministic: p.Deterministic,
	}
}

// onDevice is a device with what the operations there and the weights of a model say of its memory. Without devices it
// stays as it is.
func (e *Engine) onDevice(d forecast.Device, m Model) forecast.Device {
	if e.cfg.DeviceOf == nil {
		return d
	}
	if bytes := e.weightBytes(m); bytes > 0 && m.Spec.Params > 0 {
		d.WeightBytes = float64(bytes) / float64(m.Spec.Params)
	}
	if ops, ok := e.ops.(engine.Reserver); ok {
		d.Workspace = ops.Workspace()
	}
	if ops, ok := e.ops.(engine.Located); ok { // what is there: what others keep may be given back
		if _, total, err := ops.DeviceMemory(); err == nil {
			d.Memory, d.Reserved = total, min(e.cfg.Reserve, total-1)
		}
	}
	if most := e.cfg.DeviceMemory; most > 0 && (d.Memory == 0 || most < d.Memory-d.Reserved) {
		d.Memory, d.Reserved = most, 0
	}
	return d
}

// Forecast is what a run is expected to take on this engine's devices.
type Forecast struct {
	*forecast.Choice
	Device string // of one rank
	Free   int64  // its memory in bytes; 0: not known
}

// Forecast predicts a workload of a model by a plan in the syntax of plan.Parse, with ranks=N by the fastest one of at
// most N ranks. Plans that cannot run it, or do not fit the memory, are refused with one that can.
func (e *Engine) Forecast(m Model, w forecast.Workload, text string) (*Forecast, error) {
	p, err := e.parse(text)
	if err != nil {
		return nil, err
	}
	s := e.search(m, w, p)
	d := s.Cluster.Device
	out := &Forecast{Device: d.Name, Free: max(0, d.Memory-d.Reserved)}
	if p.Choose > 0 {
		out.Choice, err = s.Choose()
	} else if err = e.cfg.fits(p); err == nil {
		out.Choice, err = s.Predict(p)
	}
	return out, err
}

// Workload is what the planner must know of a request; its Device is left out.
func (r *Request) Workload() forecast.Workload {
	w := forecast.Workload{
		Spec: r.Model.Spec, Y: r.Latent.Y, X: r.Latent.X, Batch: r.Latent.B,
		Evaluations: max(len(r.Sigmas)-1, 1),
	}
	for i, b := range r.Branches {
		for _, e := range b.Entries {
			w.Text = append(w.Text, e.Context.Rows+e.Context2.Rows)
			w.References, w.Branches = append(w.References, w.Spec.ReferenceTokens(&e.Entry)), append(w.Branches, i)
		}
	}
	if len(w.Text) == 0 { // nothing is evaluated
		w.Text, w.References, w.Branches = []int{0}, []int{0}, []int{0}
	}
	return w
}

// hasArea tells whether some entry is limited to a part of the picture.
func (r *Request) hasArea() bool {
	for _, b := range r.Branches {
		for _, e := range b.Entries {
			if entryArea(e) != (Area{}) {
				return true
			}
		}
	}
	return false
}

// cluster is one rank of the engine as the planner sees it.
func (c *Config) cluster() (forecast.Cluster, error) {
	if c.Machine != nil {
		return forecast.Cluster{Device: c.Machine.Device, Link: c.Machine.Link, Hosts: 1, PerHost: 1}, c.Machine.Check()
	}
	devices := c.Devices
	if devices == "" {
		devices = "cpu"
	}
	return forecast.ParseCluster(devices)
}
