package message

import (
	"reflect"

	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// Verb is one row of the table of verbs. Subjects, dispatch of frames, permissions, the JSON Schema and the table in
// docs/protocol.md are derived from it; package serve adds the handlers.
type Verb struct {
	Name  string
	About string // what `nats micro info` shows
	// PerJob: the subject ends in a job id (in frames, the field job holds it), and the daemon that has the job
	// answers.
	PerJob bool
	// Everyone: every daemon on the server answers, not just one of the queue group.
	Everyone bool
	// NeedsBody: an empty body is an error.
	NeedsBody bool
	// Admin: clients have no right to it.
	Admin bool
	// Lenient: a body of ComfyUI may have fields that are not known here; those of other verbs are refused, at every
	// depth.
	Lenient bool
	// Refs are the fields that may hold references; nil: none, AnyField: all.
	Refs []string
	// Streams: whether a request with this body may be answered with several messages; nil: never.
	Streams func(body *pyjson.Object) bool
	// Request and Reply are zero values of the bodies; a nil Request: none is expected.
	Request, Reply any
	Body, Answer   string // the same in words, for the table of docs/protocol.md
}

// AnyField stands in Verb.Refs for all fields.
const AnyField = "*"

// anyBody is Verb.Streams of verbs that always stream.
func anyBody(*pyjson.Object) bool { return true }

// Verbs is the table of verbs, in the order of docs/protocol.md. ping, which only frames have, is not in it.
func Verbs() []Verb {
	return []Verb{
		{
			Name: VerbRun, About: "run a workflow; replies: receipt, events, files, terminal event, empty message",
			NeedsBody: true, Lenient: true, Refs: []string{"inputs"}, Streams: anyBody, Request: RunRequest{}, Reply: Receipt{},
			Body: "a job (below)", Answer: "receipt, events, files, terminal event, end",
		},
		{
			Name: VerbSubmit, About: "queue a workflow; reply: receipt",
			NeedsBody: true, Lenient: true, Refs: []string{"inputs"}, Request: RunRequest{}, Reply: Receipt{},
			Body: "a job", Answer: "receipt",
		},
		{
			Name: VerbStatus, About: "record of a job; with follow its events, with outputs its files",
			PerJob: true, Streams: follows, Request: JobRequest{}, Reply: RecordReply{},
			Body:   "none, or {follow, from, outputs, preview}",
			Answer: "record; with follow the events, with outputs the files, then end",
		},
		{
			Name: VerbCancel, About: "cancel a job",
			PerJob: true, Request: JobRequest{}, Reply: CancelReply{},
			Body: "none", Answer: "{v, job, cancelled, state}",
		},
		{
			Name: VerbRetry, About: "run a job once more that failed, was cancelled or has expired",
			PerJob: true, Request: JobRequest{}, Reply: RetryReply{},
			Body: "none", Answer: "{v, job, state}; runs a job once more that failed, was cancelled or has expired",
		},
		{
			Name: VerbMove, About: "move a waiting job to the front, or to another priority",
			PerJob: true, Admin: true, NeedsBody: true, Request: MoveRequest{}, Reply: MoveReply{},
			Body:   "{front: true} or {priority}",
			Answer: "{v, job, state, position}; moves a waiting job ahead of all others, or behind those of a priority",
		},
		{
			Name: VerbDelete, About: "remove the files of a job that has ended",
			PerJob: true, Admin: true, Request: JobRequest{}, Reply: DeleteReply{},
			Body: "none", Answer: "{v, job, state, files, bytes}; removes the files of a job that has ended, not its record",
		},
		{
			Name: VerbPause, About: "let waiting jobs stay where they are, or go on",
			Everyone: true, Admin: true, NeedsBody: true, Request: PauseRequest{}, Reply: PauseReply{},
			Body: "{paused}", Answer: "{v, daemon, paused, queued}; a daemon that is paused begins no job, until it is told " +
				"paused: false, over restarts too; what runs goes on, and exec, sample and load are answered",
		},
		{
			Name: VerbJobs, About: "list jobs",
			Everyone: true, Request: JobsRequest{}, Reply: JobsReply{},
			Body: "none, or {state, limit}", Answer: "{v, jobs: [record], counts: {state: n}}, newest first",
		},
		{
			Name: VerbDescribe, About: "node classes as ComfyUI's object_info",
			Everyone: true, Request: DescribeRequest{}, Reply: DescribeReply{},
			Body: "none, {class}, {model: {file, fingerprint}}, {limits: true} or {schema: true}",
			Answer: "{v, comfy_compat, object_info, limits, devices}: ComfyUI's entries; {v, model: {family, latent: " +
				"{channels, scale, shift, mean, std}, sampling: {bases, shift, multiplier}}}: what the header of a model file " +
				"says, model space being (vae - shift) * scale, or (vae - mean) / std by channel; {v, limits, devices}; or " +
				"{v, schema}: the JSON Schema of all messages, docs/protocol.schema.json",
		},
		{
			Name: VerbModels, About: "model files by folder",
			Everyone: true, Reply: ModelsReply{},
			Body: "none", Answer: "{v, models: {folder: [file]}}",
		},
		{
			Name: VerbExec, About: "run one node",
			NeedsBody: true, Refs: []string{AnyField}, Request: ExecRequest{},
			Reply: ExecReply{},
			Body:  "one node (below)", Answer: "{v, outputs, files, timings, warnings, worker}",
		},
		{
			Name: VerbSample, About: "run one sampler on tensors; replies: accepted, progress, done, empty message",
			NeedsBody: true, Refs: []string{AnyField}, Streams: anyBody, Request: SampleRequest{},
			Reply: SampleReply{},
			Body:  "one sampling run (below)", Answer: "accepted, progress, done, end",
		},
		{
			Name: VerbLoad, About: "make the weights of a model resident",
			Request: LoadRequest{}, Reply: LoadReply{},
			Body: "{model: {file, fingerprint, nets}, plan, forecast: {width, height, batch, steps, text, entries}}",
			Answer: "{v, bytes, seconds, workers, latent, forecast: {plan, seconds, step_seconds, " +
				"bytes, weight_bytes, free_bytes, device, streamed, resident, step_bytes, host_bytes, slowdown}}: the " +
				"weights are resident on every worker of the daemon; latent is what describe says; with forecast such a run is " +
				"predicted and nothing is loaded",
		},
		{
			Name: VerbFree, About: "give up handles, or all cached models",
			Everyone: true, Admin: true, Request: FreeRequest{}, Reply: FreeReply{},
			Body: "none, or {handles: [id], models: [file]}",
			Answer: "{v, freed, bytes}: handles dropped, bytes of weights dropped; with nothing named everything cached is " +
				"given up",
		},
		{
			Name: VerbStats, About: "queue, workers, steps, bytes by axis",
			Everyone: true, Reply: Stats{},
			Body: "none", Answer: "what the daemon counts (below)",
		},
	}
}

// VerbOf returns the row of a verb, or the zero Verb if there is none of that name.
func VerbOf(name string) Verb {
	for _, v := range Verbs() {
		if v.Name == name {
			return v
		}
	}
	return Verb{}
}

// VerbNames returns the names of all rows, in order.
func VerbNames() []string {
	var out []string
	for _, v := range Verbs() {
		out = append(out, v.Name)
	}
	return out
}

// Subject returns the NATS subject of the verb. job is used only if PerJob is set; "*" matches every job.
func (v Verb) Subject(job string) string {
	if v.PerJob {
		return wire.SubjectRoot + v.Name + "." + job
	}
	return wire.SubjectRoot + v.Name
}

// Check returns an error for a field of a body that the verb does not have and would pass over.
func (v Verb) Check(body *pyjson.Object) error {
	switch {
	case v.Lenient:
		return nil
	case v.Request == nil:
		return known(body, reflect.TypeFor[struct{}]())
	default:
		return known(body, reflect.TypeOf(v.Request))
	}
}

// Stream reports whether a request with this body is answered with several messages. body may be nil.
func (v Verb) Stream(body *pyjson.Object) bool { return v.Streams != nil && v.Streams(body) }

// VerbSubject returns the NATS subject of a verb; job is used only by verbs about one job.
func VerbSubject(verb, job string) string { return VerbOf(verb).Subject(job) }

// follows is Verb.Streams of status.
func follows(body *pyjson.Object) bool {
	var r JobRequest
	return body != nil && wire.Bind(body, &r) == nil && (r.Follow || r.Outputs)
}
