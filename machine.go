package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"patchbay/parallel"
)

// measured is what bench comm finds out: rates of this machine.
type measured struct {
	GEMM, Attention    float64 // floating point operations per second
	Bandwidth, Latency float64 // bytes per second of one rank; seconds of one exchange
	AllToAll           float64 // part of Bandwidth
}

// link replaces the rates of a link.
func (m measured) link(l parallel.Link) parallel.Link {
	return parallel.Link{Name: l.Name, Bandwidth: m.Bandwidth, Latency: m.Latency, AllToAll: m.AllToAll, Source: "patchbay bench comm"}
}

// machine is the profile that --devices names, nil for the built-in one of the cpu.
func (c *config) machine() (*parallel.Machine, error) {
	if c.Devices == "cpu" || c.Devices == "" {
		return nil, nil //nolint:nilnil // no profile is no error
	}
	m, err := readMachine(c.Devices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--devices %s: want cpu, the only device of this build, or a file that `patchbay bench step --save` has written", c.Devices)
	}
	if err != nil {
		return nil, fmt.Errorf("--devices: %w", err)
	}
	return &m, nil
}

// readMachine reads a profile.
func readMachine(path string) (parallel.Machine, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return parallel.Machine{}, err
	}
	m, err := parallel.ReadMachine(b)
	if err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// saveMachine changes a profile, the built-in one of the cpu where there is none of that name.
func saveMachine(path string, change func(*parallel.Machine) error) error {
	m, err := readMachine(path)
	if errors.Is(err, fs.ErrNotExist) {
		m, err = parallel.NewMachine("cpu")
	}
	if err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--save: %w", err)}
	}
	if err := change(&m); err != nil {
		return err
	}
	b, err := m.JSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return &exitError{exitBadInput, fmt.Errorf("--save: %w", err)}
	}
	return nil
}

// useProfile replaces the rates of a fabric by those of a profile; names, memory and counts stay.
func useProfile(path string, f *parallel.Fabric) error {
	m, err := readMachine(path)
	if err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	d, l := m.Device, m.Link
	d.Name, d.Memory, d.Reserved, d.WeightBytes, d.ValueBytes = f.Device.Name, f.Device.Memory, f.Device.Reserved, f.Device.WeightBytes, f.Device.ValueBytes
	l.Name = f.Link.Name
	f.Device, f.Link = d, l
	return nil
}
