// Package remote has ranks run in another process. The leader's side is a host.Host (client.go), the side of the ranks
// answers it (serve.go); between them msgpack travels over one connection (this file), and what ranks exchange over a
// mesh of the processes' own (join.go, package comm/stream). Weights travel as the bytes that name them, a file with
// its header hash for one: each process reads its own part.
package remote

import (
	"patchbay/parallel/failure"
	"patchbay/parallel/forecast"
	"patchbay/parallel/host"
	"patchbay/parallel/rank"
)

// Version is that of the protocol: both sides are the same program, or refuse each other.
const Version = 9

// buffered is what of a message goes in one write: every one more wakes the other side.
const buffered = 64 << 10

// call is what the leader asks: exactly one of the fields after ID is set. Calls are answered by ID, but for Cancel,
// Abort and Alive, which are not.
type call struct {
	ID       uint64
	Hello    *hello
	Mesh     *mesh
	Acquire  *acquire
	Join     *host.Team
	Command  *command
	Cancel   *cancel
	Abort    *abort
	Leave    bool
	Alive    bool // the leader is there
	Evict    *string
	Resident bool
	Clock    *clock
}

// hello opens the connection.
type hello struct{ Version int }

// mesh tells a process where the others listen. Process i connects to those before it.
type mesh struct {
	Self      int
	Addresses []string // "unix:PATH" or "tls:HOST:PORT", by process
	Names     []string // for errors
	Token     []byte   // what a connection must begin with
	NCCL      bool     // GPUs exchange by NCCL
	Probe     bool     // connections are measured
}

// acquire names parts of the weights of a model.
type acquire struct {
	Key   string
	Model []byte // host.Weights as MarshalBinary gives them
	Need  []host.Need
}

// command is for one member.
type command struct {
	Member  int // place in Team.Here
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

// answer is what a process says: to the call ID, or how far its members are (ID 0).
type answer struct {
	ID       uint64
	Err      *failure.Error
	Address  string        // to Hello: where it listens
	Places   int           // to Hello: how many ranks it has a device for
	NCCL     string        // to Hello: version of the NCCL that it would exchange by, "" if it would not
	Late     bool          // to Hello: ranks of a group that it has alone are not interruptible (comm.Transport)
	Site     forecast.Site // to Hello: its devices
	Speed    Speed         // to Mesh
	Loaded   bool
	Resident []host.Resident
	Reply    *rank.Reply
	Status   []rank.Standing // by place in Team.Here
	Seconds  []float64       // to Clock: of each run
	Devices  []string        // to Clock: of clock.Here, "" are the processors
}

// flat makes an error that can travel: its cause becomes text.
func flat(err *failure.Error) *failure.Error {
	if err == nil || err.Cause == nil {
		return err
	}
	own := *err
	own.Text, own.Cause = own.Text+": "+own.Cause.Error(), nil
	return &own
}
