package message

import (
	"patchbay/ipc/bulk"
	"patchbay/node/pyjson"
)

// ExecRequest asks for one node to be run: it is the way in for hosts that bring nodes of their own.
type ExecRequest struct {
	Class   string         `json:"class_type"`
	Inputs  *pyjson.Object `json:"inputs,omitempty"`   // literals, tensors, {"$handle": id}, and lists and maps of them
	Want    []int          `json:"want,omitempty"`     // output slots to return; empty: all
	LeaseMS int            `json:"lease_ms,omitempty"` // how long unused handles are kept; 0: 15 minutes
	Plan    string         `json:"plan,omitempty"`
	// Files are available to LoadImage and LoadLatent, by name.
	Files map[string][]byte `json:"files,omitempty"`

	bulk.Held
}

// ExecReply carries the wanted outputs in order: by value, except MODEL, CLIP and VAE (and what holds them), which are
// handles {"$handle": id, "type": "MODEL", "expires": Unix milliseconds}.
type ExecReply struct {
	V        int            `json:"v"`
	Outputs  []any          `json:"outputs"`
	Files    []File         `json:"files,omitempty"` // what an output node would save; nothing is saved
	Timings  map[string]any `json:"timings,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
	Worker   string         `json:"worker,omitempty"`

	bulk.Held
}

// FreeRequest releases handles and the weights of models. If it names none, the workers drop all handles, caches and
// weights.
type FreeRequest struct {
	Handles []string `json:"handles,omitempty"`
	Models  []string `json:"models,omitempty"` // files, as load and sample name them
}

// FreeReply says how many handles were dropped, and how many bytes of weights of diffusion models.
type FreeReply struct {
	V     int   `json:"v"`
	Freed int   `json:"freed"`
	Bytes int64 `json:"bytes"`
}

// HandleKey marks a handle in a message.
const HandleKey = "$handle"

// EachHandle calls f with every handle in a decoded value.
func EachHandle(v any, f func(id string, h *pyjson.Object)) {
	switch x := v.(type) {
	case []any:
		for _, e := range x {
			EachHandle(e, f)
		}
	case *pyjson.Object:
		if x == nil {
			return
		}
		if id, ok := x.Get(HandleKey); ok {
			if s, ok := id.(string); ok {
				f(s, x)
			}
			return
		}
		for _, k := range x.Keys() {
			EachHandle(x.At(k), f)
		}
	}
}
