package parallel

import (
	"strings"
	"time"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/fault"
	"patchbay/parallel/comm"
	"patchbay/parallel/forecast"
	"patchbay/parallel/hardware"
	"patchbay/parallel/plan"
	"patchbay/parallel/process"
)

// Config configures a Pool. Fields that process.Config has too mean the same there.
type Config struct {
	NewOps                             func(rank, ranks int) (engine.Ops, error)
	DeviceOf                           func(rank int) string
	MemoryBytes, DeviceMemory, Reserve int64
	Transport                          comm.Transport // nil: comm.Local, on devices for one rank only
	Recode                             func(v any) (any, error)
	// Devices names the device of one rank (parallel/hardware/devices.json), with its link if it is not the usual one,
	// or those of all places if they differ; empty: "cpu". Stages are balanced, work is shared and plans are chosen by
	// it. Machine, if not nil, has measured rates and takes its place, with Mixed by place if devices differ, fastest
	// first.
	Devices string
	Machine *hardware.Machine
	Mixed   []hardware.Device
	// Patience is how long all ranks of a request together may make no progress before the request fails, 0: ten
	// minutes. It must exceed the longest single operation.
	Patience time.Duration
	// Ranks is how many ranks the devices of DeviceOf have places for, 0: any number. Plans with more ranks are
	// refused.
	Ranks int
	// Schedule says how waiting requests share the places of the leader; empty: ScheduleOne. Any other requires Ranks,
	// and Processes, if any, to be Divisible.
	Schedule Schedule
	// Lost, if not nil, is called when this process has lost a device, or a rank hangs in it for good.
	Lost func(error)
	// Order, if not 0, is the seed of a fixed order in which ranks and samplers run one at a time, so that an
	// interleaving can be repeated and many can be tried. Deadlocks are found at once. It is for tests and
	// measurements.
	Order uint64
	// EncoderDType is the activation type of text encoders and autoencoders, F32 (the zero value) or BF16.
	EncoderDType engine.DType
	// Deterministic adds deterministic=on to every plan, Streams adds stream=auto to those that do not say stream.
	Deterministic, Streams bool
	// HostMemory bounds the bytes of host memory from where blocks are brought to devices that have their own, 0: no
	// limit.
	HostMemory int64
	// Copies are those of process.Config.
	Copies *datafile.Copies
	// ProgramBytes is what the process takes of MemoryBytes in any case.
	ProgramBytes int64
	// Processes starts the processes that ranks run in; nil: all ranks run in this process.
	Processes Processes
}

// Processes manages the processes that ranks run in, here or on other machines.
type Processes interface {
	// Start returns processes with places for the given number of ranks, or for as many as are available. Ranks fill
	// the places in order. It is called before the first run, after a process was lost, and when Changed reports true.
	// The processes of the previous call are closed before.
	Start(ranks int) ([]process.Process, error)
	// Changed reports whether Start would return other processes now although none was lost.
	Changed(ranks int) bool
	// Missing lists the expected processes that are not available now, and why.
	Missing() []string
	// Survey returns what is known of the processes.
	Survey() hardware.Survey
}

// Divisible is Processes that several leaders can use at the same time, each with some of the processes.
type Divisible interface {
	Processes
	// On returns the processes at some places. Starting them connects them again, which must make them unusable for an
	// engine that had one of them before; what is resident in them stays.
	On(places []int) Processes
	// All returns the processes that there are, whichever leader has them.
	All() []process.Process
}

// fits refuses plans of more ranks than the devices have places for.
func (c *Config) fits(p plan.Plan) error {
	most := c.Ranks
	if c.DeviceOf != nil && c.Transport == nil && c.Processes == nil {
		most = 1 // nothing moves data between devices
	}
	if n := p.Ranks(); most > 0 && n > most {
		where := []string{"the processors (--ranks)"}
		for rank := range most {
			if c.DeviceOf != nil {
				where = append(where[:rank], c.DeviceOf(rank))
			}
		}
		return fault.Bad("plan", "%s splits the work over %d ranks, and there are places for %d: %s (a device that is "+
			"named twice has two)", p, n, most, strings.Join(where, ", "))
	}
	return nil
}

// room returns what weights and sessions may take of the process's memory, 0: any number of bytes.
func (c *Config) room() int64 {
	if c.MemoryBytes == 0 {
		return 0
	}
	return max(1, forecast.Room(c.MemoryBytes-c.ProgramBytes))
}

// Resident returns how much of MemoryBytes may stay resident when something is loaded. Without ProgramBytes, where only
// weights are counted, that is all.
func (c *Config) Resident() int64 {
	if c.ProgramBytes == 0 {
		return c.MemoryBytes
	}
	return c.room()
}

func (c *Config) transport() comm.Transport {
	if c.Transport == nil {
		return comm.Local{}
	}
	return c.Transport
}
