package daemon

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/node/graph"
	"patchbay/parallel"
)

// ParseBytes reads a size: a number of bytes, or one with K, M, G or T (powers of 1024). Empty is 0.
func ParseBytes(text string) (int64, error) {
	number, unit := strings.TrimSpace(text), int64(1)
	if number == "" {
		return 0, nil
	}
	if at := strings.IndexByte("KMGT", strings.ToUpper(number)[len(number)-1]); at >= 0 {
		unit = 1 << (10 * (at + 1))
		number = number[:len(number)-1]
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0) || v*float64(unit) > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size: want bytes, or a number with K, M, G or T, as in 12G", text)
	}
	return int64(v * float64(unit)), nil
}

// leastMemory is what a worker needs to start at all.
const leastMemory = 96 << 20

// mappedBase is the address space that a process of ours takes whatever it does: reservations of the Go runtime, thread
// stacks, arenas of the C library (1.7 GiB in an idle worker, 1.9 in the daemon, on two processors).
const mappedBase = 2 << 30

// checkAddresses returns an error for a limit of address space (ulimit -v; 0: none) under which a process would crash
// halfway: neither the Go runtime nor C can go on if a stack or an arena cannot be mapped. memory is the value of
// --memory, 0 for the default, which respects the limit.
func checkAddresses(limit, memory int64) error {
	switch left := limit - mappedBase; {
	case limit == 0:
	case left < leastMemory:
		return fmt.Errorf("a process may have %d MiB of address space (ulimit -v) and needs %d: lift it with `ulimit -v "+
			"unlimited`, and bound what a worker holds with --memory", limit>>20, (mappedBase+leastMemory)>>20)
	case memory > left:
		return fmt.Errorf("--memory %dM: a process may have %d MiB of address space (ulimit -v), which leaves %d: lift it "+
			"with `ulimit -v unlimited`, or give --memory %[3]dM", memory>>20, limit>>20, left>>20)
	}
	return nil
}

// addressSpace returns how many bytes this process, and each that it starts, may map; 0: no limit.
func addressSpace() int64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &r); err != nil || r.Cur > math.MaxInt64 {
		return 0
	}
	return int64(r.Cur)
}

// shareOf returns how much of a worker's room node values may take between runs, and sets the bound for those of a run
// to the room. Kept values are dropped when a run needs the memory. room 0: not known.
func shareOf(room int64, bounds *graph.Bounds) int64 {
	if room <= 0 {
		return 0
	}
	bounds.Room = room
	return min(2<<30, room/4)
}

// newLedger creates the ledger of a process that may take so many bytes, and makes ec count there what it computes
// with: the mappings of operations on the processors, or for GPUs pinned memory and what the driver takes itself.
// shrink is that of engine.NewLedger.
func newLedger(memory int64, ec *parallel.Config, shrink func()) *engine.Ledger {
	l := engine.NewLedger(memory, residentNow(), shrink)
	if ec.DeviceOf == nil {
		ec.NewOps = func(_, ranks int) (engine.Ops, error) { return countedOps(l, ranks) }
		return l
	}
	inner, began := ec.NewOps, sync.OnceFunc(func() { l.Rebase(residentNow()) })
	ec.NewOps = func(rank, ranks int) (engine.Ops, error) {
		ops, err := inner(rank, ranks)
		if err != nil {
			return nil, err
		}
		began()
		if device, ok := ops.(interface{ CountHost(l *engine.Ledger) }); ok {
			device.CountHost(l)
		}
		return ops, nil
	}
	return l
}

// bound makes ec count what it computes with in a ledger, and refuse weights that the memory which the process may take
// does not hold. memory is that, and the ledger nil, if it is not known (0). shrink is that of engine.NewLedger.
func (c *Config) bound(
	ec *parallel.Config, shrink func(), log zerolog.Logger,
) (memory int64, l *engine.Ledger, err error) {
	memory, err = c.HostMemory()
	if ec.Copies = c.copies(nil, log); err != nil || memory == 0 {
		return memory, nil, err
	}
	if l = newLedger(memory, ec, shrink); ec.DeviceOf == nil {
		ec.MemoryBytes, ec.ProgramBytes = memory, memory-l.Room()
	}
	if ranks, ok := ec.Processes.(*children); ok {
		ranks.ledger, ranks.memory = l, memory
	}
	if ec.Copies = c.copies(l, log); !ec.Copies.OnDisk() {
		ec.HostMemory = memory
	}
	return memory, l, nil
}

// copies returns the packed blocks in host memory: in the files of --pack-cache, else in memory that the ledger counts.
func (c *Config) copies(l *engine.Ledger, log zerolog.Logger) *datafile.Copies {
	return datafile.NewCopies(c.PackCache, c.Version, l.Spare, func(err error) {
		log.Warn().Err(err).Msg("--pack-cache cannot be used")
	})
}

// BoundEngine is EngineConfig for a process that runs the engine alone: it stays within --memory as a worker does.
func (c *Config) BoundEngine(log zerolog.Logger) (cfg parallel.Config, closing func() error, err error) {
	cfg, closing, err = c.EngineConfig()
	if err != nil {
		return cfg, closing, err
	}
	if _, _, err = c.bound(&cfg, nil, log); err != nil {
		return cfg, closing, errors.Join(&InputError{Err: fmt.Errorf("--memory %w", err)}, closing())
	}
	return cfg, closing, nil
}

// HostMemory returns how much of the machine's memory a process may take: --memory, or nine tenths of what is
// available; 0: not known.
func (c *Config) HostMemory() (int64, error) {
	memory, err := ParseBytes(c.Memory)
	if memory == 0 {
		memory = availableMemory() / 10 * 9
	}
	return memory, err
}

// residentNow returns the resident memory of this process, including pages of files; 0: not known.
func residentNow() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// availableMemory returns how much this process may still take: the least of what the system reports as available and
// what the limits of its control group and of its address space leave; 0: not known.
func availableMemory() int64 {
	free := memInfo("MemAvailable:")
	if left := groupMemory(); left > 0 && (free == 0 || left < free) {
		free = left
	}
	if limit := addressSpace(); limit > 0 && (free == 0 || limit-mappedBase < free) {
		free = max(limit-mappedBase, 1)
	}
	return free
}

// memInfo reads one line of /proc/meminfo, in bytes.
func memInfo(key string) int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == key {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// groupMemory returns what the limits of the process's control group (version 2) and of the groups above it leave; 0:
// no limit.
func groupMemory() int64 {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	_, path, ok := strings.Cut(strings.TrimSpace(string(text)), "0::")
	if !ok {
		return 0
	}
	least := int64(0)
	for dir := filepath.Join("/sys/fs/cgroup", path); strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = filepath.Dir(dir) {
		limit, used := groupNumber(dir, "memory.max"), groupNumber(dir, "memory.current")
		if limit > 0 && (least == 0 || limit-used < least) {
			least = max(limit-used, 1)
		}
	}
	return least
}

func groupNumber(dir, file string) int64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return n
}
