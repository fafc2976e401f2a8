package web

import (
	"net/http"
	"runtime/debug"
	"slices"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// route is one row of the table of routes.
type route struct {
	method, path string
	about        string
	// onlyAPI: ComfyUI has it below /api alone; onlyBare: it has none below /api.
	onlyAPI, onlyBare bool
	open              bool   // it is answered to everybody
	verb              string // the right that a user must have to it: that to the verb; empty: every user has it
	uploads           bool   // its body may be as large as an upload
	answer            func(http.ResponseWriter, *http.Request) error
	fail              func(http.ResponseWriter, error) // nil: as ComfyUI does
}

// routes returns the table, from which the handler and /openapi.yaml are made.
func (h *HTTP) routes() []route {
	rows := []route{
		{method: "GET", path: "/{$}", onlyBare: true, about: "the editor, or a page that says what this is", answer: h.root},
		{
			method: "GET", path: "/ws", verb: message.VerbStatus, answer: h.ws,
			about: "websocket: events of the jobs of one client id",
		},

		{
			method: "POST", path: "/prompt", about: "queue a workflow", verb: message.VerbSubmit, answer: h.postPrompt,
			fail: h.failPrompt,
		},
		{method: "GET", path: "/prompt", about: "how many jobs wait or run", verb: message.VerbJobs, answer: h.getPrompt},
		{method: "GET", path: "/queue", about: "jobs that run and wait", verb: message.VerbJobs, answer: h.getQueue},
		{
			method: "POST", path: "/queue", verb: message.VerbCancel, answer: h.postQueue,
			about: "take waiting jobs out: {clear: true} or {delete: [id]}",
		},
		{
			method: "POST", path: "/interrupt", verb: message.VerbCancel, answer: h.interrupt,
			about: "stop a running job, or all: {prompt_id}",
		},
		{
			method: "POST", path: "/free", verb: message.VerbFree, answer: h.free,
			about: "give up cached models: {unload_models, free_memory}",
		},

		{
			method: "GET", path: "/history", verb: message.VerbJobs, answer: h.getHistory,
			about: "jobs that have ended; max_items, offset",
		},
		{
			method: "GET", path: "/history/{id}", verb: message.VerbStatus, answer: h.getHistory,
			about: "one job that has ended",
		},
		{
			method: "POST", path: "/history", verb: message.VerbDelete, answer: h.postHistory,
			about: "forget ended jobs: {clear: true} or {delete: [id]}",
		},
		{
			method: "GET", path: "/jobs", onlyAPI: true, verb: message.VerbJobs, answer: h.listJobs,
			about: "jobs; status, workflow_id, sort_by, sort_order, limit, offset",
		},
		{method: "GET", path: "/jobs/{id}", onlyAPI: true, about: "one job", verb: message.VerbStatus, answer: h.oneJob},
		{
			method: "POST", path: "/jobs/{id}/cancel", onlyAPI: true, verb: message.VerbCancel, answer: h.cancelJob,
			about: "cancel a job",
		},
		{
			method: "POST", path: "/jobs/cancel", onlyAPI: true, verb: message.VerbCancel, answer: h.cancelJobs,
			about: "cancel jobs: {job_ids: [id]}",
		},

		{
			method: "GET", path: "/view", verb: message.VerbStatus, answer: h.view,
			about: "a file; filename, type, subfolder, preview, channel; Range and If-None-Match",
		},
		{
			method: "POST", path: "/upload/image", uploads: true, about: "store a picture for LoadImage",
			verb: message.VerbSubmit, answer: h.uploadImage,
		},
		{
			method: "POST", path: "/upload/mask", uploads: true, about: "store a picture with the alpha of a mask",
			verb: message.VerbSubmit, answer: h.uploadMask,
		},

		{
			method: "GET", path: "/object_info", verb: message.VerbDescribe, answer: h.objectInfo,
			about: "all node classes",
		},
		{
			method: "GET", path: "/object_info/{class...}", verb: message.VerbDescribe, answer: h.objectInfo,
			about: "one node class",
		},
		{method: "GET", path: "/models", about: "kinds of model files", verb: message.VerbModels, answer: h.models},
		{
			method: "GET", path: "/models/{folder}", verb: message.VerbModels, answer: h.models,
			about: "model files of a kind",
		},
		{
			method: "GET", path: "/experiment/models", verb: message.VerbModels, answer: h.kinds,
			about: "kinds of model files with their folders",
		},
		{
			method: "GET", path: "/experiment/models/{folder}", verb: message.VerbModels, answer: h.modelFiles,
			about: "model files of a kind that this machine has, with size and times",
		},
		{
			method: "GET", path: "/embeddings", verb: message.VerbModels, answer: h.embeddings,
			about: "names for embedding: in prompts",
		},
		{method: "GET", path: "/extensions", about: "scripts of the editor", answer: h.extensions},
		{
			method: "GET", path: "/system_stats", verb: message.VerbStats, answer: h.systemStats,
			about: "this machine and its devices",
		},
		{method: "GET", path: "/features", about: "what this server can do", answer: h.features},

		{method: "GET", path: "/openapi.yaml", onlyBare: true, about: "these routes", answer: h.openAPI},
		{
			method: "GET", path: "/metrics", onlyBare: true, about: "counts in Prometheus' format",
			verb: message.VerbStats, answer: passed(h.cfg.Metrics),
		},
		{
			method: "GET", path: "/healthz", onlyBare: true, open: true, answer: passed(h.cfg.Health),
			about: "ok, or what is wrong with status 503",
		},
	}
	return slices.Concat(rows, h.pageRoutes(), h.editorRoutes(), h.userRoutes(), h.served())
}

// passed answers as a handler of another package does.
func passed(f http.HandlerFunc) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if f == nil {
			return bare(http.StatusNotFound)
		}
		f(w, r)
		return nil
	}
}

