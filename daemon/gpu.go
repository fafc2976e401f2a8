package daemon

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel"
)

// GPUs are the devices that --devices names by number, nil where it names none: cuda:N, and lists and ranges of them.
func GPUs(devices string) ([]int, error) {
	if !strings.HasPrefix(devices, "cuda") {
		return nil, nil
	}
	bad := fmt.Errorf("--devices %s: want cuda:N, as in cuda:0, or lists and ranges as in cuda:0-3 and cuda:0,2", devices)
	var list []int
	seen := map[int]bool{}
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
			if seen[n] {
				return nil, fmt.Errorf("--devices %s: cuda:%d is there twice: one rank computes on a GPU", devices, n)
			}
			seen[n] = true
			list = append(list, n)
		}
	}
	return list, nil
}

// gpu is the device that --devices names, and the driver it is reached through; both are nil where it names none.
// Nothing is started on the device.
func (c *Config) gpu() (*cuda.Driver, *cuda.Info, error) {
	list, err := GPUs(c.Devices)
	if list == nil || err != nil {
		return nil, nil, err
	}
	if len(list) > 1 {
		return nil, nil, fmt.Errorf("--devices %s: %d GPUs; one is all that a worker can use yet: nothing moves data "+
			"between GPUs in this build", c.Devices, len(list))
	}
	driver, err := cuda.Open()
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
	if list[0] >= len(have) {
		return nil, nil, fmt.Errorf("--devices %s: there is no such GPU: want %s", c.Devices, allowed)
	}
	if err := driver.Refusal(&have[list[0]]); err != nil {
		return nil, nil, fmt.Errorf("--devices %s: %w: want %s", c.Devices, err, allowed)
	}
	return driver, &have[list[0]], nil
}

// EngineConfig makes what the ranks compute with of --devices, --memory, --device-memory and --reserve. The function
// gives the device back, after the engine.
func (c *Config) EngineConfig() (cfg parallel.Config, closing func() error, err error) {
	closing = func() error { return nil }
	memory, err := ParseBytes(c.Memory)
	if err != nil {
		return cfg, closing, err
	}
	driver, info, err := c.gpu()
	if err != nil {
		return cfg, closing, err
	}
	if cfg.Machine, err = c.Machine(); err != nil {
		return cfg, closing, err
	}
	if driver == nil {
		cfg.NewOps, cfg.MemoryBytes = NewOps, memory
		c.place(&cfg)
		return cfg, closing, nil
	}
	if cfg.DeviceMemory, err = ParseBytes(c.DeviceMemory); err != nil {
		return cfg, closing, err
	}
	if cfg.Reserve, err = ParseBytes(c.Reserve); err != nil {
		return cfg, closing, err
	}
	device, err := driver.Device(info.Index)
	if err != nil {
		return cfg, closing, err
	}
	cfg.MemoryBytes = cfg.DeviceMemory // all memory of the ranks is there
	cfg.DeviceOf = func(int) string { return info.Location() }
	cfg.NewOps = func(int, int) (engine.Ops, error) { return device.NewOps() }
	return cfg, device.Close, nil
}
