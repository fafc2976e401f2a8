package parallel

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
)

// plan is the plan of a request: the one it names, or with ranks=N the fastest of at most N ranks that the simulator
// finds on this engine's devices. On other machines it is chosen when those have met.
func (e *Engine) plan(r *Request) (plan.Plan, error) {
	p, err := e.parse(r.Plan)
	if err != nil {
		return p, err
	}
	if met := e.met(); met.Far && p.Choose > 0 {
		return p, nil
	} else if met.Far {
		return p, r.fits(p)
	}
	if p.Choose > 0 {
		if p, err = e.choose(r, p); err != nil {
			return p, err
		}
	}
	return e.settle(r, p)
}

// settle gives a plan the speeds of its devices, and refuses it where it cannot run there.
func (e *Engine) settle(r *Request, p plan.Plan) (plan.Plan, error) {
	cluster, gpus := e.devices()
	p = cluster.Share(r.Model.Spec, p)
	err := r.fits(p)
	if err == nil && gpus && !r.hasArea() {
		s := e.question(r, p)
		s.Cluster.PerHost = max(p.Ranks(), e.cfg.Ranks, len(e.met().Devices))
		err = s.Fits(p)
	}
	return p, err
}

// question is search for a request.
func (e *Engine) question(r *Request, p plan.Plan) forecast.Search {
	s := e.search(r.Model, r.Workload(), p)
	s.Flat = r.hasArea()
	if _, gpus := e.devices(); gpus {
		s.Cluster.Device.ValueBytes = r.Compute.Size()
	}
	s.Device = s.Cluster.Device
	return s
}

// besideWeights is the bytes that each rank of a plan takes beside its weights, nil where that is not known: in the
// memory of this process, where the session asks for it, and of entries that are limited to an area.
func (e *Engine) besideWeights(r *Request, p plan.Plan) (bytes []int64) {
	if _, gpus := e.devices(); r == nil || !gpus || len(r.Sigmas) < 2 || r.hasArea() {
		return nil
	}
	for _, m := range e.question(r, p).Memory(p) {
		bytes = append(bytes, m.Total()-m.Weights)
	}
	return bytes
}

// advised adds to a refusal for want of memory on the devices a plan that fits what is free there now, if there is one.
func (e *Engine) advised(err error, r *Request, p plan.Plan) error {
	var full *failure.Error
	device, ok := e.ops.(engine.Located)
	if !ok || e.cfg.DeviceOf == nil || e.met().Far || !errors.As(err, &full) || full.Code != failure.OutOfMemory {
		return err
	}
	s := e.question(r, p)
	s.Cluster.PerHost = max(p.Ranks(), e.cfg.Ranks)
	if free, _, err := device.DeviceMemory(); err == nil && free > s.Cluster.Device.Reserved {
		s.Cluster.Device.Memory = min(s.Cluster.Device.Memory, free)
	}
	if best, ok := s.Fastest(); ok && best.Plan != p {
		told := *full
		told.Text += fmt.Sprintf("; %s would fit", best.Plan)
		return &told
	}
	return err
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
	c, err := e.question(r, p).Choose()
	if err != nil {
		return p, err
	}
	return c.Best.Plan, nil
}

// search is the question which plan runs a workload fastest on as many ranks as p may take.
func (e *Engine) search(m Model, w forecast.Workload, p plan.Plan) forecast.Search {
	cluster, _ := e.devices()
	cluster.Device = e.onDevice(cluster.Device, m)
	cluster.PerHost = p.Ranks()
	if met := e.met(); met.Bandwidth > 0 {
		cluster.Network = forecast.Link{Name: "measured", Bandwidth: met.Bandwidth, Latency: met.Latency, AllToAll: 1}
		cluster.Places = met.Places
	}
	if cluster.Mixed != nil {
		cluster.PerHost = min(p.Ranks(), len(cluster.Mixed))
		cluster.Mixed = slices.Clone(cluster.Mixed)
		for i, d := range cluster.Mixed {
			cluster.Mixed[i] = e.onDevice(d, m)
		}
	}
	return forecast.Search{
		Workload: w, Cluster: cluster, Exact: !p.Stale, Warmup: 1, Blocking: !p.Overlap, Deterministic: p.Deterministic,
	}
}

// met is what is known of the processes of the ranks.
func (e *Engine) met() forecast.Meeting {
	if e.cfg.Hosts == nil {
		return forecast.Meeting{}
	}
	return e.cfg.Hosts.Met()
}

