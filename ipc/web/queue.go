package web

import (
	"cmp"
	"net/http"
	"slices"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

// getQueue lists the jobs that run and wait.
func (h *HTTP) getQueue(w http.ResponseWriter, r *http.Request) error {
	running, waiting := []any{}, []any{}
	for _, j := range h.jobs.Select(open) {
		a, _ := h.past.asked(r.Context(), j.Job)
		if item := a.item(&j.Record); j.State == message.Queued {
			waiting = append(waiting, item)
		} else {
			running = append(running, item)
		}
	}
	h.send(w, http.StatusOK, pyjson.NewObject("queue_running", running, "queue_pending", waiting))
	return nil
}

// postQueue takes jobs out of the queue that wait there.
func (h *HTTP) postQueue(_ http.ResponseWriter, r *http.Request) error {
	o, err := h.fields(r)
	if err != nil {
		return err
	}
	ids := named(o.At("delete"))
	if pyjson.Bool(o.At("clear")) {
		for _, j := range h.jobs.Select(func(r *message.Record, _ bool) bool {
			return r.Kind == "" && r.State == message.Queued
		}) {
			ids = append(ids, j.Job)
		}
	}
	for _, id := range ids {
		h.cancel(r.Context(), r, id, message.Queued)
	}
	return nil
}

// named returns the ids in a list.
func named(v any) (ids []string) {
	list, _ := v.([]any)
	for _, item := range list {
		if id, ok := item.(string); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// over reports whether a job is in the history: it has ended, and had begun to, or failed without.
func over(r *message.Record, ended bool) bool {
	return r.Kind == "" && ended && (r.State != message.Cancelled || r.Started != 0)
}

// byAge sorts jobs by the time they ended, the oldest first, as ComfyUI's history has them.
func byAge(a, b jobs.Listed) int {
	return cmp.Or(cmp.Compare(a.Finished, b.Finished), cmp.Compare(a.Created, b.Created), cmp.Compare(a.Job, b.Job))
}

// ended returns the jobs that are in the history, the oldest first.
func (h *HTTP) ended() []jobs.Listed {
	list := h.jobs.Select(over)
	slices.SortFunc(list, byAge)
	return list
}
