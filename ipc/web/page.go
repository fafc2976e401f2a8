package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/node/pyjson"
)

// The page for people, below /patchbay. It is made here and works without a script; with one, the parts of it that
// change are sent over a stream and replaced.

//go:embed page
var pageFiles embed.FS

var pages = template.Must(template.ParseFS(pageFiles, "page/page.html"))

// part is one part of a page that is replaced as a whole when it changes.
type part struct {
	ID   string        `json:"id"`
	Sum  string        `json:"sum"`
	HTML template.HTML `json:"html"`
}

// partOf fills in the template of a part.
func partOf(id string, data any) (part, error) {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, id, data); err != nil {
		return part{}, err
	}
	sum := strconv.FormatUint(uint64(crc32.ChecksumIEEE(b.Bytes())), 16)
	return part{id, sum, template.HTML(b.String())}, nil //nolint:gosec // the template has escaped it
}

// sheet is one page.
type sheet struct {
	Title, Heading  string
	Events          string // URL of the stream that keeps it up to date
	Refresh, Editor bool
	Parts           []part
}

// pageRoutes are the rows of the page for people.
func (h *HTTP) pageRoutes() []route {
	get := func(path, verb, about string, answer func(http.ResponseWriter, *http.Request) error) route {
		return route{method: "GET", path: "/patchbay" + path, onlyBare: true, verb: verb, about: about, answer: answer}
	}
	post := func(path, verb, about string, answer func(http.ResponseWriter, *http.Request) error) route {
		return route{method: "POST", path: "/patchbay" + path, onlyBare: true, verb: verb, about: about, answer: answer}
	}
	return []route{
		get("", message.VerbJobs, "page for people: jobs and devices", h.showPage),
		get("/jobs/{id}", message.VerbStatus, "page for people: one job", h.showPage),
		get("/jobs/{id}/workflow", message.VerbStatus,
			"what a job asked for, as a file; form=editor: in the editor's format", h.workflow),
		get("/jobs/{id}/preview", message.VerbStatus, "the newest preview of a job that runs", h.newestPreview),
		get("/jobs/{id}/thumb", message.VerbStatus, "a small picture of what a job has made", h.thumb),
		post("/jobs/{id}/cancel", message.VerbCancel, "cancel a job, and show it", h.cancelShown),
		post("/jobs/{id}/retry", message.VerbRetry,
			"run a job again that failed, was cancelled or has expired, and show it", h.retryShown),
		post("/jobs/{id}/move", message.VerbMove, "move a waiting job: to=front, or a priority; and show it", h.moveShown),
		post("/jobs/{id}/delete", message.VerbDelete, "remove the files of a job that has ended, and show it", h.deleteShown),
		post("/pause", message.VerbPause, "let waiting jobs stay where they are, and show all", h.pauseShown),
		post("/resume", message.VerbPause, "let waiting jobs go on, and show all", h.pauseShown),
		get("/events", message.VerbJobs, "stream of what changes on a page; job, page", h.live),
		get("/page.css", "", "style of the page", asset("page.css", "text/css; charset=utf-8")),
		get("/page.js", "", "script of the page", asset("page.js", "text/javascript; charset=utf-8")),
		get("/icon.svg", "", "icon of the page", asset("icon.svg", "image/svg+xml")),
	}
}

// asset answers with a file of the page.
func asset(name, kind string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		b, err := pageFiles.ReadFile("page/" + name)
		if err == nil {
			cached(w, r, kind, b)
		}
		return err
	}
}

// parts makes the parts of the page that a request asks for: of a job, or of all.
func (h *HTTP) parts(r *http.Request, job string) ([]part, error) {
	if job != "" {
		found := h.find(job)
		if found == nil {
			return nil, fault.New(fault.NoJob, "no job %q here", job)
		}
		return h.jobParts(r.Context(), found)
	}
	number, _ := strconv.Atoi(r.URL.Query().Get("page")) // 0: the first
	return h.boardParts(r.Context(), max(number, 1))
}

// showPage answers GET /patchbay and GET /patchbay/jobs/{id}.
func (h *HTTP) showPage(w http.ResponseWriter, r *http.Request) error {
	job := r.PathValue("id")
	list, err := h.parts(r, job)
	if err != nil {
		return err
	}
	s := sheet{
		Title: "Jobs - Patchbay", Heading: "Jobs", Events: "/patchbay/events?page=" +
			url.QueryEscape(r.URL.Query().Get("page")), Refresh: true, Parts: list,
		Editor: h.cfg.Frontend != "",
	}
	if found := h.find(job); found != nil {
		s.Heading, s.Events = nameOf(&found.Record), "/patchbay/events?job="+url.QueryEscape(job)
		s.Title, s.Refresh = s.Heading+" - Patchbay", !found.Ended
	}
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "page", s); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes())
	return nil
}

// maxStreams bounds the pages that are kept up to date at once.
const maxStreams = 100

