package parallel

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// plan returns the plan of a request: the one it names or, for ranks=N, the fastest of at most N ranks that the
// simulator finds for this leader's devices. If ranks run on other machines, refit chooses it once those are connected.
func (e *Leader) plan(r *request.Request) (plan.Plan, error) {
	p, err := e.parse(r.Plan)
	if err != nil {
		return p, err
	}
	if survey := e.survey(); survey.Remote && p.Choose > 0 {
		return p, nil
	} else if survey.Remote {
		return p, r.Fits(p)
	}
	if p.Choose > 0 {
		if p, err = e.choose(r, p); err != nil {
			return p, err
		}
	}
	return e.settle(r, p)
}

// settle sets the speeds of a plan's devices. It refuses a plan that cannot run the request or needs more memory than
// its devices have.
func (e *Leader) settle(r *request.Request, p plan.Plan) (plan.Plan, error) {
	cluster, gpus := e.devices()
	p = forecast.Share(cluster, r.Model.Spec, p)
	p, err := e.streamed(p, func() forecast.Search { return e.question(r, p) })
	if err == nil {
		err = r.Fits(p)
	}
	if err == nil && gpus && !r.HasArea() {
		s := e.question(r, p)
		s.Cluster.PerHost = max(p.Ranks(), e.cfg.Ranks, len(e.survey().Devices))
		err = s.Fits(p)
	}
	return p, err
}

// streamed chooses how many blocks of a plan come from host memory, where that is to be chosen.
func (e *Leader) streamed(p plan.Plan, question func() forecast.Search) (plan.Plan, error) {
	if p.Stream >= 0 {
		return p, nil
	}
	s := question()
	s.Cluster.PerHost = max(p.Ranks(), e.cfg.Ranks, len(e.survey().Devices))
	if p.Check(s.Spec, s.Batch, len(s.Text), s.Tokens()) != nil {
		return p, nil // refused by the caller
	}
	return s.Streamed(p)
}

func (e *Leader) question(r *request.Request, p plan.Plan) forecast.Search {
	s := e.search(r.Model, r.Workload(), p)
	s.Flat = r.HasArea()
	if _, gpus := e.devices(); gpus {
		s.Cluster.Device.ValueBytes = r.Compute.Size()
	}
	s.Device = s.Cluster.Device
	return s
}

// besideWeights returns the bytes that each rank of a plan takes in addition to its weights. It returns nil if they are
// not known: in host memory, where the session checks them, and with entries that are limited to an area.
func (e *Leader) besideWeights(r *request.Request, p plan.Plan) (bytes []int64) {
	if _, gpus := e.devices(); r == nil || !gpus || len(r.Sigmas) < 2 || r.HasArea() {
		return nil
	}
	all, err := e.question(r, p).Memory(p)
	if err != nil {
		return nil // opening the session says what is wrong
	}
	for _, m := range all {
		bytes = append(bytes, m.Total()-m.Weights)
	}
	return bytes
}

// advised adds to an out-of-memory error of a device a plan that fits the memory that is free there now, if there is
// one.
func (e *Leader) advised(err error, r *request.Request, p plan.Plan) error {
	var full *fault.Error
	device, ok := e.ops.(engine.Located)
	if !ok || e.cfg.DeviceOf == nil || e.survey().Remote || !errors.As(err, &full) || full.Code != fault.OutOfMemory {
		return err
	}
	s := e.question(r, p)
	s.Cluster.PerHost = max(p.Ranks(), e.cfg.Ranks)
	if free, _, err := device.DeviceMemory(); err == nil && free > s.Cluster.Device.Reserved {
		s.Cluster.Device.Memory = min(s.Cluster.Device.Memory, free)
	}
	if best, ok := s.Fastest(); ok && best.Plan != p {
		withPlan := *full
		withPlan.Text += fmt.Sprintf("; %s would fit", best.Plan)
		return &withPlan
	}
	return err
}

// parse parses a plan and applies Config.Deterministic and Config.Streams to it.
func (e *Leader) parse(text string) (plan.Plan, error) {
	p, err := plan.Parse(text)
	if err == nil && e.cfg.Deterministic && !p.Deterministic {
		text += ",deterministic=on"
		p, err = plan.Parse(text)
	}
	if err == nil && e.cfg.Streams {
		if auto, err := plan.Parse(text + ",stream=auto"); err == nil { // fails where the key is there
			return auto, nil
		}
	}
	return p, err
}

// choose asks the planner for the fastest plan. Plans whose picture differs from one rank's are left out unless the
// request allows them. Memory of the host is checked only when the session opens.
func (e *Leader) choose(r *request.Request, p plan.Plan) (plan.Plan, error) {
	c, err := e.question(r, p).Choose()
	if err != nil {
		return p, err
	}
	if c.Best.Plan.Stream == 0 {
		c.Best.Plan.Stream = p.Stream
	}
	return c.Best.Plan, nil
}

