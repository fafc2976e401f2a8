package register

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"

	"patchbay/ipc/message"
	"patchbay/node/files"
)

// Machine is what a daemon or a host announces about itself: the value of key NAME.has in the bucket.
type Machine struct {
	V       int                `json:"v"`
	Machine string             `json:"host"` // as its operating system calls it
	Folders []string           `json:"folders,omitempty"`
	Memory  int64              `json:"memory,omitempty"` // bytes that a worker may use; 0: not known
	Files   []files.NeededFile `json:"files"`
	// A host also says where others reach it, as HOST:PORT, its version, its devices as --devices names them, and how
	// many ranks it takes.
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	Devices string `json:"devices,omitempty"`
	Ranks   int    `json:"ranks,omitempty"`
}

// NewMachine returns a note with the name of this machine and the model files of an index.
func NewMachine(x *files.Index, kinds ...string) Machine {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	return Machine{V: message.ProtocolVersion, Machine: name, Folders: x.Folders(), Files: x.Models(kinds...)}
}

// HostName returns the name in the register of the host of a cluster, which must be a wire.ValidID, at an address. It
// encodes the address, which has characters that keys must not have.
func HostName(cluster, address string) string {
	return "host." + cluster + "." + base64.RawURLEncoding.EncodeToString([]byte(address))
}

// LeaderName returns the name of a daemon that keeps no jobs on the server and only follows hosts.
func LeaderName(daemon string) string { return "leader." + daemon }

// Lacks returns why the machine cannot run a job with these files that needs memory bytes in a worker; nil if it can.
func (m Machine) Lacks(needed []files.NeededFile, memory int64) error {
	for _, f := range needed {
		if !f.Shared() {
			return fmt.Errorf("%s is in the input folder of another machine; send it with the job (inputs)", f.Name)
		}
		i := slices.IndexFunc(m.Files, func(g files.NeededFile) bool { return g.Kind == f.Kind && g.Name == f.Name })
		switch {
		case i < 0:
			return fmt.Errorf("no file %s/%s in its folders", f.Kind, f.Name)
		case !m.Files[i].Same(f):
			return fmt.Errorf("%s/%s in its folders has other contents", f.Kind, f.Name)
		}
	}
	return TooSmall(m.Memory, memory)
}

// TooSmall returns an error if a worker that has a number of bytes of memory, 0: not known, lacks those that a job
// needs.
func TooSmall(has, needs int64) error {
	if has > 0 && needs > has {
		return fmt.Errorf("the job needs %d bytes of memory for its largest file, a worker has %d", needs, has)
	}
	return nil
}
