package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/hardware"
)

// opened holds the GPUs of ranks, each of which is opened when its first rank comes.
type opened struct {
	driver *cuda.Driver
	infos  []cuda.Info // by rank
	eager  bool        // no CUDA graphs
	fixed  bool        // only our own kernels, one for each pair of types
	loaded func(device, kernels string)
	mu     sync.Mutex
	of     map[int]*cuda.Device // by number
}

// newOps returns operations on a stream of its own on the device of a rank.
func (o *opened) newOps(rank, _ int) (engine.Ops, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.infos[rank%len(o.infos)].Index
	if o.of[n] == nil {
		device, err := o.driver.Device(n)
		if err != nil {
			return nil, err
		}
		device.Eager = o.eager
		o.of[n] = device
		if o.loaded != nil {
			o.loaded(device.Location(), device.Loaded().String())
		}
	}
	ops, err := o.of[n].NewOps()
	if err == nil {
		ops.Fix(o.fixed)
	}
	return ops, err
}

func (o *opened) close() error {
	var errs []error
	for _, device := range o.of {
		errs = append(errs, device.Close())
	}
	return errors.Join(errs...)
}

// usual returns the rates of GPUs that were not measured: those of the built-in table, by their names.
func usual(infos []cuda.Info) *hardware.Machine {
	var all hardware.Machine
	for i, info := range distinct(infos) {
		m := hardware.Usual(info.Name, 10*info.Major+info.Minor, info.Memory)
		if i == 0 {
			all = m
			continue
		}
		if all.Others = append(all.Others, m.Device); m.Link.Bandwidth < all.Link.Bandwidth {
			all.Link = m.Link
		}
	}
	return &all
}

// distinct returns the first GPU of each kind.
func distinct(infos []cuda.Info) (kinds []cuda.Info) {
	for _, info := range infos {
		if !slices.ContainsFunc(kinds, func(o cuda.Info) bool { return o.Name == info.Name }) {
			kinds = append(kinds, info)
		}
	}
	return kinds
}

// rated applies the rates of a machine (nil: those of the built-in table) to GPUs. If they are of several kinds, order
// has the fastest first and mixed the device at each place. If not, mixed is nil, and the kind is the Device of the
// machine; without GPUs that is the cpu.
func rated(m *hardware.Machine, infos []cuda.Info,
) (of *hardware.Machine, mixed []hardware.Device, order []cuda.Info, err error) {
	if m == nil && infos != nil {
		m = usual(infos)
	}
	if m == nil || m.Others == nil {
		return m, nil, infos, nil
	}
	if infos == nil {
		d, err := m.Kind("cpu")
		return m.For(d), nil, nil, err
	}
	kinds := map[string]hardware.Device{}
	for _, i := range infos {
		d, err := m.Kind(i.Name)
		if err != nil {
			return nil, nil, nil, err
		}
		d.Memory, d.Reserved = i.Memory, 0
		kinds[i.Name] = d
	}
	if len(kinds) == 1 {
		return m.For(kinds[infos[0].Name]), nil, infos, nil
	}
	infos = slices.Clone(infos)
	slices.SortStableFunc(infos, func(a, b cuda.Info) int { return cmp.Compare(kinds[b.Name].GEMM, kinds[a.Name].GEMM) })
	for _, i := range infos {
		mixed = append(mixed, kinds[i.Name])
	}
	return m.For(mixed[0]), mixed, infos, nil
}

// ratedGPUs returns the GPUs of --devices in the order of ranks, and their rates (see rated).
func (c *Config) ratedGPUs() (of *hardware.Machine, mixed []hardware.Device, driver *cuda.Driver, infos []cuda.Info,
	err error,
) {
	if driver, infos, err = c.gpus(); err != nil {
		return nil, nil, nil, nil, err
	}
	if of, err = c.Machine(); err != nil {
		return nil, nil, nil, nil, err
	}
	if of, mixed, infos, err = rated(of, infos); err != nil {
		err = fmt.Errorf("--rates %s: %w", c.Rates, err)
	}
	return of, mixed, driver, infos, err
}

// Cluster returns the GPUs of --devices as a worker plans for them, in its order.
func (c *Config) Cluster() (hardware.Cluster, error) {
	m, mixed, _, infos, err := c.ratedGPUs()
	if err != nil {
		return hardware.Cluster{}, err
	}
	f := hardware.Cluster{Device: m.Device, Mixed: mixed, Link: m.Link, Hosts: 1, PerHost: len(infos)}
	f.Between = m.Between(locations(infos))
	return f, nil
}

