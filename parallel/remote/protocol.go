// Package remote runs ranks in another process. The leader's side is a process.Process (client.go), which the ranks'
// side answers (serve.go). Msgpack messages travel between them over one connection (this file); ranks exchange tensors
// over a mesh of the processes' own (join.go, package comm/stream). Weights are sent as the bytes that name them, such
// as a file with its header hash: each process reads its own part.
package remote

import (
	"patchbay/fault"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/rank"
)

// Version is the version of the protocol. Both sides are the same program, or refuse each other.
const Version = 12

// buffered is how many bytes of a message go into one write: each further write wakes the other side again.
const buffered = 64 << 10

// call is a request of the leader: exactly one of the fields after ID is set. The answer has the same ID; Cancel, Abort
// and Alive have none.
type call struct {
	ID       uint64
	Hello    *hello
	Mesh     *mesh
	Acquire  *acquire
	Join     *process.TeamSpec
	Command  *command
	Cancel   *cancel
	Abort    *abort
	Leave    bool
	Alive    bool // sign of life
	Evict    *string
	Resident bool
	Clock    *clock
}

// hello opens the connection.
type hello struct{ Version int }

// mesh tells a process where the others listen. Each process connects to those before it.
type mesh struct {
	Self      int
	Addresses []string // "unix:PATH" or "tls:HOST:PORT", by process
	Names     []string // for errors
	Token     []byte   // first bytes of every connection
	NCCL      bool     // GPUs exchange by NCCL
	Probe     bool     // measure the connections
}

// acquire names parts of the weights of a model.
type acquire struct {
	Key   string
	Model []byte // process.Weights, as returned by MarshalBinary
	Need  []process.Need
}

// command is for one member.
type command struct {
	Member  int // place in Team.Local
	Command rank.Command
}

type cancel struct {
	Member  int
	Session uint64
}

type abort struct {
	Member int
	Cause  string
}

// answer is a message of a process: the answer to call ID, or the status of its members (ID 0).
type answer struct {
	ID              uint64
	Err             *fault.Error
	Address         string        // to Hello: where it listens
	Places          int           // to Hello: how many ranks it has a device for
	NCCL            string        // to Hello: version of NCCL that it can exchange by, "" if it cannot
	Uninterruptible bool          // to Hello: groups within the process are not interruptible (comm.Transport)
	Site            hardware.Site // to Hello: its devices
	Speed           Speed         // to Mesh
	Loaded          bool
	Resident        []process.Resident
	Reply           *rank.Reply
	Status          []rank.Progress // by place in Team.Local
	Seconds         []float64       // to Clock: of each run
	Devices         []string        // to Clock: of clock.Here; "": the CPU
}
