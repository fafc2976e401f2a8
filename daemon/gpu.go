package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/node/value"
	"patchbay/parallel"
	"patchbay/parallel/plan"
)

// The values of --graphs.
const (
	GraphsOn  = "on"
	graphsOff = "off"
)

// GPUs are the devices that --devices names by number, nil where it names none: cuda:N, and lists and ranges of them,
// one for each rank. A GPU that stands there twice has two ranks.
func GPUs(devices string) ([]int, error) {
	if !strings.HasPrefix(devices, "cuda") {
		return nil, nil
	}
	bad := fmt.Errorf("--devices %s: want cuda:N, as in cuda:0, or lists and ranges as in cuda:0-3 and cuda:0,2", devices)
	var list []int
	for i, part := range strings.Split(devices, ",") {
		text, named := strings.CutPrefix(part, "cuda:")
		if i == 0 && !named {
			return nil, bad
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 8)
		if err != nil {
			return nil, bad
		}
		to, err := strconv.ParseUint(last, 10, 8)
		if err != nil || to < from {
			return nil, bad
		}
		for n := int(from); n <= int(to); n++ {
			list = append(list, n)
		}
	}
	return list, nil
}

// Libraries says where NVIDIA's libraries are looked for, the driver in the named folders alone.
func (c *Config) Libraries() *library.Search {
	return &library.Search{Folders: c.CUDALibs, ComfyUI: c.ComfyUI}
}

// places are the devices of a worker, one for each rank that they have a place for; cpu takes any number.
func (c *Config) places() []string {
	list, err := GPUs(c.Devices)
	if list == nil || err != nil {
		return []string{"cpu"}
	}
	var out []string
	for _, n := range list {
		out = append(out, fmt.Sprintf("cuda:%d", n))
	}
	return out
}

// gpus are the devices that --devices names, one for each rank, and the driver they are reached through; both are nil
// where it names none. Nothing is started on the devices.
func (c *Config) gpus() (*cuda.Driver, []cuda.Info, error) {
	list, err := GPUs(c.Devices)
	if list == nil || err != nil {
		return nil, nil, err
	}
	driver, err := cuda.Open(c.Libraries().Named()...)
	switch {
	case errors.Is(err, cuda.ErrNotOpened):
		return nil, nil, fmt.Errorf("--devices %s: no NVIDIA driver: %w: want cpu", c.Devices, err)
	case err != nil:
		return nil, nil, fmt.Errorf("--devices %s: %w: want cpu", c.Devices, err)
	}
	have, err := driver.Devices()
	if err != nil {
		return nil, nil, fmt.Errorf("--devices %s: %w", c.Devices, err)
	}
	names := []string{"cpu"}
	for i := range have {
		if driver.Refusal(&have[i]) == nil {
			names = append(names, have[i].Location()+" ("+have[i].Name+")")
		}
	}
	allowed := strings.Join(names, ", ")
	infos := make([]cuda.Info, len(list))
	for i, n := range list {
		if n >= len(have) {
			return nil, nil, fmt.Errorf("--devices %s: there is no such GPU: want %s", c.Devices, allowed)
		}
		if err := driver.Refusal(&have[n]); err != nil {
			return nil, nil, fmt.Errorf("--devices %s: %w: want %s", c.Devices, err, allowed)
		}
		infos[i] = have[n]
	}
	return driver, infos, nil
}

// autoDevices is the value of --devices for every GPU that can be used, and the processors where there is none.
const autoDevices = "auto"

// chosen is --devices with auto replaced by what is here. Several workers have the processors, as they cannot share
// GPUs.
func (c *Config) chosen() string {
	if c.Devices != autoDevices {
		return c.Devices
	}
	if c.Workers > 1 {
		return "cpu"
	}
	driver, err := cuda.Open(c.Libraries().Named()...)
	if err != nil {
		return "cpu"
	}
	have, err := driver.Devices()
	if err != nil {
		return "cpu"
	}
	var names []string
	for i := range have {
		if driver.Refusal(&have[i]) == nil {
			names = append(names, have[i].Location())
		}
	}
	if names == nil {
		return "cpu"
	}
	return strings.Join(names, ",")
}

