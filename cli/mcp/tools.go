package mcp

import (
	"context"
	"slices"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// tool is one that a model can call.
type tool struct {
	name, about  string
	takes, needs []string // names of arguments
	reads, ends  bool     // it changes nothing; it ends something
	run          func(context.Context, *call) (*sdk.CallToolResult, error)
}

// call is one call of a tool.
type call struct {
	*server
	daemon client.Client
	args   arguments
	tell   func(done, total float64, message string)
}

// arguments are those of all tools.
type arguments struct {
	Template string         `json:"template"`
	Values   *pyjson.Object `json:"values"`
	Job      string         `json:"job"`
	Index    int            `json:"index"`
}

// describedArguments are their JSON Schemas.
func describedArguments() map[string]any {
	return map[string]any{
		"template": map[string]any{"type": "string", "description": "name of a template, as list_templates has it"},
		"values": map[string]any{
			"type": "object", "description": "values for parameters of the template; what is left out has its default. " +
				"A file is a data: URL, the name of one in the input folder, or \"NAME [output]\" for one that a job has saved",
		},
		"job": map[string]any{"type": "string", "description": "id of a job, or the beginning of one"},
		"index": map[string]any{
			"type": "integer", "minimum": 0, "default": 0, "description": "which of the job's files, from 0, as status lists " +
				"them",
		},
	}
}

func (t *tool) schema() map[string]any {
	properties := map[string]any{}
	for _, name := range t.takes {
		properties[name] = describedArguments()[name]
	}
	return map[string]any{
		"type": "object", "properties": properties, "required": append([]string{}, t.needs...),
		"additionalProperties": false,
	}
}

func tools() []tool {
	return []tool{
		{
			name: "list_templates", reads: true, run: listTemplates,
			about: "List the templates: what each draws, and a JSON Schema of its parameters with defaults, limits and choices.",
		},
		{
			name: "generate", takes: []string{"template", "values"}, needs: []string{"template"}, run: generate,
			about: "Draw with a template: waits until the job is done and returns its pictures, its id and the names of its " +
				"files. Cancelling the call cancels the job.",
		},
		{
			name: "submit", takes: []string{"template", "values"}, needs: []string{"template"}, run: submit,
			about: "Queue a job of a template and return its id at once. status says how far it is, view shows its pictures.",
		},
		{
			name: "status", takes: []string{"job"}, needs: []string{"job"}, reads: true, run: status,
			about: "What has become of a job: its state, its place in the queue or its step, its files, or its error.",
		},
		{
			name: "cancel", takes: []string{"job"}, needs: []string{"job"}, ends: true, run: cancel,
			about: "Cancel a job that waits or runs.",
		},
		{
			name: "view", takes: []string{"job", "index"}, needs: []string{"job"}, reads: true, run: view,
			about: "Show a picture of a job that is done.",
		},
	}
}

// result is an answer without pictures: v as text, and for programs.
func result(v any, pictures ...sdk.Content) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: append([]sdk.Content{text(v)}, pictures...), StructuredContent: v}
}

func listTemplates(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	folder, failed := c.templates(ctx)
	list := []any{}
	for _, name := range folder.List() {
		t, err := folder.Open(name)
		switch {
		case *failed != nil:
			return nil, *failed
		case err != nil:
			list = append(list, pyjson.NewObject("name", name, "error", wire.BodyOf(published(err)).Error))
		default:
			list = append(list, pyjson.NewObject("name", name, "about", t.About, "parameters", t.Schema()))
		}
	}
	return result(pyjson.NewObject("templates", list)), nil
}

// order makes the request for a job of a template.
func (c *call) order(ctx context.Context) (*message.RunRequest, int, error) {
	t, err := c.open(ctx, c.args.Template)
	if err != nil {
		return nil, 0, err
	}
	w, inputs, err := t.Filled(c.args.Values)
	if err != nil {
		return nil, 0, err
	}
	return &message.RunRequest{ID: wire.NewID(), Workflow: string(w.JSON()), Inputs: inputs}, w.Len(), nil
}

func submit(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	req, _, err := c.order(ctx)
	if err != nil {
		return nil, err
	}
	ask, stop := context.WithTimeout(ctx, questionTime)
	defer stop()
	r, err := client.Submit(ask, c.daemon, req)
	if err != nil {
		return nil, err
	}
	return result(report{Job: r.Job, State: r.State, Ahead: r.Position}), nil
}

