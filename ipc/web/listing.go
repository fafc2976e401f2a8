package web

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// statuses are ComfyUI's names for the states of a job, in its order.
var statuses = []string{"pending", "in_progress", "completed", "failed", "cancelled"}

// statusName returns ComfyUI's name for the state of a job.
func statusName(j *jobs.Listed) string {
	switch {
	case j.State == message.Queued:
		return "pending"
	case !j.Ended:
		return "in_progress"
	case j.State == message.Done:
		return "completed"
	case j.State == message.Cancelled:
		return "cancelled"
	}
	return "failed"
}

// listJobs answers GET /api/jobs.
func (h *HTTP) listJobs(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	want, err := wantedStatuses(q.Get("status"))
	if err != nil {
		return err
	}
	by, order := "created_at", "desc"
	if q.Has("sort_by") {
		by = strings.ToLower(q.Get("sort_by"))
	}
	if q.Has("sort_order") {
		order = strings.ToLower(q.Get("sort_order"))
	}
	switch {
	case by != "created_at" && by != "execution_duration":
		return wrong("sort_by must be 'created_at' or 'execution_duration'")
	case order != "asc" && order != "desc":
		return wrong("sort_order must be 'asc' or 'desc'")
	}
	limit, offset := -1, 0
	if q.Has("limit") {
		if limit, err = strconv.Atoi(q.Get("limit")); err != nil {
			return wrong("limit must be an integer")
		}
		if limit <= 0 {
			return wrong("limit must be a positive integer")
		}
	}
	if q.Has("offset") {
		if offset, err = strconv.Atoi(q.Get("offset")); err != nil {
			return wrong("offset must be an integer")
		}
		offset = max(offset, 0)
	}
	list := h.jobs.Select(func(r *message.Record, ended bool) bool {
		if !open(r, ended) && !over(r, ended) {
			return false
		}
		return slices.Contains(want, statusName(&jobs.Listed{Record: *r, Ended: ended}))
	})
	slices.SortStableFunc(list, func(a, b jobs.Listed) int {
		c := cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Job, b.Job))
		if by == "execution_duration" {
			c = cmp.Or(cmp.Compare(took(&a), took(&b)), c)
		}
		if order == "desc" {
			c = -c
		}
		return c
	})
	if id := q.Get("workflow_id"); id != "" {
		list = slices.DeleteFunc(list, func(j jobs.Listed) bool {
			a, _ := h.past.asked(r.Context(), j.Job)
			return a.workflow != id
		})
	}
	total := len(list)
	list = list[min(offset, total):]
	after := len(list)
	if limit >= 0 {
		list = list[:min(limit, len(list))]
	}
	out := []any{}
	for i := range list {
		out = append(out, h.summary(r.Context(), &list[i]))
	}
	var shown any
	if limit >= 0 {
		shown = limit
	}
	h.send(w, http.StatusOK, pyjson.NewObject("jobs", out, "pagination", pyjson.NewObject("offset", offset, "limit", shown,
		"total", total, "has_more", len(out) < after)))
	return nil
}

// wantedStatuses reads the parameter status: names separated by commas; none means all.
func wantedStatuses(text string) ([]string, error) {
	if text == "" {
		return statuses, nil
	}
	var want, bad []string
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.ToLower(strings.TrimSpace(name)); {
		case name == "":
		case slices.Contains(statuses, name):
			want = append(want, name)
		default:
			bad = append(bad, name)
		}
	}
	if len(bad) > 0 {
		return nil, wrong("Invalid status value(s): %s. Valid values: %s", strings.Join(bad, ", "),
			strings.Join(statuses, ", "))
	}
	return want, nil
}

// took returns how long a job ran, 0 for one that has not ended.
func took(j *jobs.Listed) int64 {
	if !j.Ended || j.Started == 0 {
		return 0
	}
	return j.Finished - j.Started
}

// summary is a job as ComfyUI's lists have it.
func (h *HTTP) summary(ctx context.Context, j *jobs.Listed) *pyjson.Object {
	a, _ := h.past.asked(ctx, j.Job)
	o := pyjson.NewObject("id", j.Job, "status", statusName(j), "priority", number(j.Number), "create_time", j.Created)
	outputs := pyjson.NewObject()
	if j.Ended {
		outputs = outputsOf(&j.Record)
		o.SetAll("execution_start_time", cmp.Or(j.Started, j.Created), "execution_end_time", j.Finished)
		last := jobs.LastEvents(j.Record, nil)
		if kind, data := lastFrame(&last[len(last)-1]); kind == message.EventError {
			o.Set("execution_error", data)
		}
	}
	count, seen, best := summarized(outputs)
	o.SetAll("outputs_count", count, "previewable_outputs_count", seen)
	if best != nil {
		o.Set("preview_output", best)
	}
	if a.workflow != "" {
		o.Set("workflow_id", a.workflow)
	}
	return o
}

