package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/node/template"
)

// served returns the routes that ComfyUI lacks: templates, and OpenAI's API of pictures over them.
func (h *HTTP) served() []route {
	rows := []route{
		{
			method: "GET", path: "/patchbay/templates", verb: message.VerbDescribe, answer: h.listTemplates,
			about: "templates and their parameters",
		},
		{
			method: "POST", path: "/patchbay/run/{template}", verb: message.VerbSubmit, answer: h.runTemplate,
			about: "run a template with {parameter: value} or a form; the answer is the picture",
		},
	}
	openAI := []route{
		{
			method: "GET", path: "/v1/models", verb: message.VerbDescribe, answer: h.listModels,
			about: "templates, as OpenAI lists models",
		},
		{
			method: "GET", path: "/v1/models/{model}", verb: message.VerbDescribe, answer: h.oneModel,
			about: "one template",
		},
		{
			method: "POST", path: "/v1/images/generations", verb: message.VerbSubmit, answer: h.generate,
			about: "pictures of a template, asked for as OpenAI's",
		},
		{
			method: "POST", path: "/v1/images/edits", verb: message.VerbSubmit, answer: h.edit,
			about: "the same with pictures in a form: image, mask",
		},
	}
	for i := range rows {
		rows[i].fail = h.failPlainly
	}
	for i := range openAI {
		openAI[i].fail = h.failLikeOpenAI
	}
	rows = append(rows, openAI...)
	for i := range rows {
		rows[i].onlyBare, rows[i].uploads = true, true
	}
	return rows
}

// failPlainly answers with an error as docs/protocol.md has it: code, input, allowed values.
func (h *HTTP) failPlainly(w http.ResponseWriter, err error) {
	e := h.published(w, err)
	h.send(w, e.Status(), wire.BodyOf(e))
}

// template returns a template whose workflow can run here.
func (h *HTTP) template(name string) (*template.Template, error) {
	t, err := h.templates.Open(name)
	if err != nil {
		return nil, err
	}
	w, inputs, err := t.Filled(t.Sample())
	if err == nil {
		_, _, err = h.classes.Validate(&message.RunRequest{Inputs: inputs}, w)
	}
	if err != nil {
		e := fault.From(err)
		e.Text = "template " + name + ": " + e.Text
		return nil, e
	}
	return t, nil
}

// listTemplates answers GET /patchbay/templates. One that cannot be used is listed with the reason.
func (h *HTTP) listTemplates(w http.ResponseWriter, _ *http.Request) error {
	list := []any{}
	for _, name := range h.templates.List() {
		t, err := h.template(name)
		if err != nil {
			body := wire.BodyOf(h.cfg.Roots.Publish(fault.From(err)))
			list = append(list, pyjson.NewObject("name", name, "error", body.Error))
			continue
		}
		list = append(list, pyjson.NewObject("name", name, "about", t.About, "parameters", t.Schema()))
	}
	h.send(w, http.StatusOK, pyjson.NewObject("templates", list))
	return nil
}

// runTemplate answers POST /patchbay/run/{template}.
func (h *HTTP) runTemplate(w http.ResponseWriter, r *http.Request) error {
	t, err := h.templates.Open(r.PathValue("template"))
	if err != nil {
		return err
	}
	values, err := h.values(r)
	if err != nil {
		return err
	}
	wait, err := preferred(r.Header)
	if err != nil {
		return err
	}
	fields := pyjson.NewObject()
	for name, list := range r.URL.Query() {
		switch name {
		case "id", "priority":
			fields.Set(name, list[0])
		case cookie:
		default:
			return fault.At(fault.BadRequest, name, "the parameter %s of the address is not known: there are id and priority; "+
				"those of the template belong into the body", wire.Shown(name))
		}
	}
	job, err := h.order(r, t, values, fields)
	if err != nil {
		return err
	}
	w.Header().Set("Patchbay-Job", job)
	rec, err := h.patiently(w, r, job, wait, !fields.Has("id"), nil)
	if errors.Is(err, errUnfinished) {
		w.Header().Set("Location", "/api/jobs/"+job)
		h.send(w, http.StatusAccepted, pyjson.NewObject("job", job, "status", "/api/jobs/"+job))
		return nil
	}
	if err != nil {
		return err
	}
	shown := answering(rec)
	if len(shown) == 0 {
		return fault.New(fault.Expired, "job %s has made no file", job)
	}
	data, err := h.svc.File(r.Context(), rec, shown[0])
	if err != nil {
		return err
	}
	ref := rec.Outputs[shown[0]]
	name := cmp.Or(ref.Filename, "file"+ref.Ext)
	disposed(w.Header(), name)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return nil
}

