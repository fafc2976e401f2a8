package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"patchbay/parallel/hardware"
)

// Machine reads the measured rates that --rates names, nil for the built-in rates. It returns an error for --devices
// that are neither the cpu nor GPUs.
func (c *Config) Machine() (*hardware.Machine, error) {
	if d := c.Devices; d != "cpu" && d != "" && !strings.HasPrefix(d, "cuda") {
		if _, err := os.Stat(d); err == nil {
			return nil, fmt.Errorf("--devices %s: want auto, cpu, or GPUs as in cuda:0; measured rates are given by "+
				"--rates %s", d, d)
		}
		return nil, fmt.Errorf("--devices %s: want auto, cpu, or GPUs as in cuda:0", d)
	}
	if c.Rates == "" {
		return nil, nil //nolint:nilnil // no file is no error
	}
	m, err := ReadMachine(c.Rates)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--rates %s: no such file; `patchbay bench step --save FILE` writes one", c.Rates)
	}
	if err != nil {
		return nil, fmt.Errorf("--rates: %w", err)
	}
	return &m, nil
}

// ReadMachine reads a file of measured rates.
func ReadMachine(path string) (hardware.Machine, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return hardware.Machine{}, err
	}
	m, err := hardware.ReadMachine(b)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
