package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/fault"
	"patchbay/ipc/spawn"
	"patchbay/parallel"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
)

// leaving is how long a rank's process may take to end when its leader has gone: there is nothing it must wait for.
const leaving = 2 * time.Second

// controlFD is the file descriptor at which a rank's process inherits the connection to its leader.
const controlFD = 3

// children are the processes that this one starts for ranks, one each. They get a part of the memory that this one may
// take, or have a GPU each. To the engine they are its parallel.Processes, and they end when their connections do.
type children struct {
	*Config
	infos    []cuda.Info // GPUs of the ranks; nil: they share the processors
	started  int
	ledger   *engine.Ledger // of this process, which reserves a part of its memory for them; nil: not counted
	memory   int64          // of this process and them
	reserved int64          // the part of it that is reserved for them

	mu    sync.Mutex
	dir   string // folder of the sockets by which they connect to each other
	count int    // processes started so far
	at    []*remote.Process
}

func (c *children) Changed(ranks int) bool { return ranks > c.started }

func (c *children) Missing() []string { return nil }

// Survey implements parallel.Processes. It is empty: they have the devices of this process.
func (c *children) Survey() hardware.Survey { return hardware.Survey{} }

func (c *children) Start(ranks int) ([]process.Process, error) {
	c.started = ranks
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	return c.gather(all)
}

func (c *children) On(places []int) parallel.Processes { return &childSubset{c, places} }

func (c *children) All() (all []process.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cl := range c.at {
		if cl != nil && cl.Err() == nil {
			all = append(all, cl)
		}
	}
	return all
}

// childSubset is a subset of children, by their places.
type childSubset struct {
	*children
	places []int
}

func (s *childSubset) Changed(int) bool { return false }

func (s *childSubset) Start(int) ([]process.Process, error) { return s.gather(s.places) }

// gather connects the processes at some places to each other, and starts those that do not run.
func (c *children) gather(places []int) (all []process.Process, err error) {
	var clients []*remote.Process
	defer func() {
		if err != nil {
			for _, cl := range clients {
				cl.Close()
			}
		}
	}()
	for _, p := range places {
		cl, err := c.process(p)
		if err != nil {
			return nil, err
		}
		clients, all = append(clients, cl), append(all, cl)
	}
	_, err = remote.Meet(clients, c.exchange(), false)
	return all, err
}

// process returns the process at a place, and starts it if it does not run.
func (c *children) process(place int) (*remote.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, make([]*remote.Process, max(0, place+1-len(c.at)))...)
	if cl := c.at[place]; cl != nil && cl.Err() == nil {
		return cl, nil
	}
	memory, err := c.reserve()
	if err == nil && c.dir == "" {
		c.dir, err = os.MkdirTemp("", "patchbay-ranks-")
	}
	if err != nil {
		return nil, err
	}
	c.count++
	c.at[place], err = c.startRank(place, memory, filepath.Join(c.dir, strconv.Itoa(c.count)))
	return c.at[place], err
}

// close removes the sockets by which the processes have connected to each other.
func (c *children) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}

// exchange returns how ranks of different processes exchange data: as --transport says, and for other machines
// --trusted-network.
func (c *Config) exchange() remote.Exchange {
	switch {
	case c.Transport == transportNCCL:
		return remote.ByNCCL
	case c.Transport == transportLocal || c.Hosts != "" && !c.TrustedNetwork:
		return remote.ByHost
	}
	return remote.ByBest
}

// reserve takes half of the memory out of the ledger of this process, for the processes of ranks, and returns the share
// of each; 0: memory is not counted. They hold the transformer and encoders that are split, or the host memory that
// GPUs need for those. Other encoders, the autoencoder and node values stay here.
func (c *children) reserve() (int64, error) {
	if c.ledger == nil {
		return 0, nil
	}
	ranks := c.started
	if c.sharing() {
		ranks = max(c.Ranks, len(c.infos))
	}
	share := c.memory / 2 / int64(ranks)
	if share < leastMemory {
		return 0, fault.Named(fault.OutOfMemory, "plan", "%d ranks in processes of their own need --memory %dM or more, it "+
			"is %dM", ranks, 2*ranks*leastMemory>>20, c.memory>>20)
	}
	if c.reserved == share*int64(ranks) {
		return share, nil
	}
	c.ledger.Give(c.reserved) // of processes that have ended
	c.reserved = 0
	if err := c.ledger.Take(share * int64(ranks)); err != nil {
		return 0, fault.Wrap(fault.OutOfMemory, "plan", fmt.Errorf("plan: start the processes of ranks: %w", err))
	}
	c.reserved = share * int64(ranks)
	return share, nil
}

// startRank starts the process of rank i, which may take so much memory (0: no limit) and listens at a path for the
// others.
func (c *children) startRank(i int, memory int64, listen string) (*remote.Process, error) {
	device := c.Devices
	if c.infos != nil {
		device = c.infos[i].Location()
	}
	name := fmt.Sprintf("the process of rank %d", i)
	cmd := exec.Command(program(), "rank", "--listen", listen, "--config", c.forRank(device, memory).argument())
	child, conn, err := spawn.Start(name, cmd, controlFD, remote.Start)
	if err != nil {
		return nil, err
	}
	return remote.NewClient(fmt.Sprintf("%s (pid %d)", name, child.PID()), conn, c.silence(), func() error {
		child.Within(leaving, "it did not exit when its leader had gone")
		return errors.New(child.Why())
	})
}
