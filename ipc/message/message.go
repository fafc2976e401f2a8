package message

import (
	"slices"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// ProtocolVersion is the value of "v" in every message. Raising it breaks clients; adding fields does not.
const ProtocolVersion = 1

// The names of the verbs: on NATS the subject token after the root, in frames the value of "op". Verbs describes them.
const (
	VerbRun      = "run"
	VerbSubmit   = "submit"
	VerbStatus   = "status"
	VerbJobs     = "jobs"
	VerbCancel   = "cancel"
	VerbRetry    = "retry"
	VerbMove     = "move"
	VerbDelete   = "delete"
	VerbPause    = "pause"
	VerbDescribe = "describe"
	VerbModels   = "models"
	VerbExec     = "exec"
	VerbSample   = "sample"
	VerbLoad     = "load"
	VerbFree     = "free"
	VerbStats    = "stats"
	VerbPing     = "ping" // frames only
)

// RunRequest is the body of run and submit in our own shape. ParseRun also reads ComfyUI's POST /prompt body and a bare
// graph into it.
type RunRequest struct {
	V int `json:"v,omitempty"`
	// job id, [A-Za-z0-9_-]{1,64}; empty: generated. It is safe to send a request with the same id twice.
	ID         string            `json:"id,omitempty"`
	Workflow   any               `json:"workflow,omitempty"`
	Targets    []string          `json:"targets,omitempty"`       // output nodes to run; empty: all
	Inputs     map[string][]byte `json:"inputs,omitempty"`        // files for LoadImage and LoadLatent, by name
	ExtraPNG   *pyjson.Object    `json:"extra_pnginfo,omitempty"` // text chunks of saved pictures
	NoMetadata bool              `json:"no_metadata,omitempty"`   // leave workflow and extra info out of saved files
	Plan       string            `json:"plan,omitempty"`          // "ulysses=2,pipe=2"; empty: one rank
	// measure every operation; the metrics event then has profile and spans
	Profile    bool   `json:"profile,omitempty"`
	Preview    bool   `json:"preview,omitempty"`      // make previews
	Tied       bool   `json:"tied,omitempty"`         // run on NATS: cancel when the client goes away
	Front      bool   `json:"front,omitempty"`        // ahead of all waiting jobs, the newest such job first
	Priority   string `json:"priority,omitempty"`     // high, normal or low; empty: normal
	QueueTTLMS int    `json:"queue_ttl_ms,omitempty"` // expired after waiting this long; 0: never
	DeadlineMS int    `json:"deadline_ms,omitempty"`  // failed after running this long; 0: never
	NotBefore  int64  `json:"not_before,omitempty"`   // Unix milliseconds: waits at least until then; 0: does not
	// in place of an id: a job of this client with this key that waits, runs, or is done and was handed in less than
	// UniqueMS ago, is the same job
	UniqueKey string `json:"unique_key,omitempty"`
	UniqueMS  int    `json:"unique_ms,omitempty"`
	// of ComfyUI's POST /prompt, for its history: the place among all jobs, and what extra_data has beside extra_pnginfo
	Number    float64        `json:"number,omitempty"`
	ExtraData *pyjson.Object `json:"extra_data,omitempty"`
	Client    any            `json:"client,omitempty"`  // any value; returned by status
	Webhook   string         `json:"webhook,omitempty"` // URL to which the end of the job is reported
	// W3C Trace Context of the client's span that the job's trace continues; see TraceParent
	TraceParent string `json:"traceparent,omitempty"`
	Reuse       bool   `json:"reuse,omitempty"` // answer from the last job with the same content
	// from a daemon to its worker: a later attempt reruns a job that ended without a result
	Attempt int `json:"attempt,omitempty"`
	// from a daemon to its worker: the output nodes that can run; nil: the workflow has not been validated
	Validated []string `json:"validated,omitempty"`
	Strict    bool     `json:"strict,omitempty"` // sent by older clients, no effect: unknown fields are always refused
	// entries of a ComfyUI server's /object_info, for classes of an editor's graph that are not known here
	ObjectInfo *pyjson.Object `json:"object_info,omitempty"`

	From string `json:"-"` // client that the job counts for, see ClientName
	// the editor's graph, if its conversion may have put a date into a file name: Hash goes by it
	Undated string `json:"-"`

	Files []files.NeededFile `json:"-"` // by accept, for the record
	About string             `json:"-"` // by accept, for the record
	Model string             `json:"-"` // by accept, for the record
	// by accept, for the queued event: display names of the nodes
	Titles map[string]string `json:"-"`

	bulk.Held // memory that Inputs lie in
}

// Receipt is the first reply of run and the only one of submit.
type Receipt struct {
	V         int    `json:"v"`
	Type      string `json:"type"` // "accepted"
	Job       string `json:"job"`
	State     State  `json:"state"`
	Position  int    `json:"position"`            // jobs ahead of it in the queue
	Duplicate bool   `json:"duplicate,omitempty"` // a job of this id and body existed already
	Reused    string `json:"reused,omitempty"`    // the job whose files answer this one
	Events    string `json:"events"`              // NATS subject of its events
	Status    string `json:"status"`              // NATS subject to ask for its record
	// NodeErrors are ComfyUI's errors for outputs that cannot run while others can; the others do run.
	NodeErrors map[string]any `json:"node_errors,omitempty"`
}

// The types of replies that are not events: they are not in the job's log.
const (
	ReplyAccepted  = "accepted"
	ReplyOutput    = "output"
	ReplyPreview   = "preview"
	ReplyHeartbeat = "heartbeat"
)

// OutputRef describes one file that a job made. Filename and Subfolder are empty until the file is in the output
// folder.
type OutputRef struct {
	Node      string `json:"node"`
	Index     int    `json:"index"`
	Kind      string `json:"kind"` // "images", "latents", or the name that a node class uses
	Type      string `json:"type"` // "output" or "temp"
	Prefix    string `json:"prefix,omitempty"`
	Ext       string `json:"ext"`
	Bare      bool   `json:"bare,omitempty"` // see files.Output
	Filename  string `json:"filename,omitempty"`
	Subfolder string `json:"subfolder,omitempty"`
	Width     int    `json:"width,omitempty"`
	Height    int    `json:"height,omitempty"`
	Bytes     int    `json:"bytes"`
	CRC32C    uint32 `json:"crc32c"` // Castagnoli, of the whole file
}

// Output carries a file.
type Output struct {
	Type   string       `json:"type"`
	Job    string       `json:"job"`
	Output int          `json:"output"` // position in the outputs of the job
	Ref    OutputRef    `json:"ref"`
	Data   []byte       `json:"data,omitempty"`
	Error  *fault.Error `json:"error,omitempty"` // the file cannot be read any more
}

// Preview carries a picture of the unfinished latent. It may be dropped.
type Preview struct {
	Type   string `json:"type"`
	Job    string `json:"job"`
	Node   string `json:"node,omitempty"`
	Format string `json:"format"` // "image/jpeg"
	Data   []byte `json:"data"`
}

// Heartbeat tells a client that its run goes on although no event came for a while.
type Heartbeat struct {
	Type string `json:"type"`
	Job  string `json:"job"`
	TS   int64  `json:"ts"`
}

// JobRequest is the body of status, cancel, retry and delete.
type JobRequest struct {
	Job     string `json:"job"`
	Follow  bool   `json:"follow,omitempty"`  // status: stream the events, starting at From
	From    uint64 `json:"from,omitempty"`    // first sequence number wanted
	Outputs bool   `json:"outputs,omitempty"` // status: stream the files after the record
	Preview bool   `json:"preview,omitempty"` // follow: stream previews too
}

// JobsRequest is the body of jobs.
type JobsRequest struct {
	State string `json:"state,omitempty"` // only jobs in this state
	Limit int    `json:"limit,omitempty"` // newest first; 0: 100
}

// JobsReply answers jobs: the newest first, and how many there are in each state.
type JobsReply struct {
	V      int           `json:"v"`
	Jobs   []Record      `json:"jobs"`
	Counts map[State]int `json:"counts"`
}

// Short returns the reply with its records reduced to their bounded fields.
func (r JobsReply) Short() any {
	r.Jobs = slices.Clone(r.Jobs)
	for i := range r.Jobs {
		r.Jobs[i] = r.Jobs[i].bare()
	}
	return r
}

// CancelReply answers cancel. Cancelled is false when the job had already ended.
type CancelReply struct {
	V         int    `json:"v"`
	Job       string `json:"job"`
	Cancelled bool   `json:"cancelled"`
	State     State  `json:"state"`
}

// ModelsReply answers models.
type ModelsReply struct {
	V      int            `json:"v"`
	Models map[string]any `json:"models"` // files by folder: lists of names
}

// DescribeReply answers describe; only the fields that were asked for are set.
type DescribeReply struct {
	V      int            `json:"v"`
	Compat string         `json:"comfy_compat,omitempty"` // version of ComfyUI whose classes these are
	Info   map[string]any `json:"object_info,omitempty"`  // ComfyUI's entries by class
	// Devices are the places for ranks, beside limits
	Devices []string       `json:"devices,omitempty"`
	Limits  *LimitsReply   `json:"limits,omitempty"`
	Schema  map[string]any `json:"schema,omitempty"`
	Model   *ModelReply    `json:"model,omitempty"`
}

// RetryReply answers retry.
type RetryReply struct {
	V     int    `json:"v"`
	Job   string `json:"job"`
	State State  `json:"state"`
}

// MoveRequest is the body of move: one of Front and Priority.
type MoveRequest struct {
	Job      string `json:"job"`
	Front    bool   `json:"front,omitempty"`    // ahead of all waiting jobs
	Priority string `json:"priority,omitempty"` // behind the waiting jobs of that priority: high, normal or low
}

// MoveReply answers move.
type MoveReply struct {
	V        int    `json:"v"`
	Job      string `json:"job"`
	State    State  `json:"state"`
	Position int    `json:"position"` // jobs ahead in the queue
}

// DeleteReply answers delete.
type DeleteReply struct {
	V     int    `json:"v"`
	Job   string `json:"job"`
	State State  `json:"state"`
	Files int    `json:"files"` // that were removed
	Bytes int64  `json:"bytes"` // of them
}

// PauseRequest is the body of pause.
type PauseRequest struct {
	Paused bool `json:"paused"` // whether waiting jobs are to stay where they are
}

// PauseReply answers pause.
type PauseReply struct {
	V      int    `json:"v"`
	Daemon string `json:"daemon"`
	Paused bool   `json:"paused"`
	Queued int    `json:"queued"`
}

// DescribeRequest is the body of describe.
type DescribeRequest struct {
	Class  string `json:"class,omitempty"`  // empty: all classes
	Schema bool   `json:"schema,omitempty"` // the JSON Schema of the protocol instead
	Limits bool   `json:"limits,omitempty"` // only the daemon's limits
	// Model asks for what a host must know about a model file.
	Model *ModelRef `json:"model,omitempty"`
}

// PongReply answers ping.
type PongReply struct {
	V   int    `json:"v"`
	PID int    `json:"pid"`
	Job string `json:"job,omitempty"`
}

// RecordReply is the record of a job as a reply.
type RecordReply struct {
	Type    string `json:"type"`               // "record"
	LeftOut bool   `json:"left_out,omitempty"` // lists were left out, because they did not fit into a message
	Record
}

// Short returns the reply without the lists of the record.
func (r RecordReply) Short() any {
	r.Record, r.LeftOut = r.bare(), true
	return r
}

// LimitsReply holds the limits of a daemon, for describe; 0: none.
type LimitsReply struct {
	MessageBytes int   `json:"message_bytes"`
	FrameBytes   int   `json:"frame_bytes"`
	Depth        int   `json:"depth"`
	Values       int   `json:"values"`
	Queue        int   `json:"queue"`
	ClientJobs   int   `json:"client_jobs"`
	Pixels       int64 `json:"pixels"`
	Steps        int   `json:"steps"`
}
