package daemon

import (
	"fmt"
	"slices"

	"patchbay/engine/cuda"
	ncclib "patchbay/engine/cuda/nccl"
	"patchbay/parallel/comm"
	"patchbay/parallel/comm/localcuda"
	"patchbay/parallel/comm/nccl"
)

// nccl returns the NCCL by which ranks on GPUs exchange data within this process, nil if they use copies of our own.
// The error names what makes --transport impossible.
func (c *Config) nccl(driver *cuda.Driver, infos []cuda.Info) (*ncclib.Library, error) {
	bad := func(format string, args ...any) (*ncclib.Library, error) {
		return nil, fmt.Errorf("--transport %s: "+format, append([]any{c.Transport}, args...)...)
	}
	switch {
	case !slices.Contains([]string{"", TransportAuto, transportLocal, transportNCCL}, c.Transport):
		return bad("want auto, local or nccl")
	case c.Hosts != "": // hosts say for themselves whether they have NCCL
		return nil, nil
	case driver == nil && c.Transport == transportNCCL:
		return bad("NCCL is for GPUs, and --devices is %s: want auto or local", c.Devices)
	case driver == nil || c.Transport == transportLocal:
		return nil, nil
	}
	for r := range infos {
		first := slices.IndexFunc(infos[:r], func(i cuda.Info) bool { return i.Index == infos[r].Index })
		switch {
		case first >= 0 && c.Transport == transportNCCL:
			return bad("ranks %d and %d are both on %s, and NCCL takes one rank a GPU: want auto or local", first, r,
				infos[r].Location())
		case first >= 0:
			return nil, nil
		}
	}
	if c.Placement == placementChildren { // each says for itself whether it has NCCL
		return nil, nil
	}
	if len(infos) < 2 && c.Transport != transportNCCL {
		return nil, nil
	}
	lib, err := ncclib.Open(driver.Driver, c.Libraries())
	switch {
	case err == nil:
		return lib, nil
	case c.Transport == transportNCCL:
		return bad("%w: want auto or local", err)
	}
	return nil, nil // `patchbay doctor` says why
}

// between returns the NCCL by which ranks here can exchange data with those of other processes, nil if there is none or
// --transport rules it out. The caller decides whether NCCL is allowed.
func (c *Config) between() (*ncclib.Library, error) {
	driver, _, err := c.gpus()
	if driver == nil || err != nil || c.Transport == transportLocal {
		return nil, err
	}
	lib, err := ncclib.Open(driver.Driver, c.Libraries())
	if err != nil && c.Transport == transportNCCL {
		return nil, fmt.Errorf("--transport %s: %w: want auto or local", c.Transport, err)
	}
	if err != nil {
		return nil, nil // `patchbay doctor` says why
	}
	return lib, nil
}

// transport returns the transport of ranks on GPUs, and a function that releases what it holds on the devices.
func (c *Config) transport(driver *cuda.Driver, infos []cuda.Info) (comm.Transport, func() error, error) {
	lib, err := c.nccl(driver, infos)
	switch {
	case err != nil:
		return nil, nil, err
	case lib == nil:
		return localcuda.Transport{}, func() error { return nil }, nil
	}
	t := nccl.New(lib, localcuda.Transport{})
	t.Beside = c.jobs() > 1
	return t, t.Close, nil
}
