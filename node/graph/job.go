package graph

import (
	"time"

	"patchbay/node/files"
	"patchbay/parallel/request"
	"patchbay/parallel/resume"
)

// Job is one run of a workflow.
type Job struct {
	ID       string
	Workflow *Workflow
	// Targets restricts the run to these output nodes; nil: all. An empty list asks for none, which is an error.
	Targets []string
	// Outputs are the output nodes that Validate has returned for the workflow; nil: Run validates it.
	Outputs []string
	// ExtraPNGInfo is written into saved pictures, one text chunk per key (ComfyUI: "workflow"). Values are anything
	// that pyjson.Dump takes.
	ExtraPNGInfo map[string]any
	// Inputs are files sent with the job; LoadImage and LoadLatent find them by name before they look into the input
	// folder.
	Inputs map[string][]byte
	// Plan is how to use the devices ("ulysses=2,..."); empty: one rank.
	Plan string
	// Alone keeps other jobs from running beside this one. Retries set it: if a worker dies with several jobs, any may
	// be to blame.
	Alone bool
	// Profile measures every operation of the denoise loop (Result.Stats has the spans).
	Profile bool
	// Preview asks for preview events.
	Preview bool
	// NoMetadata leaves workflow and extra info out of saved files.
	NoMetadata bool
	// Resume has what earlier attempts have computed, and gets what this one computes; nil: nothing is kept.
	Resume *resume.Folder
}

// Event is something that happened while a job ran. Types are ComfyUI's: execution_start, execution_cached (Data
// nodes), executing (Data node, display_node), progress (Data value, max, node), executed (Data node, display_node,
// output, which lists Files without their names), and preview (Blob). The terminal event is the caller's: it follows
// from what Run returns.
type Event struct {
	Type string
	Node string
	Data map[string]any
	Blob []byte // JPEG of a preview

	Files []files.Output // what an executed node has made, without names
}

// Result is what a job produced.
type Result struct {
	Outputs  []files.Output
	UI       map[string]map[string]any // by node: what its executed event carries; file names are filled in by the caller
	Timings  Timings
	Nodes    []NodeTime // the calls of nodes, in order
	Executed []string   // nodes that ran, in order
	Cached   []string   // nodes whose values came from the cache
	Stats    []request.Stats
	Warnings []string // things the user should know though the job went on
}

// Timings is where the time of a job went, in seconds.
type Timings struct {
	Total   float64
	Load    float64 // weights read and packed
	Text    float64 // text encoders
	Denoise float64 // sampling nodes, without loading
	VAE     float64 // encode and decode
	Other   float64
	Steps   []float64 // every step of every sampling node, in order
}

// NodeTime is where the time of one call of a node went, in seconds.
type NodeTime struct {
	ID, Class string
	Phase     Phase
	Total     float64
	Load      float64 // weights read and packed
}

func seconds(start time.Time) float64 { return time.Since(start).Seconds() }
