package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"

	"patchbay/cli/console"
	"patchbay/daemon"
	"patchbay/parallel/hardware"
)

// measured holds the rates that bench comm measures on this machine.
type measured struct {
	GEMM, Attention    float64 // floating point operations per second; 0: not measured
	Bandwidth, Latency float64 // bytes per second of one rank while all send around a ring; seconds of one exchange
	AllToAll           float64 // bytes per second of one rank
	pairs              []hardware.Pair
}

// save replaces rates of a machine whose ranks exchange by link, on places if they are GPUs. Pairs with other GPUs are
// kept.
func (m measured) save(to *hardware.Machine, link string, places []string) error {
	if m.GEMM > 0 {
		to.Device.GEMM, to.Device.Attention = m.GEMM, m.Attention
	}
	to.Link = hardware.Interconnect{
		Name: cmp.Or(link, to.Link.Name), Bandwidth: m.Bandwidth, Latency: m.Latency,
		AllToAll: min(1, m.AllToAll/m.Bandwidth), Source: "patchbay bench comm",
	}
	if m.pairs == nil {
		return nil
	}
	to.Pairs = append(slices.DeleteFunc(slices.Clone(to.Pairs), func(p hardware.Pair) bool {
		return slices.Contains(places, p.A) && slices.Contains(places, p.B)
	}), m.pairs...)
	ways := to.Between(places)
	circle, all := math.Inf(1), math.Inf(1) // rates of the exchanges of all ranks, predicted from pairs alone
	for r, row := range ways {
		circle = min(circle, row[(r+1)%len(ways)].Bandwidth)
		seconds := 0.0
		for o, way := range row {
			if o != r {
				seconds += 1 / way.Bandwidth / float64(len(ways)-1)
			}
		}
		all = min(all, 1/seconds)
	}
	to.Link.RingFraction, to.Link.AllToAll = min(1, m.Bandwidth/circle), min(1, m.AllToAll/all)
	return nil
}

// saveMachine applies change to the rates of one kind of device, the link and the pairs in the profile at path; other
// kinds are kept. fresh is that kind where the profile lacks it, and the start of a new profile.
func saveMachine(path string, fresh hardware.Machine, change func(*hardware.Machine) error) error {
	kind := fresh.Device.Name
	m, err := daemon.ReadMachine(path)
	if errors.Is(err, fs.ErrNotExist) {
		m, err = fresh, nil
	}
	if err != nil {
		return console.BadInput(fmt.Errorf("--save: %w", err))
	}
	at := &m.Device
	if i := slices.IndexFunc(m.Others, func(d hardware.Device) bool { return d.Name == kind }); i >= 0 {
		at = &m.Others[i]
	} else if at.Name != kind {
		m.Others = append(m.Others, fresh.Device)
		at = &m.Others[len(m.Others)-1]
	}
	one := hardware.Machine{Device: *at, Link: m.Link, Pairs: m.Pairs}
	if err := change(&one); err != nil {
		return err
	}
	*at, m.Link, m.Pairs = one.Device, one.Link, one.Pairs
	b, err := m.JSON()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return console.BadInput(fmt.Errorf("--save: %w", err))
	}
	return nil
}
