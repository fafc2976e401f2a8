package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/parallel/forecast"
)

// measured is what bench comm finds out: rates of this machine.
type measured struct {
	GEMM, Attention    float64 // floating point operations per second
	Bandwidth, Latency float64 // bytes per second of one rank; seconds of one exchange
	AllToAll           float64 // part of Bandwidth
}

// link replaces the rates of a link.
func (m measured) link(l forecast.Link) forecast.Link {
	return forecast.Link{
		Name: l.Name, Bandwidth: m.Bandwidth, Latency: m.Latency, AllToAll: m.AllToAll,
		Source: "patchbay bench comm",
	}
}

// saveMachine changes a profile, the built-in one of the cpu where there is none of that name.
func saveMachine(path string, change func(*forecast.Machine) error) error {
	m, err := daemon.ReadMachine(path)
	if errors.Is(err, fs.ErrNotExist) {
		m, err = forecast.NewMachine("cpu")
	}
	if err != nil {
		return console.BadInput(fmt.Errorf("--save: %w", err))
	}
	if err := change(&m); err != nil {
		return err
	}
	b, err := m.JSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return console.BadInput(fmt.Errorf("--save: %w", err))
	}
	return nil
}
