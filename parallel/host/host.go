// Package host is what one process gives to the ranks of a plan: the Ops of its devices, the weights that are resident
// there under a budget (placement.go), and the ranks themselves (crew.go). The leader of a run reaches all of it by the
// interfaces Host and Member, so that it may be another process. The package knows plans and ranks, no request and no
// sampler; where weights come from is its caller's business.
package host

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/group"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
)

// Weights tells how to get the weights of a model.
type Weights interface {
	// Load reads and packs the part in held (embeddings and head are always part of it). Ranks of one device share the
	// result.
	Load(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// Need is a part of a model's weights that a rank holds.
type Need struct {
	Place int // of the rank that holds it, whose device gets it
	Held  dit.Held
	Bytes int64 // estimate of the memory
	// Beside is what the rank takes on its device next to the weights (activations, exchanges, kept keys and values,
	// workspaces), for which room is made too; 0: not known.
	Beside int64
}

// Team is what every process must know of ranks that work together.
type Team struct {
	ID       uint64
	Plan     plan.Plan
	Folded   bool          // micro-steps go down and back up (plan.Cut): two members work on one device
	Deadline time.Duration // of a wait for a peer
	Hosts    []int         // number of the process that each member lives in; nil: all share one
	Here     []int         // members that live in the process that is told, ascending
	First    int           // rank that has the first place of that process
	Beside   int           // ranks that compute at the same time, those of other teams too; 0: the plan's
}

// Mesh is the coordinates of the members: those of the plan, with a stop of its own for each way of a folded stage.
func (t *Team) Mesh() plan.Mesh {
	stops := t.Plan
	stops.Pipe = t.Plan.Stops(t.Folded)
	return plan.Mesh{Plan: stops, Stages: t.Plan.Pipe}
}

// Device returns the rank of the plan that a member belongs to, and whether it is the one to which micro-steps come
// first: folded stages have two members, one for the way down and one for the way up.
func (t *Team) Device(member int) (rank int, down bool) {
	m := t.Mesh()
	c := m.At(member)
	down = c.Pipe < t.Plan.Pipe
	if !down {
		c.Pipe = m.Plan.Pipe - 1 - c.Pipe
	}
	return plan.Mesh{Plan: t.Plan}.Rank(c), down
}

// Host is a process in which ranks run.
type Host interface {
	// Acquire makes parts of the weights of a model resident on the devices of their ranks, and reports whether any had to
	// be loaded. It refuses what does not fit before reading it. key names the model.
	Acquire(key string, w Weights, need []Need) (loaded bool, err error)
	// Join starts the members of t.Here.
	Join(t Team) (Crew, error)
	// Resident lists the models whose weights are loaded, most recently used first, device by device.
	Resident() []Resident
	// Evict drops the weights of key, all if it is empty. No crew may be at work.
	Evict(key string)
	// Places is how many ranks the process has a device for, 0: any number.
	Places() int
	// Interruptible is that of the transport of its ranks (comm.Transport).
	Interruptible() bool
	// Err says why the process has gone, nil if it has not.
	Err() error
	// Close gives everything back. No crew may be left.
	Close()
}

// Crew is the members of a team that one process runs.
type Crew interface {
	// Members are the members in the order of Team.Here.
	Members() []Member
	// Silent reports whether the process is overdue to say where its members are: their positions are old.
	Silent() bool
	// Close lets all members end after the commands they have. The channel is closed when they have.
	Close() (ended <-chan struct{})
}

// Member is a rank as the leader of a run reaches it. rank.Link has what the methods promise.
type Member interface {
	Send(c rank.Command) (<-chan rank.Reply, error)
	Cancel(session uint64)
	Standing() rank.Standing
	Abort(cause error)
}

// Config says what a process has for ranks.
type Config struct {
	// NewOps makes the operations of one rank of so many that compute at the same time. All values it returns must be able
	// to share packed weights; memory that one has allocated may be freed by another.
	NewOps func(rank, ranks int) (engine.Ops, error)
	// MemoryBytes bounds weights, activations and buffers together in the memory of this process, 0: no limit.
	MemoryBytes int64
	// DeviceOf names the device of a rank, as its Ops do (engine.Located); nil: all ranks work in the memory of this
	// process.
	DeviceOf func(rank int) string
	// DeviceMemory bounds the same on each device, 0: what is free there when weights are loaded. Reserve bytes of that
	// are left to others.
	DeviceMemory, Reserve int64
	// Transport connects the ranks; nil: comm.Local, which moves the memory of this process.
	Transport comm.Transport
	// Recode passes every command and reply of a rank through an encoder and decoder: the tests' proof that ranks share no
	// memory with the leader. Nil in production.
	Recode func(v any) (any, error)
	// Places is how many ranks there is a device for, 0: any number.
	Places int
	// Order, if not nil, has ranks run one at a time.
	Order *group.Scheduler
}

// deviceOf names the device of a rank, "" for the memory of this process.
func (c *Config) deviceOf(rank int) string {
	if c.DeviceOf == nil {
		return ""
	}
	return c.DeviceOf(rank)
}

// Local is the ranks and weights of this process. Safe for concurrent use, as far as Host allows.
type Local struct {
	cfg Config
	*devices
	view bool // else nobody else uses weights while it acquires some
}

// devices are what views of a process share.
type devices struct {
	places   map[string]*placements // by device
	resident sync.Mutex             // of places
}

// New makes a host without ranks. It starts the device of rank 0.
func New(cfg Config) (*Local, error) {
	h := &Local{cfg: cfg, devices: &devices{places: map[string]*placements{}}}
	_, err := h.placesOf(0)
	return h, err
}

// Ops are operations on the device of rank 0, for work beside ranks.
func (h *Local) Ops() engine.Ops { return h.places[h.cfg.deviceOf(0)].ops }

// OpsOf are operations on the device of a rank, which load weights there.
func (h *Local) OpsOf(rank int) (engine.Ops, error) {
	p, err := h.placesOf(rank)
	if err != nil {
		return nil, err
	}
	return p.ops, nil
}

// NewOps makes operations of one rank of so many, for work beside teams. rank.CloseOps ends them.
func (h *Local) NewOps(at, ranks int) (engine.Ops, error) { return h.cfg.NewOps(at, ranks) }

// placesOf is the weights on the device of a rank.
func (h *Local) placesOf(rank int) (*placements, error) {
	h.resident.Lock()
	defer h.resident.Unlock()
	where := h.cfg.deviceOf(rank)
	if p := h.places[where]; p != nil {
		return p, nil
	}
	ops, err := h.cfg.NewOps(rank, 1)
	if err != nil {
		return nil, fmt.Errorf("start the device of rank %d: %w", rank, err)
	}
	h.places[where] = newPlacements(&h.cfg, where, ops)
	return h.places[where], nil
}

// Acquire implements Host.
func (h *Local) Acquire(key string, w Weights, need []Need) (loaded bool, err error) {
	parts, order, beside := map[*placements][]Need{}, []*placements(nil), map[*placements]int64{}
	for _, n := range need {
		p, err := h.placesOf(n.Place)
		if err != nil {
			return false, err
		}
		if parts[p] == nil {
			order = append(order, p)
		}
		beside[p] += n.Beside
		same := func(o Need) bool { return plan.HeldKey("", o.Held) == plan.HeldKey("", n.Held) }
		if !slices.ContainsFunc(parts[p], same) {
			parts[p] = append(parts[p], n)
		}
	}
	for _, p := range order {
		fresh, err := p.acquireAll(key, w, parts[p], beside[p], h)
		if err != nil {
			return loaded, err
		}
		loaded = loaded || fresh
	}
	return loaded, nil
}

// each calls f with the weights of every device.
func (h *Local) each(f func(p *placements)) {
	h.resident.Lock()
	defer h.resident.Unlock()
	for _, where := range slices.Sorted(maps.Keys(h.places)) {
		f(h.places[where])
	}
}

// Resident implements Host.
func (h *Local) Resident() (list []Resident) {
	h.each(func(p *placements) { list = append(list, p.list()...) })
	return list
}

// Evict implements Host.
func (h *Local) Evict(key string) { h.each(func(p *placements) { p.evict(key) }) }

// Places implements Host.
func (h *Local) Places() int { return h.cfg.Places }

// Interruptible implements Host.
func (h *Local) Interruptible() bool {
	return h.cfg.Transport == nil || h.cfg.Transport.Interruptible()
}

// Err implements Host.
func (h *Local) Err() error { return nil }

// Close implements Host.
func (h *Local) Close() {
	h.Evict("")
	h.each(func(p *placements) { rank.CloseOps(p.ops) })
}