// checkSchedule refuses a --schedule whose places are not in the worker's process, and --ranks that nobody shares out.
func (c *Config) checkSchedule() error {
	gpus, _ := GPUs(c.Devices) // checked before
	known := []parallel.Schedule{"", parallel.ScheduleOne, parallel.ScheduleAuto, parallel.ScheduleEach}
	switch {
	case !slices.Contains(known, parallel.Schedule(c.Schedule)):
		return fmt.Errorf("--schedule %s: want one, auto or each", c.Schedule)
	case c.Ranks < 0 || c.Ranks > plan.MaxRanks:
		return fmt.Errorf("--ranks %d: want 1 to %d places on the processors", c.Ranks, plan.MaxRanks)
	case c.Ranks > 0 && gpus != nil:
		return fmt.Errorf("--ranks %d --devices %s: a GPU is one place; name it twice for two", c.Ranks, c.Devices)
	case !c.sharing():
		return nil
	case c.Hosts != "":
		return fmt.Errorf("--schedule %s --hosts %s: jobs run side by side in one process: want --schedule one",
			c.Schedule, c.Hosts)
	case c.Placement == placementChildren:
		return fmt.Errorf("--schedule %s --placement children: jobs run side by side in one process: want --placement "+
			"threads", c.Schedule)
	case gpus == nil && c.Ranks == 0:
		return fmt.Errorf("--schedule %s --devices %s: say by --ranks how many places the processors are", c.Schedule,
			c.Devices)
	}
	return nil
}

// sharing reports whether jobs may run side by side.
func (c *Config) sharing() bool {
	return c.Schedule != "" && c.Schedule != string(parallel.ScheduleOne)
}

// jobs is how many jobs a worker has in hand: where they run side by side one a place, and two that are prepared or
// decoded meanwhile.
func (c *Config) jobs() int {
	gpus, _ := GPUs(c.Devices) // checked before
	if places := max(c.Ranks, len(gpus)); c.sharing() && places > 1 {
		return places + 2
	}
	return 1
}

// opened are the devices of ranks, each opened when its first rank comes.
type opened struct {
	driver *cuda.Driver
	infos  []cuda.Info // by rank
	eager  bool        // no graphs
	fixed  bool        // our kernels alone, one a pair of types
	mu     sync.Mutex
	of     map[int]*cuda.Device // by number
}

// newOps makes a stream on the device of a rank.
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
	}
	ops, err := o.of[n].NewOps()
	if err == nil {
		ops.Fix(o.fixed)
	}
	return ops, err
}

// close gives all devices back.
func (o *opened) close() error {
	var errs []error
	for _, device := range o.of {
		errs = append(errs, device.Close())
	}
	return errors.Join(errs...)
}

// EngineConfig makes what the ranks compute with of --devices, --transport and the flags of memory. The function
// gives the devices back, after the engine.
func (c *Config) EngineConfig() (cfg parallel.Config, closing func() error, err error) {
	closing = func() error { return nil }
	cfg.Patience, cfg.Deterministic = c.Patience, c.Deterministic
	cfg.Schedule, cfg.Ranks = parallel.Schedule(c.Schedule), c.Ranks
	memory, err := ParseBytes(c.Memory)
	if err != nil {
		return cfg, closing, err
	}
	driver, infos, err := c.gpus()
	if err != nil {
		return cfg, closing, err
	}
	if cfg.Machine, err = c.Machine(); err != nil {
		return cfg, closing, err
	}
	if driver == nil {
		cfg.NewOps, cfg.MemoryBytes = NewOps, memory
		if c.Placement == placementChildren {
			cfg.Hosts = &children{Config: c}
		}
		return cfg, closing, nil
	}
	if cfg.DeviceMemory, err = ParseBytes(c.DeviceMemory); err != nil {
		return cfg, closing, err
	}
	if cfg.Reserve, err = ParseBytes(c.Reserve); err != nil {
		return cfg, closing, err
	}
	if _, _, err := driver.Use(c.Libraries()); err != nil {
		return cfg, closing, fmt.Errorf("--devices %s: %w: --cuda-libs off does without NVIDIA's libraries", c.Devices, err)
	}
	devices := &opened{
		driver: driver, infos: infos, eager: c.Graphs == graphsOff, fixed: c.Deterministic, of: map[int]*cuda.Device{},
	}
	if c.Compute != string(value.ComputeF32) {
		cfg.Beside = engine.BF16
	}
	cfg.MemoryBytes = cfg.DeviceMemory // all memory of the ranks is there
	cfg.DeviceOf = func(rank int) string { return infos[rank%len(infos)].Location() }
	transport, end, err := c.transport(driver, infos)
	if err != nil {
		return cfg, closing, err
	}
	cfg.NewOps, cfg.Transport, cfg.Ranks = devices.newOps, transport, len(infos)
	if c.Placement == placementChildren {
		cfg.Hosts = &children{Config: c, infos: infos}
	}
	return cfg, func() error { return errors.Join(end(), devices.close()) }, nil
}