// devices is one rank as the planner sees it, and whether it works on a GPU: by what the hosts have told of themselves,
// where ranks run on other machines.
func (e *Engine) devices() (cluster forecast.Cluster, gpus bool) {
	met := e.met()
	gpus = e.cfg.DeviceOf != nil
	if met.Devices != nil {
		gpus = met.GPUs
	}
	return e.cluster.At(met.Site), gpus
}

// onDevice is a device with what the operations there and the weights of a model say of its memory. Without devices it
// stays as it is.
func (e *Engine) onDevice(d forecast.Device, m Model) forecast.Device {
	if _, gpus := e.devices(); !gpus {
		return d
	}
	if bytes := e.weightBytes(m); bytes > 0 && m.Spec.Params > 0 {
		d.WeightBytes = float64(bytes) / float64(m.Spec.Params)
	}
	if e.met().Devices != nil { // hosts have told of the rest
		return d
	}
	if ops, ok := e.ops.(engine.Reserver); ok {
		d.Workspace = ops.Workspace(m.Blocks)
	}
	if ops, ok := e.ops.(engine.Located); ok && e.cluster.Mixed == nil { // what others keep, they may give back
		if _, total, err := ops.DeviceMemory(); err == nil {
			d.Name, d.Memory = ops.Location(), total
		}
	}
	return d.Bounded(e.cfg.DeviceMemory, e.cfg.Reserve)
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
	nets := map[string]*forecast.Net{}
	w := forecast.Workload{
		Spec: r.Model.Spec, T: r.Latent.T, Y: r.Latent.Y, X: r.Latent.X, Batch: r.Latent.B,
		Evaluations: max(len(r.Sigmas)-1, 1),
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
			w.Prefix = e.Prefix.Rows
			w.References, w.Branches = append(w.References, w.Spec.ReferenceTokens(&e.Entry)), append(w.Branches, i)
			w.Biases = append(w.Biases, len(e.Biases))
		}
	}
	w.Unlike = r.unlike()
	for _, key := range slices.Sorted(maps.Keys(nets)) {
		w.Nets = append(w.Nets, *nets[key])
	}
	if len(w.Text) == 0 { // nothing is evaluated
		w.Text, w.References, w.Biases, w.Branches = []int{0}, []int{0}, []int{0}, []int{0}
	}
	return w
}

// Forecast is what the planner must know of the net beside a model, but for the entries that have it; of the hint its
// channels are read.
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
			if len(e.Residuals) > 0 || len(e.Control) > 0 || entryArea(*e) != (Area{}) || e.Ranged ||
				!sameShapes(&e.Entry, &first.Entry) {
				return true
			}
		}
	}
	return false
}

// sameShapes reports whether entries fit into one call of dit.Model's Prepare, and of its blocks.
func sameShapes(a, b *dit.Entry) bool {
	size := func(r dit.Reference) [2]int { return [2]int{r.Y, r.X} }
	return a.Prefix.Rows == b.Prefix.Rows && a.Context.Rows == b.Context.Rows && a.Context2.Rows == b.Context2.Rows &&
		(a.Guidance == nil) == (b.Guidance == nil) && (a.Pooled == nil) == (b.Pooled == nil) &&
		len(a.Size) == len(b.Size) && a.Method == b.Method && size(a.Concat) == size(b.Concat) &&
		slices.Equal(a.Biases, b.Biases) &&
		slices.EqualFunc(a.References, b.References, func(x, y dit.Reference) bool { return size(x) == size(y) })
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

// Rates says where the rates come from that plans are chosen by.
func (e *Engine) Rates() string {
	f, _ := e.devices()
	f.PerHost = max(1, e.cfg.Ranks, len(e.met().Devices))
	return f.Sources()
}

// cluster is one rank of the engine as the planner sees it.
func (c *Config) cluster() (forecast.Cluster, error) {
	if c.Machine != nil {
		f := forecast.Cluster{Device: c.Machine.Device, Mixed: c.Mixed, Link: c.Machine.Link, Hosts: 1, PerHost: 1}
		if c.DeviceOf != nil {
			devices := make([]string, c.Ranks)
			for r := range devices {
				devices[r] = c.DeviceOf(r)
			}
			f.Between = c.Machine.Between(devices)
		}
		return f, c.Machine.Check()
	}
	devices := c.Devices
	if devices == "" {
		devices = "cpu"
	}
	return forecast.ParseCluster(devices)
}