// BuiltInRates returns the built-in rates of each kind of device in --devices, that of the first rank first.
func (c *Config) BuiltInRates() (kinds []hardware.Machine, err error) {
	_, _, _, infos, err := c.ratedGPUs()
	if err != nil {
		return nil, err
	}
	if infos == nil {
		return []hardware.Machine{hardware.CPU()}, nil
	}
	for _, info := range distinct(infos) {
		kinds = append(kinds, *usual([]cuda.Info{info}))
	}
	return kinds, nil
}

// EngineConfig returns the configuration of an engine for --devices, --transport and the flags of the devices' memory.
// closing releases the devices; it must be called after the engine is closed.
func (c *Config) EngineConfig() (cfg parallel.Config, closing func() error, err error) {
	closing = func() error { return nil }
	cfg.Patience, cfg.Deterministic, cfg.Streams = c.Patience, c.Deterministic, true
	cfg.Schedule, cfg.Ranks = parallel.Schedule(c.Schedule), c.Ranks
	var driver *cuda.Driver
	var infos []cuda.Info
	if cfg.Machine, cfg.Mixed, driver, infos, err = c.ratedGPUs(); err != nil {
		return cfg, closing, err
	}
	if driver == nil {
		cfg.NewOps = NewOps
		if c.Placement == placementChildren {
			ranks := &children{Config: c}
			cfg.Processes, closing = ranks, ranks.close
		}
		return cfg, closing, nil
	}
	if cfg.DeviceMemory, cfg.Reserve, err = c.deviceMemory(); err != nil {
		return cfg, closing, err
	}
	if _, _, err := driver.Use(c.Libraries()); err != nil {
		return cfg, closing, fmt.Errorf("--devices %s: %w: --cuda-libs off does without NVIDIA's libraries", c.Devices, err)
	}
	devices := &opened{
		driver: driver, infos: infos, eager: c.Graphs == graphsOff, fixed: c.Deterministic, loaded: c.Loaded,
		of: map[int]*cuda.Device{},
	}
	if c.Compute != string(value.ComputeF32) {
		cfg.EncoderDType = engine.BF16
	}
	cfg.MemoryBytes = cfg.DeviceMemory // all memory of the ranks is on the devices
	cfg.DeviceOf = func(rank int) string { return infos[rank%len(infos)].Location() }
	transport, end, err := c.transport(driver, infos)
	if err != nil {
		return cfg, closing, err
	}
	cfg.NewOps, cfg.Transport, cfg.Ranks = devices.newOps, transport, len(infos)
	release := func() error { return errors.Join(end(), devices.close()) }
	if c.Placement != placementChildren {
		return cfg, release, nil
	}
	ranks := &children{Config: c, infos: infos}
	cfg.Processes = ranks
	return cfg, func() error { return errors.Join(ranks.close(), release()) }, nil
}

// deviceMemory returns how many bytes weights and buffers may take on a GPU (0: no limit), and how many they leave to
// others.
func (c *Config) deviceMemory() (most, reserve int64, err error) {
	if most, err = ParseBytes(c.DeviceMemory); err != nil {
		return 0, 0, fmt.Errorf("--device-memory %w", err)
	}
	if reserve, err = ParseBytes(c.Reserve); err != nil {
		return 0, 0, fmt.Errorf("--reserve %w", err)
	}
	return most, reserve, nil
}

// site describes the devices of so many places to a leader. On the processors the ranks share the rates that one of
// them has alone.
func (c *Config) site(places int, ops engine.Ops) (s hardware.Site, err error) {
	m, mixed, _, infos, err := c.ratedGPUs()
	if err != nil {
		return s, err
	}
	if m == nil {
		cpu := hardware.CPU()
		m = &cpu
	}
	memory, reserve, err := c.deviceMemory()
	s.Link, s.GPUs = m.Link, infos != nil
	for i := range places {
		d := m.Device
		if mixed != nil {
			d = mixed[i%len(mixed)]
		}
		if s.GPUs {
			d.Memory = infos[i%len(infos)].Memory
			if ops, ok := ops.(engine.Reserver); ok {
				d.Workspace = ops.Workspace(true) // of any model
			}
			d = d.Bounded(memory, reserve)
		} else {
			n := float64(places)
			d.GEMM, d.Attention, d.Traffic = d.GEMM/n, d.Attention/n, d.Traffic/n
		}
		s.Devices = append(s.Devices, d)
	}
	return s, err
}
