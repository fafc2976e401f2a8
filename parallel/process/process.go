// Package process is what one process provides to the ranks of a plan: the Ops of its devices, the weights that are
// resident there within a budget (placement.go), and the ranks themselves (subteam.go). The leader of a run uses all of
// it through the interfaces Process, Subteam and Member, so that it may be in another process. The package knows plans
// and ranks, but no request and no sampler; where weights come from is up to the caller.
package process

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/rank"
	"patchbay/parallel/scope"
)

// Weights loads the weights of a model.
type Weights interface {
	// Load reads and packs the part of the weights given by held. Ranks of one device share the result.
	Load(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// Need is a part of a model's weights that a rank must hold.
type Need struct {
	Place int // of the rank, whose device gets the part
	Held  dit.Held
	Bytes int64 // estimate of the memory
	// Extra is what the rank takes on its device in addition to the weights (activations, exchanges, kept keys and
	// values, workspaces), for which room is made too; 0: not known.
	Extra int64
	// Streamed is what the rank brings from host memory, for errors.
	Streamed int64
}

// TeamSpec is what every process must know about ranks that work together.
type TeamSpec struct {
	ID         uint64
	Plan       plan.Plan
	Folded     bool          // micro-steps go down and back up (plan.Cut): a stage has two members, on one device
	Deadline   time.Duration // for a wait for a peer
	Processes  []int         // number of the process that each member runs in; nil: all share one
	Local      []int         // members that run in the receiving process, ascending
	First      int           // rank at the first place of that process
	Concurrent int           // ranks that compute at the same time, including other teams; 0: the plan's
}

// Mesh returns the mesh of the members: that of the plan, with a separate stop for each lane of a folded stage.
func (t *TeamSpec) Mesh() plan.Mesh {
	stops := t.Plan
	stops.Pipe = t.Plan.Stops(t.Folded)
	return plan.Mesh{Plan: stops, Stages: t.Plan.Pipe}
}

// Device returns the rank of the plan that a member belongs to, and whether it is the one that micro-steps reach first:
// a folded stage has two members, the down lane and the up lane.
func (t *TeamSpec) Device(member int) (rank int, down bool) {
	m := t.Mesh()
	c := m.At(member)
	down = c.Pipe < t.Plan.Pipe
	if !down {
		c.Pipe = m.Plan.Pipe - 1 - c.Pipe
	}
	return plan.Mesh{Plan: t.Plan}.Rank(c), down
}

// Process is a process in which ranks run.
type Process interface {
	// Acquire makes parts of the weights of a model resident on the devices of their ranks, and reports whether any had
	// to be loaded. It refuses what does not fit before reading anything. key names the model.
	Acquire(key string, w Weights, need []Need) (loaded bool, err error)
	// Join starts the members of t.Local.
	Join(t TeamSpec) (Subteam, error)
	// Resident lists the models whose weights are loaded, most recently used first, device by device.
	Resident() []Resident
	// Evict drops the weights of key, or all if it is empty. No subteam may be working.
	Evict(key string)
	// Places returns how many ranks the process has a device for, 0: any number.
	Places() int
	// Interruptible reports whether the transport of its ranks is interruptible (comm.Transport).
	Interruptible() bool
	// Err returns why the process has ended, nil if it has not.
	Err() error
	// Close frees everything. No subteam may be left.
	Close()
}

// List is the processes that ranks run in. Ranks fill their places in order.
type List []Process

// Places returns how many ranks the processes have places for, 0: any number.
func (l List) Places() (n int) {
	for _, p := range l {
		if p.Places() == 0 {
			return 0
		}
		n += p.Places()
	}
	return n
}

// PlaceOf returns the index of the process that a rank runs in, and its place there.
func (l List) PlaceOf(rank int) (at, place int) {
	for i, p := range l {
		n := p.Places()
		if n == 0 || rank < n || i == len(l)-1 {
			return i, rank
		}
		rank -= n
	}
	return 0, rank
}

// Subteam is the members of a team that one process runs.
type Subteam interface {
	// Members returns the members in the order of Team.Local.
	Members() []Member
	// Silent reports whether the process has not reported for too long, so that the positions of its members are
	// outdated.
	Silent() bool
	// Close ends all members after the commands that they have. The channel is closed once they have ended.
	Close() (ended <-chan struct{})
}

// Member is a rank as the leader of a run reaches it. Its methods are documented at rank.Port.
type Member interface {
	Send(c rank.Command) (<-chan rank.Reply, error)
	Cancel(session uint64)
	Progress() rank.Progress
	Abort(cause error)
}

// Config configures what a process provides to ranks.
type Config struct {
	// NewOps makes the operations of one rank when the given number of ranks compute at the same time. All Ops that it
	// returns must be able to share packed weights, and to free memory that another one has allocated.
	NewOps func(rank, ranks int) (engine.Ops, error)
	// MemoryBytes bounds the resident weights in the memory of this process, 0: no limit. A parallel.Pool bounds each
	// session and each arena of Do by the same number.
	MemoryBytes int64
	// Room is what of MemoryBytes may stay resident when something is loaded, 0: all. The rest is for what is computed.
	Room int64
	// DeviceOf names the device of a rank, as its Ops do (engine.Located); nil: all ranks work in the memory of this
	// process.
	DeviceOf func(rank int) string
	// DeviceMemory bounds weights and what ranks take beside them on each device, 0: what is free there when weights
	// are loaded. Reserve is the number of bytes there that are left to others.
	DeviceMemory, Reserve int64
	// Copies are the blocks in host memory, which all devices share; nil: new ones in memory, of any size.
	Copies *datafile.Copies
	// Transport connects the ranks; nil: comm.Local, which moves the memory of this process.
	Transport comm.Transport
	// Recode passes every command and reply of a rank through an encoder and a decoder, so that tests can prove that
	// ranks share no memory with the leader. Nil in production.
	Recode func(v any) (any, error)
	// Places is how many ranks there is a device for, 0: any number.
	Places int
	// Order, if not nil, makes ranks run one at a time.
	Order *scope.Scheduler
}

// deviceOf returns the device of a rank, "" for the memory of this process.
func (c *Config) deviceOf(rank int) string {
	if c.DeviceOf == nil {
		return ""
	}
	return c.DeviceOf(rank)
}

// Local is the Process of this process. It is safe for concurrent use, as far as Process allows.
type Local struct {
	cfg Config
	*devices
	share bool // others may use weights while it acquires some
}

// devices is what all views of a process share.
type devices struct {
	places   map[string]*placements // by device
	resident sync.Mutex             // guards places
}

// New makes the Process of this process, without ranks. It starts the device of rank 0.
func New(cfg Config) (*Local, error) {
	if cfg.Copies == nil {
		cfg.Copies = datafile.NewCopies("", "", nil, nil)
	}
	h := &Local{cfg: cfg, devices: &devices{places: map[string]*placements{}}}
	_, err := h.placesOf(0)
	return h, err
}

// Ops returns operations on the device of rank 0, for work beside ranks.
func (h *Local) Ops() engine.Ops { return h.places[h.cfg.deviceOf(0)].ops }

// OpsOf returns operations on the device of a rank, which load weights there.
func (h *Local) OpsOf(rank int) (engine.Ops, error) {
	p, err := h.placesOf(rank)
	if err != nil {
		return nil, err
	}
	return p.ops, nil
}

// NewOps makes operations of one of so many ranks, for work beside teams. The caller must close them with
// rank.CloseOps.
func (h *Local) NewOps(at, ranks int) (engine.Ops, error) { return h.cfg.NewOps(at, ranks) }

// placesOf returns the placements on the device of a rank, which it starts if necessary.
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

func (h *Local) Acquire(key string, w Weights, need []Need) (loaded bool, err error) {
	parts, order, extra := map[*placements][]Need{}, []*placements(nil), map[*placements]int64{}
	for _, n := range need {
		p, err := h.placesOf(n.Place)
		if err != nil {
			return false, err
		}
		if parts[p] == nil {
			order = append(order, p)
		}
		extra[p] += n.Extra
		same := func(o Need) bool { return plan.HeldKey("", o.Held) == plan.HeldKey("", n.Held) }
		if !slices.ContainsFunc(parts[p], same) {
			parts[p] = append(parts[p], n)
		}
	}
	for _, p := range order {
		fresh, err := p.acquireAll(key, w, parts[p], extra[p], h)
		if err != nil {
			return loaded, err
		}
		loaded = loaded || fresh
	}
	return loaded, nil
}

// Kept is something that stays resident until others need its room. If it has Bytes() int64, that is its size.
type Kept interface{ Close() }

// Want is something that work beside ranks wants to be resident: an encoder, an autoencoder, a buffer.
type Want struct {
	Key string
	// Bytes estimates what it takes. It is called before it is loaded.
	Bytes func() int64
	// Room is the most that it may take, 0: any number. It makes do with as much as Load is told, which may be less.
	Room int64
	// Buffer says that it has no content: one of fewer bytes is replaced, and it is refused by its device alone.
	Buffer bool
	Load   func(room int64) (Kept, error)
}

// Keep makes something resident on the device of a rank, and reports whether it had to be loaded. It counts with the
// weights of Acquire: what was used least recently is dropped until it fits, and no more; if it does not fit beside
// what is in use it is refused before it is loaded. Errors of Load are returned as they are, and nothing is kept then.
// A view (Share, Beside) keeps it from being dropped until Release.
func (h *Local) Keep(place int, w Want) (kept Kept, loaded bool, err error) {
	p, err := h.placesOf(place)
	if err != nil {
		return nil, false, err
	}
	return p.keep(w, h)
}

// each calls f with the placements of every device.
func (h *Local) each(f func(p *placements)) {
	h.resident.Lock()
	defer h.resident.Unlock()
	for _, where := range slices.Sorted(maps.Keys(h.places)) {
		f(h.places[where])
	}
}

func (h *Local) Resident() (list []Resident) {
	h.each(func(p *placements) { list = append(list, p.list()...) })
	return list
}

func (h *Local) Evict(key string) { h.each(func(p *placements) { p.evict(key) }) }

func (h *Local) Places() int { return h.cfg.Places }

func (h *Local) Interruptible() bool {
	return h.cfg.Transport == nil || h.cfg.Transport.Interruptible()
}

func (h *Local) Err() error { return nil }

func (h *Local) Close() {
	h.Evict("")
	h.each(func(p *placements) { rank.CloseOps(p.ops) })
}
