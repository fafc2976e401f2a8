package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"patchbay/parallel/forecast"
)

// Machine is the profile that --devices names, nil for the built-in one of the cpu.
func (c *Config) Machine() (*forecast.Machine, error) {
	if c.Devices == "cpu" || c.Devices == "" || strings.HasPrefix(c.Devices, "cuda") {
		return nil, nil //nolint:nilnil // no profile is no error
	}
	m, err := ReadMachine(c.Devices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--devices %s: want auto, cpu, GPUs as in cuda:0, or a file that `patchbay bench "+
			"step --save` has written", c.Devices)
	}
	if err != nil {
		return nil, fmt.Errorf("--devices: %w", err)
	}
	return &m, nil
}

// ReadMachine reads a profile.
func ReadMachine(path string) (forecast.Machine, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return forecast.Machine{}, err
	}
	m, err := forecast.ReadMachine(b)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
