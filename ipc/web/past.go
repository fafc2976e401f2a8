package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// past remembers what jobs asked for, which the table has only until they are done, and their histories once they are
// written. It keeps a file for every job, so that its history outlives the daemon as the job does.
type past struct {
	h      *HTTP
	saving sync.Mutex // held while a file is written; before mu
	mu     sync.Mutex
	of     map[string]*asked
	// in the order in which they came, and their bytes
	order []string
	bytes int
}

// asked is what one job asked for.
type asked struct {
	prompt   json.RawMessage // the graph as it was validated
	extra    *pyjson.Object  // extra_data as history shows it, but for create_time
	outputs  []string
	workflow string // extra_pnginfo.workflow.id
	rev      uint64 // of the record that history is of
	history  json.RawMessage
}

// maxPast bounds the bytes that are remembered.
const maxPast = 256 << 20

func newPast(h *HTTP) *past { return &past{h: h, of: map[string]*asked{}} }

// askedBy returns what of a request history shows.
func askedBy(req *message.RunRequest) *asked {
	a := &asked{extra: pyjson.NewObject(), outputs: append([]string{}, req.Validated...)}
	switch w := req.Workflow.(type) {
	case string:
		a.prompt = json.RawMessage(w)
	case []byte:
		a.prompt = bytes.Clone(w)
	default:
		a.prompt = pyjson.Dump(w)
	}
	if req.ExtraPNG != nil {
		a.extra.Set("extra_pnginfo", req.ExtraPNG)
		a.workflow = req.ExtraPNG.In("workflow").Text("id")
	}
	if req.ExtraData != nil {
		for _, k := range req.ExtraData.Keys() {
			a.extra.Set(k, req.ExtraData.At(k))
		}
	}
	if id, ok := req.Client.(string); ok {
		a.extra.Set("client_id", id)
	}
	return a
}

// remember keeps what a job asked for, in its file too before it returns. Who queues a job and who hears of it call
// it at the same time: the second must neither write over the first nor return before it.
func (p *past) remember(job string, req *message.RunRequest) *asked {
	p.saving.Lock()
	defer p.saving.Unlock()
	p.mu.Lock()
	old := p.of[job]
	p.mu.Unlock()
	if old != nil {
		return old
	}
	a := askedBy(req)
	if err := p.save(job, a); err != nil {
		p.h.cfg.Log.Warn().Err(err).Str("job", job).Msg("its history will not outlive the daemon")
	}
	return p.hold(job, a)
}

// hold keeps in memory what a job asked for.
func (p *past) hold(job string, a *asked) *asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.of[job]; old != nil {
		return old
	}
	p.of[job] = a
	p.order = append(p.order, job)
	p.bytes += a.size()
	p.fit()
	return a
}

func (a *asked) size() int {
	b, _ := wire.Encode(a.extra, wire.JSON)
	return len(a.prompt) + len(b) + len(a.history)
}

// fit drops the oldest until the rest fits. The caller must hold p.mu.
func (p *past) fit() {
	for p.bytes > maxPast && len(p.order) > 1 {
		p.drop(p.order[0])
	}
}

// drop drops what is known of a job. The caller must hold p.mu.
func (p *past) drop(job string) {
	if a := p.of[job]; a != nil {
		p.bytes -= a.size()
		delete(p.of, job)
		p.order = slices.DeleteFunc(p.order, func(id string) bool { return id == job })
	}
}

func (p *past) forget(job string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(job)
	if p.h.cfg.Keep != "" {
		_ = os.Remove(p.file(job))
	}
}

func (p *past) file(job string) string { return filepath.Join(p.h.cfg.Keep, job+".json") }

// save writes the file of a job.
func (p *past) save(job string, a *asked) error {
	if p.h.cfg.Keep == "" || !wire.ValidID(job) {
		return nil
	}
	b, err := wire.Encode(pyjson.NewObject("prompt", string(a.prompt), "extra", a.extra, "outputs", a.outputs), wire.JSON)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file(job)+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(p.file(job)+".new", p.file(job))
}

// load reads the file of a job; nil: there is none that can be read.
func (p *past) load(job string) *asked {
	if p.h.cfg.Keep == "" || !wire.ValidID(job) {
		return nil
	}
	b, err := os.ReadFile(p.file(job))
	if err != nil {
		return nil
	}
	v, err := pyjson.Decode(b)
	o, ok := v.(*pyjson.Object)
	if err != nil || !ok || o.In("extra") == nil {
		return nil
	}
	extra := o.In("extra")
	return &asked{
		prompt: json.RawMessage(o.Text("prompt")), extra: extra, outputs: append([]string{}, named(o.At("outputs"))...),
		workflow: extra.In("extra_pnginfo").In("workflow").Text("id"),
	}
}

// open makes the folder of the files, and removes those of jobs that are not there any more.
func (p *past) open() {
	if p.h.cfg.Keep == "" {
		return
	}
	if err := os.MkdirAll(p.h.cfg.Keep, 0o700); err != nil {
		p.h.cfg.Log.Warn().Err(err).Msg("histories will not outlive the daemon")
	}
	entries, _ := os.ReadDir(p.h.cfg.Keep) // a folder that cannot be read has none
	for _, e := range entries {
		job, whole := strings.CutSuffix(e.Name(), ".json")
		if p.h.find(job) == nil || !whole {
			_ = os.Remove(filepath.Join(p.h.cfg.Keep, e.Name()))
		}
	}
}