// search returns the planner's search for the plan that runs a workload fastest on at most p.Ranks() ranks. On the
// processors, plans that may bring blocks from host memory do so where weights, sessions and an eighth for everything
// else do not fit the memory that the process may take.
func (e *Leader) search(m request.Model, w forecast.Workload, p plan.Plan) forecast.Search {
	cluster, _ := e.devices()
	cluster.Device = e.onDevice(cluster.Device, m)
	cluster.PerHost = p.Ranks()
	if survey := e.survey(); survey.Bandwidth > 0 {
		cluster.Network = hardware.Interconnect{
			Name: "measured", Bandwidth: survey.Bandwidth, Latency: survey.Latency, AllToAll: 1,
		}
		cluster.Places = survey.Places
	}
	if cluster.Mixed != nil {
		cluster.PerHost = min(p.Ranks(), len(cluster.Mixed))
		cluster.Mixed = slices.Clone(cluster.Mixed)
		for i, d := range cluster.Mixed {
			cluster.Mixed[i] = e.onDevice(d, m)
		}
	}
	host := int64(0)
	if p.Stream != 0 {
		if host = cmp.Or(e.cfg.HostMemory, math.MaxInt64); e.survey().Devices != nil { // of other machines
			host = math.MaxInt64
		}
	}
	shared := int64(0)
	if _, gpus := e.devices(); !gpus && p.Stream != 0 {
		shared = e.cfg.room()
		cluster.Device.WeightBytes = weightBytes(m, cluster.Device.WeightBytes)
	}
	return forecast.Search{
		HostMemory: host, Shared: shared, Apart: e.cfg.Processes != nil,
		Workload: w, Cluster: cluster, Exact: !p.Stale, Warmup: 1, Blocking: !p.Overlap, Deterministic: p.Deterministic,
	}
}

// survey returns what is known of the processes of the ranks.
func (e *Leader) survey() hardware.Survey {
	if e.cfg.Processes == nil {
		return hardware.Survey{}
	}
	return e.cfg.Processes.Survey()
}

// devices returns one rank as the planner sees it, and whether it works on a GPU. If ranks run on other machines, both
// are as reported by the hosts.
func (e *Leader) devices() (cluster hardware.Cluster, gpus bool) {
	survey := e.survey()
	gpus = e.cfg.DeviceOf != nil
	if survey.Devices != nil {
		gpus = survey.GPUs
	}
	return e.cluster.At(survey.Site), gpus
}

// weightBytes returns the bytes of one weight of a model once loaded, usual if they are not known.
func weightBytes(m request.Model, usual float64) float64 {
	if bytes := m.LoadedBytes(); bytes > 0 && m.Spec.Params > 0 {
		return float64(bytes) / float64(m.Spec.Params)
	}
	return usual
}

// onDevice adds to a device what its operations and the weights of a model say about memory. It returns d unchanged if
// ranks do not work on GPUs.
func (e *Leader) onDevice(d hardware.Device, m request.Model) hardware.Device {
	if _, gpus := e.devices(); !gpus {
		return d
	}
	d.WeightBytes = weightBytes(m, d.WeightBytes)
	if e.survey().Devices != nil { // hosts have reported the rest
		return d
	}
	if ops, ok := e.ops.(engine.Reserver); ok {
		d.Workspace = ops.Workspace(m.Blocks)
	}
	if ops, ok := e.ops.(engine.Located); ok && e.cluster.Mixed == nil { // others may free what they keep
		if _, total, err := ops.DeviceMemory(); err == nil {
			d.Name, d.Memory = ops.Location(), total
		}
	}
	return d.Bounded(e.cfg.DeviceMemory, e.cfg.Reserve)
}

// Forecast is the expected cost of a run on a pool's devices.
type Forecast struct {
	*forecast.Choice
	Device string // name of one rank's device
	Free   int64  // bytes of its memory that may be used; 0: not known
}

// Forecast predicts a workload of a model under a plan in the syntax of plan.Parse; for ranks=N it is the fastest plan
// of at most N ranks. A plan that cannot run the workload or does not fit the memory is refused, if possible with one
// that can.
func (p *Pool) Forecast(m request.Model, w forecast.Workload, text string) (*Forecast, error) {
	asked, err := p.whole.parse(text)
	if err != nil {
		return nil, err
	}
	s := p.whole.search(m, w, asked)
	d := s.Cluster.Device
	out := &Forecast{Device: d.Name, Free: max(0, d.Memory-d.Reserved)}
	if asked.Choose > 0 {
		out.Choice, err = s.Choose()
	} else if err = p.whole.cfg.fits(asked); err == nil {
		out.Choice, err = s.Predict(asked)
	}
	return out, err
}

// Rates describes where the rates come from that plans are chosen by.
func (p *Pool) Rates() string {
	f, _ := p.whole.devices()
	f.PerHost = max(1, p.whole.cfg.Ranks, len(p.whole.survey().Devices))
	return f.Sources()
}

// cluster returns one rank as the planner sees it.
func (c *Config) cluster() (hardware.Cluster, error) {
	if c.Machine != nil {
		f := hardware.Cluster{Device: c.Machine.Device, Mixed: c.Mixed, Link: c.Machine.Link, Hosts: 1, PerHost: 1}
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
	return hardware.ParseCluster(devices)
}