// report is what tools say of a job.
type report struct {
	Job     string        `json:"job"`
	State   message.State `json:"state"`
	Ahead   int           `json:"ahead,omitempty"` // jobs before it in the queue
	Step    int           `json:"step,omitempty"`  // of the sampling node that runs, or ran last
	Steps   int           `json:"steps,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	About   string        `json:"about,omitempty"`
	Files   []file        `json:"files,omitempty"`
	Error   *fault.Error  `json:"error,omitempty"`
	// NodeErrors are ComfyUI's, by node, of a workflow that was refused.
	NodeErrors map[string]any `json:"node_errors,omitempty"`
}

// file is a file of a job.
type file struct {
	Index     int    `json:"index"`
	Name      string `json:"name,omitempty"`
	Subfolder string `json:"subfolder,omitempty"`
	Type      string `json:"type"` // output or temp: the folder
	Node      string `json:"node"`
	Width     int    `json:"width,omitempty"`
	Height    int    `json:"height,omitempty"`
	Bytes     int    `json:"bytes"`
	Shown     string `json:"shown,omitempty"` // how the picture beside this text differs from the file
}

func filesOf(refs []message.OutputRef) (out []file) {
	for i, r := range refs {
		out = append(out, file{
			Index: i, Name: r.Filename, Subfolder: r.Subfolder, Type: r.Type, Node: r.Node, Width: r.Width, Height: r.Height,
			Bytes: r.Bytes,
		})
	}
	return out
}

// record returns the record of the job that a call names.
func (c *call) record(ctx context.Context) (message.Record, error) {
	job, err := client.Find(ctx, c.daemon, c.args.Job)
	if err != nil {
		return message.Record{}, err
	}
	return client.Status(ctx, c.daemon, job)
}

func status(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	ctx, stop := context.WithTimeout(ctx, questionTime)
	defer stop()
	rec, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	out := report{
		Job: rec.Job, State: rec.State, Ahead: rec.Position, Attempt: rec.Attempt, About: rec.About,
		Files: filesOf(rec.Outputs), Error: rec.Error, NodeErrors: rec.NodeError,
	}
	if rec.State == message.Running {
		daemons, _ := client.AllStats(ctx, c.daemon) // without it the step is not known
		for _, d := range daemons {
			at := slices.IndexFunc(d.Workers, func(w message.WorkerStats) bool { return w.Job == rec.Job })
			if at >= 0 {
				out.Step, out.Steps = d.Workers[at].Step, d.Workers[at].Steps
			}
		}
	}
	return result(out), nil
}

func cancel(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	ctx, stop := context.WithTimeout(ctx, questionTime)
	defer stop()
	job, err := client.Find(ctx, c.daemon, c.args.Job)
	if err != nil {
		return nil, err
	}
	did, state, err := client.Cancel(ctx, c.daemon, job)
	if err != nil {
		return nil, err
	}
	return result(pyjson.NewObject("job", job, "cancelled", did, "state", string(state))), nil
}

func view(ctx context.Context, c *call) (*sdk.CallToolResult, error) {
	ask, stop := context.WithTimeout(ctx, questionTime)
	defer stop()
	rec, err := c.record(ask)
	if err != nil {
		return nil, err
	}
	if rec.State != message.Done && len(rec.Outputs) == 0 {
		return nil, unfinished(&rec)
	}
	if c.args.Index < 0 || c.args.Index >= len(rec.Outputs) {
		e := fault.At(fault.BadRequest, "index", "index %d: job %s has %d files", c.args.Index, rec.Job, len(rec.Outputs))
		e.Extra = map[string]any{"allowed": map[string]any{"minimum": 0, "maximum": len(rec.Outputs) - 1}}
		return nil, e
	}
	files, err := client.Fetch(ctx, c.daemon, rec.Job) // no deadline while data keeps coming
	if err != nil {
		return nil, err
	}
	if c.args.Index >= len(files) {
		return nil, fault.New(fault.Expired, "the files of job %s are gone", rec.Job)
	}
	one := filesOf(rec.Outputs)[c.args.Index]
	shown := c.show([]*file{&one}, [][]byte{files[c.args.Index].Data})
	if len(shown) == 0 {
		return nil, fault.At(fault.Unsupported, "index", "file %d of job %s (%s) is no picture that can be shown: %s",
			one.Index, rec.Job, one.Name, one.Shown)
	}
	return result(report{Job: rec.Job, State: rec.State, Files: []file{one}}, shown...), nil
}

// unfinished is why a job has no files.
func unfinished(rec *message.Record) error {
	switch {
	case rec.Error != nil:
		return rec.Error
	case rec.State == message.Cancelled:
		return fault.New(fault.Cancelled, "job %s was cancelled", rec.Job)
	case rec.State == message.Expired:
		return fault.New(fault.Expired, "job %s has waited too long", rec.Job)
	}
	return fault.At(fault.BadRequest, "job", "job %s is %s: it has no files yet", rec.Job, rec.State)
}