// live answers GET /patchbay/events: once a second it sends the parts of a page that have changed.
func (h *HTTP) live(w http.ResponseWriter, r *http.Request) error {
	job := r.URL.Query().Get("job")
	if _, err := h.parts(r, job); err != nil {
		return err
	}
	if h.streams.Add(1) > maxStreams {
		h.streams.Add(-1)
		return &fault.Error{
			Code: fault.NoCapacity, Text: fmt.Sprintf("%d pages are kept up to date already", maxStreams), RetryAfterMS: 10000,
		}
	}
	defer h.streams.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		return nil
	}
	out := http.NewResponseController(w)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	sent, silent := map[string]string{}, 0
	for {
		list, err := h.parts(r, job)
		if err != nil {
			return nil //nolint:nilerr // the job is gone: so is the stream, and the page says so
		}
		text := ""
		for _, p := range list {
			if sent[p.ID] == p.Sum {
				continue
			}
			b, err := json.Marshal(p)
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			sent[p.ID] = p.Sum
			text += "data: " + string(b) + "\n\n"
		}
		if silent++; text == "" && silent > 15 {
			text = ": still here\n\n" // by which a connection that is gone shows
		}
		if text != "" {
			silent = 0
			_ = out.SetWriteDeadline(time.Now().Add(maxSilence))
			if _, err := w.Write([]byte(text)); err != nil || out.Flush() != nil {
				return nil //nolint:nilerr // the browser has left
			}
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-h.closing:
			return nil
		case <-tick.C:
		}
	}
}

// workflow answers GET /patchbay/jobs/{id}/workflow.
func (h *HTTP) workflow(w http.ResponseWriter, r *http.Request) error {
	found := h.find(r.PathValue("id"))
	if found == nil {
		return bare(http.StatusNotFound)
	}
	a, known := h.past.asked(r.Context(), found.Job)
	var graph any = a.prompt
	if r.URL.Query().Get("form") == "editor" {
		graph = a.extra.In("extra_pnginfo").At("workflow")
	}
	if !known || graph == nil {
		return fault.New(fault.Expired, "what job %s asked for is not known any more", found.Job)
	}
	w.Header().Set("Content-Disposition", `attachment; filename="`+found.Job+`.json"`)
	h.send(w, http.StatusOK, graph)
	return nil
}

// newestPreview answers GET /patchbay/jobs/{id}/preview.
func (h *HTTP) newestPreview(w http.ResponseWriter, r *http.Request) error {
	found := h.find(r.PathValue("id"))
	if found == nil {
		return bare(http.StatusNotFound)
	}
	_, preview, err := h.jobs.Log(r.Context(), found.Job)
	if err != nil || preview == nil {
		return bare(http.StatusNotFound)
	}
	w.Header().Set("Content-Type", preview.Format)
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(preview.Data)
	return nil
}

// cancelShown, retryShown, moveShown and deleteShown answer the buttons of the page, and lead back to the job.
func (h *HTTP) cancelShown(w http.ResponseWriter, r *http.Request) error {
	found := h.find(r.PathValue("id"))
	if found == nil {
		return bare(http.StatusNotFound)
	}
	h.cancel(r.Context(), r, found.Job)
	return h.back(w, r, found)
}

func (h *HTTP) retryShown(w http.ResponseWriter, r *http.Request) error {
	return h.ask(w, r, message.VerbRetry, nil, &message.RetryReply{})
}

func (h *HTTP) moveShown(w http.ResponseWriter, r *http.Request) error {
	to := pyjson.NewObject("priority", r.FormValue("to"))
	if r.FormValue("to") == "front" {
		to = pyjson.NewObject("front", true)
	}
	return h.ask(w, r, message.VerbMove, to, &message.MoveReply{})
}

func (h *HTTP) deleteShown(w http.ResponseWriter, r *http.Request) error {
	return h.ask(w, r, message.VerbDelete, nil, &message.DeleteReply{})
}

// ask asks for something about the job of a request, and leads back to it.
func (h *HTTP) ask(w http.ResponseWriter, r *http.Request, verb string, fields *pyjson.Object, reply any) error {
	found := h.find(r.PathValue("id"))
	if found == nil {
		return bare(http.StatusNotFound)
	}
	call := &serve.Call{Verb: verb, From: from(r), Job: found.Job, Fields: fields}
	if err := h.svc.Ask(r.Context(), call, reply); err != nil {
		return err
	}
	return h.back(w, r, found)
}

// pauseShown answers the buttons that pause the queue and let it go on.
func (h *HTTP) pauseShown(w http.ResponseWriter, r *http.Request) error {
	fields := pyjson.NewObject("paused", path.Base(r.URL.Path) == "pause")
	call := &serve.Call{Verb: message.VerbPause, From: from(r), Fields: fields}
	if err := h.svc.Ask(r.Context(), call, &message.PauseReply{}); err != nil {
		return err
	}
	http.Redirect(w, r, "/patchbay", http.StatusSeeOther)
	return nil
}

func (h *HTTP) back(w http.ResponseWriter, r *http.Request, j *jobs.Listed) error {
	http.Redirect(w, r, "/patchbay/jobs/"+j.Job, http.StatusSeeOther)
	return nil
}

// nameOf is what a page calls a job: the start of its prompt, or else its id.
func nameOf(rec *message.Record) string {
	if name := strings.TrimSpace(rec.About); name != "" {
		return name
	}
	return "Job " + rec.Job
}