// maxPreviewText is where a text is cut off that stands for a job.
const maxPreviewText = 1024

// summarized counts the files in the outputs of a job and those that can be shown, and chooses the one that stands for
// it: a saved picture, else a temporary one, else a text file, else a text.
func summarized(outputs *pyjson.Object) (files, seen int, best *pyjson.Object) {
	var ranked [4]*pyjson.Object
	offer := func(rank int, o *pyjson.Object) {
		if ranked[rank] == nil {
			ranked[rank] = o
		}
	}
	for _, node := range outputs.Keys() {
		kinds, _ := outputs.At(node).(*pyjson.Object)
		for _, kind := range kinds.Keys() {
			list, ok := kinds.At(kind).([]any)
			if kind == "animated" || !ok {
				continue
			}
			for _, item := range list {
				file, isFile := item.(*pyjson.Object)
				if !isFile {
					if text, ok := item.(string); ok && kind == "text" {
						offer(3, textPreview(text, node))
					}
					continue
				}
				files++
				text := isText(file.Text("filename"))
				if !text && !slices.Contains([]string{"images", "video", "audio", "3d", "text"}, kind) {
					continue
				}
				seen++
				shown := pyjson.Joined(file, pyjson.NewObject("nodeId", node, "mediaType", kind))
				switch {
				case text || kind == "text":
					offer(2, shown)
				case file.Text("type") == "output":
					offer(0, shown)
				default:
					offer(1, shown)
				}
			}
		}
	}
	for _, o := range ranked {
		if o != nil {
			return files, seen, o
		}
	}
	return files, seen, nil
}

func isText(name string) bool {
	return slices.Contains([]string{".txt", ".md", ".json"}, strings.ToLower(filepath.Ext(name)))
}

func textPreview(text, node string) *pyjson.Object {
	runes := []rune(text)
	o := pyjson.NewObject("content", string(runes[:min(len(runes), maxPreviewText)]))
	if len(runes) > maxPreviewText {
		o.Set("truncated", true)
	}
	o.SetAll("nodeId", node, "mediaType", "text")
	return o
}

// oneJob answers GET /api/jobs/{id}.
func (h *HTTP) oneJob(w http.ResponseWriter, r *http.Request) error {
	j := h.find(r.PathValue("id"))
	if j == nil || !open(&j.Record, j.Ended) && !over(&j.Record, j.Ended) {
		return &plain{http.StatusNotFound, map[string]any{"error": "Job not found"}}
	}
	o := h.summary(r.Context(), j)
	if j.Ended {
		a, _ := h.past.asked(r.Context(), j.Job)
		o.SetAll("outputs", outputsOf(&j.Record), "execution_status", statusOf(&j.Record), "workflow",
			pyjson.NewObject("prompt", a.graph(), "extra_data", a.extraData(&j.Record)))
	}
	h.send(w, http.StatusOK, o)
	return nil
}

func (h *HTTP) cancelJob(w http.ResponseWriter, r *http.Request) error {
	h.send(w, http.StatusOK, map[string]any{"cancelled": h.cancel(r.Context(), r, r.PathValue("id"))})
	return nil
}

// cancelJobs cancels several jobs. One id of a wrong form stops all.
func (h *HTTP) cancelJobs(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	v, err := pyjson.Decode(body)
	if err != nil {
		return wrong("Request body must be valid JSON")
	}
	o, _ := v.(*pyjson.Object)
	list, ok := o.At("job_ids").([]any)
	if !ok {
		return wrong("job_ids must be a list")
	}
	var ids, bad []string
	for _, item := range list {
		id, isText := item.(string)
		switch {
		case isText && wire.ValidID(id) && (message.CanonicalUUID(id) || h.find(id) != nil):
			ids = append(ids, id)
		case isText:
			bad = append(bad, id)
		default:
			bad = append(bad, pyjson.Repr(item))
		}
	}
	if len(bad) > 0 {
		return &plain{http.StatusBadRequest, map[string]any{
			"error": "job_ids contains invalid id(s)", "invalid_ids": bad,
		}}
	}
	did := false
	for _, id := range ids {
		did = h.cancel(r.Context(), r, id) || did
	}
	h.send(w, http.StatusOK, map[string]any{"cancelled": did})
	return nil
}
