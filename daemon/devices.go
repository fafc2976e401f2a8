package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"patchbay/engine/cuda"
	"patchbay/engine/cuda/library"
	"patchbay/parallel"
	"patchbay/parallel/plan"
)

// GPUs returns the numbers of the GPUs in the value of --devices (cuda:N, and lists and ranges of them), one for each
// rank; nil if it names none. A GPU that is named twice has two ranks.
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
		to, toErr := strconv.ParseUint(last, 10, 8)
		if err != nil || toErr != nil || to < from {
			return nil, bad
		}
		for n := int(from); n <= int(to); n++ {
			list = append(list, n)
		}
	}
	return list, nil
}

// Libraries says where NVIDIA's libraries are looked for. The driver is looked for in the named folders, then where the
// loader finds it.
func (c *Config) Libraries() *library.Search {
	return &library.Search{Folders: c.CUDALibs, ComfyUI: c.ComfyUI}
}

// places returns the devices of a worker, one for each rank that they have a place for; cpu takes any number.
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

// gpus returns the driver and the GPUs that --devices names, one for each rank; both are nil if it names none. Nothing
// is started on the devices.
func (c *Config) gpus() (*cuda.Driver, []cuda.Info, error) {
	list, err := GPUs(c.Devices)
	if list == nil || err != nil {
		return nil, nil, err
	}
	driver, have, usable, err := c.detectGPUs()
	switch {
	case errors.Is(err, cuda.ErrNotOpened):
		return nil, nil, fmt.Errorf("--devices %s: no NVIDIA driver: %w: want cpu", c.Devices, err)
	case driver == nil:
		return nil, nil, fmt.Errorf("--devices %s: %w: want cpu", c.Devices, err)
	case err != nil:
		return nil, nil, fmt.Errorf("--devices %s: %w", c.Devices, err)
	}
	allowed := "cpu"
	for _, i := range usable {
		allowed += ", " + i.Location() + " (" + i.Name + ")"
	}
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

// detectGPUs returns the driver, the GPUs of this machine, and those of them that can be used.
func (c *Config) detectGPUs() (driver *cuda.Driver, all, usable []cuda.Info, err error) {
	if driver, err = cuda.Open(c.Libraries().Named()...); err != nil {
		return nil, nil, nil, err
	}
	all, err = driver.Devices()
	for i := range all {
		if driver.Refusal(&all[i]) == nil {
			usable = append(usable, all[i])
		}
	}
	return driver, all, usable, err
}

// autoDevices is the value of --devices for all GPUs that can be used, or the processors if there are none.
const autoDevices = "auto"

// resolvedDevices returns --devices with auto replaced by what is here. Several workers get the processors, as they
// cannot share GPUs.
func (c *Config) resolvedDevices() string {
	if c.Devices != autoDevices {
		return c.Devices
	}
	if c.Workers > 1 {
		return "cpu"
	}
	_, _, usable, err := c.detectGPUs()
	if err != nil || usable == nil {
		return "cpu"
	}
	return strings.Join(locations(usable), ",")
}

// checkSchedule returns an error for a --schedule whose places are not on the machine of the worker, and for --ranks
// that do not fit --devices.
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
		return fmt.Errorf("--schedule %s --hosts %s: jobs run side by side on one machine: want --schedule one, and for "+
			"jobs side by side a daemon for each group of hosts, on one NATS server (--nats)", c.Schedule, c.Hosts)
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

// jobs returns how many jobs a worker handles at the same time: one, or if they run side by side, one for each place
// and two more, which are prepared or decoded meanwhile.
func (c *Config) jobs() int {
	gpus, _ := GPUs(c.Devices) // checked before
	if places := max(c.Ranks, len(gpus)); c.sharing() && places > 1 {
		return places + 2
	}
	return 1
}

func locations(infos []cuda.Info) (names []string) {
	for _, i := range infos {
		names = append(names, i.Location())
	}
	return names
}