// paths returns the patterns of a row.
func (r *route) paths() []string {
	switch {
	case r.onlyAPI:
		return []string{"/api" + r.path}
	case r.onlyBare:
		return []string{r.path}
	}
	return []string{r.path, "/api" + r.path}
}

// handler serves the table.
func (h *HTTP) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range h.routes() {
		for _, path := range r.paths() {
			mux.Handle(r.method+" "+path, h.answers(r))
		}
	}
	return h.guard(mux)
}

// answers makes a handler of a row. A panic is an answer with status 500.
func (h *HTTP) answers(r route) http.Handler {
	fail := r.fail
	if fail == nil {
		fail = h.fail
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				h.cfg.Log.Error().Interface("panic", p).Str("route", r.method+" "+r.path).Str("stack", string(debug.Stack())).
					Msg("a request failed")
				fail(w, fault.New(fault.Panic, "internal error"))
			}
		}()
		if r.verb != "" && !may(q.Context(), r.verb) {
			h.refuse(w, q, http.StatusForbidden, lacks(q, r.verb))
			return
		}
		limit := h.cfg.Body
		if r.uploads {
			limit = max(limit, maxUpload)
		}
		q.Body = http.MaxBytesReader(w, q.Body, limit)
		if err := r.answer(w, q); err != nil {
			h.cfg.Log.Debug().Err(err).Str("route", r.method+" "+r.path).Msg("request refused")
			fail(w, err)
		}
	})
}

// root is the editor, or else a plain page: clients ask for it to see whether the server is up.
func (h *HTTP) root(w http.ResponseWriter, r *http.Request) error {
	if h.cfg.Frontend != "" {
		return h.editorFile(w, r, "index.html")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(page))
	return nil
}

const page = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Patchbay</title>
<h1>Patchbay</h1>
<p>This is ComfyUI's HTTP API, answered by Patchbay. It comes without an editor: point your client here.</p>
<p><a href="/patchbay">Jobs and devices</a>.</p>
<p><a href="/queue">Queue</a>, <a href="/history">history</a>, <a href="/system_stats">system</a>,
<a href="/openapi.yaml">all routes</a>.</p>
</html>
`