// answering returns the positions of the files that answer for a job: saved ones, or else temporary ones.
func answering(rec *message.Record) (out []int) {
	for _, kind := range []string{"output", "temp"} {
		for i, ref := range rec.Outputs {
			if ref.Kind != files.KindSocket && cmp.Or(ref.Type, "output") == kind {
				out = append(out, i)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}

// values reads the parameters in the body of a request: a JSON object, or a form whose files are pictures.
func (h *HTTP) values(r *http.Request) (*pyjson.Object, error) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != "multipart/form-data" {
		if r.ContentLength == 0 {
			return pyjson.NewObject(), nil
		}
		return h.fields(r)
	}
	form, err := h.form(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = form.RemoveAll() }()
	out := pyjson.NewObject()
	for name, list := range form.Value {
		out.Set(name, list[0])
	}
	for name, list := range form.File {
		for i, part := range list {
			data, err := contents(part)
			if err != nil {
				return nil, err
			}
			name := strings.TrimSuffix(name, "[]")
			if i > 0 {
				name += strconv.Itoa(i + 1)
			}
			out.Set(name, data)
		}
	}
	return out, nil
}

// preferred reads the header Prefer: how long the answer may take until it is 202; negative: as long as the job does.
func preferred(head http.Header) (time.Duration, error) {
	for _, line := range head.Values("Prefer") {
		for _, item := range strings.Split(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
			switch strings.ToLower(name) {
			case "respond-async":
				return 0, nil
			case "wait":
				n, err := strconv.Atoi(value)
				if err != nil || n < 0 || n > 24*3600 {
					return 0, fault.At(fault.BadRequest, "Prefer", "the header Prefer: want wait=SECONDS, 0 to 86400, got %q", value)
				}
				return time.Duration(n) * time.Second, nil
			}
		}
	}
	return -1, nil
}

// order queues a job of a template with values for its parameters. fields are further ones of the request.
func (h *HTTP) order(r *http.Request, t *template.Template, values, fields *pyjson.Object) (string, error) {
	w, inputs, err := t.Filled(values)
	if err != nil {
		return "", err
	}
	sent := pyjson.NewObject()
	for _, name := range slices.Sorted(maps.Keys(inputs)) {
		sent.Set(name, inputs[name])
	}
	_, receipt, err := h.queue(r, pyjson.Joined(fields, pyjson.NewObject("workflow", string(w.JSON()), "inputs", sent)))
	return receipt.Job, err
}

// errUnfinished says that a job has not ended in the time that its client wants to wait.
var errUnfinished = errors.New("the job has not ended")

// beat is how long a client that waits for a job may hear nothing.
const beat = 15 * time.Second

// patiently waits until a job has ended, or for a time (negative: any), and returns its record. With tied the job is
// cancelled if the client goes away. each, if not nil, is called for events, previews and, with an empty item, when
// there has been nothing for a while.
func (h *HTTP) patiently(w http.ResponseWriter, r *http.Request, job string, wait time.Duration, tied bool,
	each func(jobs.Item) error,
) (*message.Record, error) {
	conn := http.NewResponseController(w) // the times within which requests arrive and are answered do not count now
	_, _ = conn.SetReadDeadline(time.Time{}), conn.SetWriteDeadline(time.Time{})
	defer func() { _ = conn.SetWriteDeadline(time.Now().Add(maxAnswer)) }()
	ctx := r.Context()
	if wait >= 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, wait)
		defer stop()
	}
	rec, err := h.followed(ctx, job, each)
	switch {
	case r.Context().Err() == nil && ctx.Err() != nil && err != nil:
		return nil, errUnfinished
	case errors.Is(context.Cause(r.Context()), errStopping):
		return nil, errStopping
	case r.Context().Err() != nil && tied:
		h.cancel(context.WithoutCancel(r.Context()), r, job)
	}
	return rec, err
}

// followed reads the log of a job until it has ended, and returns its record, or why there is no result.
func (h *HTTP) followed(ctx context.Context, job string, each func(jobs.Item) error) (*message.Record, error) {
	cur, err := h.jobs.Follow(ctx, job, 0, each != nil)
	if err != nil {
		return nil, fault.New(fault.NoJob, "no job %q here", job)
	}
	defer cur.Close()
	for {
		quiet, stop := context.WithTimeout(ctx, beat)
		it, err := cur.Next(quiet)
		stop()
		switch {
		case errors.Is(err, jobs.ErrEnd):
			return h.result(job)
		case err != nil && ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && quiet.Err() == nil:
			return nil, err
		}
		if each != nil {
			if err := each(it); err != nil {
				return nil, err
			}
		}
	}
}

// result returns the record of a job that has ended, or why it has no result.
func (h *HTTP) result(job string) (*message.Record, error) {
	found := h.find(job)
	switch {
	case found == nil:
		return nil, fault.New(fault.NoJob, "job %q was forgotten", job)
	case found.State == message.Done:
		return &found.Record, nil
	case found.Error != nil:
		return nil, found.Error
	case found.State == message.Expired:
		return nil, fault.New(fault.Expired, "job %s has waited too long", job)
	}
	return nil, fault.New(fault.Cancelled, "job %s was cancelled", job)
}