// asked returns what a job asked for: nothing at all if that is not known any more.
func (p *past) asked(ctx context.Context, job string) (a *asked, known bool) {
	p.mu.Lock()
	a = p.of[job]
	p.mu.Unlock()
	if a == nil {
		if a = p.load(job); a != nil {
			a = p.hold(job, a)
		}
	}
	if a != nil {
		return a, true
	}
	req, err := p.h.jobs.Request(ctx, job)
	if err != nil {
		if !errors.Is(err, jobs.ErrNoJob) {
			p.h.cfg.Log.Debug().Err(err).Str("job", job).Msg("what it asked for is not known")
		}
		return &asked{prompt: json.RawMessage("{}"), extra: pyjson.NewObject()}, false
	}
	return p.remember(job, req), true
}

// history returns the history of a job that has ended.
func (p *past) history(ctx context.Context, rec *message.Record) (json.RawMessage, error) {
	a, known := p.asked(ctx, rec.Job)
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.history != nil && a.rev == rec.Rev {
		return a.history, nil
	}
	b, err := wire.Encode(pyjson.NewObject("prompt", a.item(rec), "outputs", outputsOf(rec), "status", statusOf(rec),
		"meta", metaOf(rec)), wire.JSON)
	if err != nil || !known || p.of[rec.Job] != a {
		return b, err
	}
	p.bytes += len(b) - len(a.history)
	a.history, a.rev = b, rec.Rev
	p.fit()
	return b, nil
}

// item is a job as ComfyUI's queue and history have it: [number, id, prompt, extra_data, outputs to execute].
func (a *asked) item(rec *message.Record) []any {
	return []any{number(rec.Number), rec.Job, a.graph(), a.extraData(rec), append([]string{}, a.outputs...)}
}

// graph returns the prompt in JSON. Python's NaN and Infinity, which JSON lacks, become null.
func (a *asked) graph() any {
	if json.Valid(a.prompt) {
		return a.prompt
	}
	v, err := pyjson.Decode(a.prompt)
	if err != nil {
		return map[string]any{}
	}
	return v
}

func (a *asked) extraData(rec *message.Record) *pyjson.Object {
	return pyjson.Joined(a.extra, pyjson.NewObject("create_time", rec.Created))
}

// number writes whole numbers without a fraction.
func number(n float64) json.RawMessage { return json.RawMessage(strconv.FormatFloat(n, 'f', -1, 64)) }

// outputsOf returns the outputs of a job by node, as ComfyUI's history has them.
func outputsOf(rec *message.Record) *pyjson.Object {
	out := pyjson.NewObject()
	nodes := map[string]*pyjson.Object{}
	at := func(node string) *pyjson.Object {
		if nodes[node] == nil {
			nodes[node] = pyjson.NewObject()
			out.Set(node, nodes[node])
		}
		return nodes[node]
	}
	if rec.Dropped == 0 {
		for _, ref := range rec.Outputs {
			if ref.Kind == files.KindSocket {
				continue
			}
			list, _ := at(ref.Node).At(ref.Kind).([]any)
			at(ref.Node).Set(ref.Kind, append(list, fileOf(ref)))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(rec.UI)) {
		for _, k := range slices.Sorted(maps.Keys(rec.UI[node])) {
			at(node).Set(k, rec.UI[node][k])
		}
	}
	return out
}

// fileOf names a file as ComfyUI does.
func fileOf(ref message.OutputRef) *pyjson.Object {
	return pyjson.NewObject("filename", ref.Filename, "subfolder", ref.Subfolder, "type", cmp.Or(ref.Type, "output"))
}

func metaOf(rec *message.Record) *pyjson.Object {
	out := pyjson.NewObject()
	for _, node := range outputsOf(rec).Keys() {
		out.Set(node, pyjson.NewObject("node_id", node, "display_node", node, "parent_node", nil, "real_node_id", node))
	}
	return out
}

// statusOf returns how a job ended, with the messages of its start and end.
func statusOf(rec *message.Record) *pyjson.Object {
	outcome := "success"
	if rec.State != message.Done {
		outcome = "error"
	}
	said := []any{
		[]any{"execution_start", pyjson.NewObject("prompt_id", rec.Job, "timestamp", cmp.Or(rec.Started, rec.Created))},
		[]any{"execution_cached", pyjson.NewObject("nodes", cachedOf(rec), "prompt_id", rec.Job, "timestamp",
			cmp.Or(rec.Started, rec.Created))},
	}
	if last := jobs.LastEvents(*rec, nil); len(last) > 0 {
		kind, data := lastFrame(&last[len(last)-1])
		said = append(said, []any{kind, data})
	}
	return pyjson.NewObject("status_str", outcome, "completed", rec.State == message.Done, "messages", said)
}

// cachedOf returns the nodes of a job whose results were there before it ran.
func cachedOf(rec *message.Record) any {
	if list, ok := rec.Metrics["cached"]; ok && list != nil {
		return list
	}
	return []any{}
}
