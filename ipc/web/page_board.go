package web

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// What the page shows at once of jobs that wait and that have ended.
const (
	waitingShown = 25
	doneShown    = 24
)

type (
	// summaryView is the top of the page.
	summaryView struct {
		Version, Daemon, Rate, Ill string
		Running, Waiting           int
		Paused, Pause              bool // Pause: the button is there
		Store                      *storeView
	}
	storeView struct {
		Bytes, Limit int64
		Text         string
	}
	// jobView is a job in a list, or at the top of its own page.
	jobView struct {
		ID, About, Model, Plan, Worker, Client, Priority string
		State, Class, Why, Error, Took, Node, Left       string
		Place, Attempt                                   int
		Step, Steps                                      int64
		Preview, Thumb                                   string // URLs
		Ended                                            time.Time
		Workflow, EditorGraph                            bool
		Cancel, Retry, Move, Delete                      bool // the button is there
		Warnings                                         []string
	}
	listView struct {
		Jobs         []jobView
		More         int
		Newer, Older string
	}
	workerView struct {
		message.WorkerStats
		Jobs []string
	}
	axisView    struct{ Axis, Bytes string }
	devicesView struct {
		Devices, Free, Total string
		Workers              []workerView
		Axes                 []axisView
	}
)

// boardParts makes the parts of the page of all jobs, the done ones from a page of them on.
func (h *HTTP) boardParts(ctx context.Context, number int) ([]part, error) {
	list := h.jobs.Select(func(r *message.Record, _ bool) bool { return r.Kind == "" })
	var running, waiting, over []jobs.Listed
	for _, j := range list {
		switch {
		case j.State == message.Queued:
			waiting = append(waiting, j)
		case !j.Ended:
			running = append(running, j)
		default:
			over = append(over, j)
		}
	}
	slices.SortFunc(running, func(a, b jobs.Listed) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(a.Job, b.Job))
	})
	slices.SortFunc(over, func(a, b jobs.Listed) int { return byAge(b, a) })

	runs := []jobView{}
	for i := range running {
		runs = append(runs, h.viewOf(ctx, &running[i]))
	}
	waits := listView{More: max(0, len(waiting)-waitingShown)}
	for i := range waiting[:len(waiting)-waits.More] {
		waits.Jobs = append(waits.Jobs, h.viewOf(ctx, &waiting[i]))
	}
	var done listView
	from := min((number-1)*doneShown, len(over))
	for i := range over[from:min(from+doneShown, len(over))] {
		done.Jobs = append(done.Jobs, h.viewOf(ctx, &over[from+i]))
	}
	if number > 1 {
		done.Newer = fmt.Sprintf("/patchbay?page=%d", number-1)
	}
	if len(over) > from+doneShown {
		done.Older = fmt.Sprintf("/patchbay?page=%d", number+1)
	}
	stats := h.cfg.Stats()
	out := []part{}
	for _, p := range []struct {
		id   string
		data any
	}{
		{"summary", h.summaryOf(ctx, &stats, len(running), len(waiting))},
		{"running", runs},
		{"waiting", waits},
		{"done", done},
		{"devices", h.devicesOf(&stats)},
	} {
		made, err := partOf(p.id, p.data)
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
}

func (h *HTTP) summaryOf(ctx context.Context, s *message.Stats, running, waiting int) summaryView {
	v := summaryView{
		Version: s.Version, Daemon: s.Daemon, Running: running, Waiting: waiting, Ill: h.illness(),
		Paused: h.jobs.Paused(), Pause: may(ctx, message.VerbPause),
	}
	if s.Rate > 0 {
		v.Rate = fmt.Sprintf("%.2f", s.Rate)
	}
	if st := s.Store; st != nil && st.Limit > 0 {
		v.Store = &storeView{st.Bytes, st.Limit, fmt.Sprintf("%s of %s", sizeOf(st.Bytes), sizeOf(st.Limit))}
	}
	return v
}

// illness is what /healthz says is wrong; "": nothing.
func (h *HTTP) illness() string {
	if h.cfg.Health == nil {
		return ""
	}
	r := taken{head: http.Header{}, status: http.StatusOK}
	h.cfg.Health(&r, &http.Request{Method: http.MethodGet})
	if r.status == http.StatusOK {
		return ""
	}
	return strings.TrimSpace(r.text.String())
}

// taken takes down an answer.
type taken struct {
	head   http.Header
	status int
	text   strings.Builder
}

func (r *taken) Header() http.Header         { return r.head }
func (r *taken) WriteHeader(status int)      { r.status = status }
func (r *taken) Write(b []byte) (int, error) { return r.text.Write(b) }

func (h *HTTP) devicesOf(s *message.Stats) devicesView {
	total, free := h.cfg.Memory()
	v := devicesView{Devices: strings.Join(s.Devices, ", "), Free: sizeOf(free), Total: sizeOf(total)}
	for _, w := range s.Workers {
		shown := workerView{WorkerStats: w}
		if w.Job != "" {
			shown.Jobs = strings.Split(w.Job, ", ")
		}
		v.Workers = append(v.Workers, shown)
	}
	for _, axis := range slices.Sorted(maps.Keys(s.Axes)) {
		if n := s.Axes[axis]; n > 0 {
			v.Axes = append(v.Axes, axisView{axis, sizeOf(int64(n))}) //nolint:gosec // it counts from zero
		}
	}
	return v
}

// viewOf returns what the page shows of a job.
func (h *HTTP) viewOf(ctx context.Context, j *jobs.Listed) jobView {
	rec := &j.Record
	v := jobView{
		ID: rec.Job, About: nameOf(rec), Model: rec.Model, Plan: rec.Plan, Worker: rec.Worker, Attempt: rec.Attempt,
		Priority: message.OrNormal(rec.Priority), Place: rec.Position + 1, State: string(rec.State),
		Took:   tookOf(rec, h.jobs.Config().Now()),
		Cancel: !j.Ended && may(ctx, message.VerbCancel),
		Retry:  j.Ended && len(rec.State.Revived()) > 0 && may(ctx, message.VerbRetry),
		Move:   rec.State == message.Queued && may(ctx, message.VerbMove),
		Delete: j.Ended && len(rec.Outputs) > 0 && rec.Dropped == 0 && may(ctx, message.VerbDelete),
	}
	v.Client, _ = rec.Client.(string)
	v.Client = message.Clipped(cmp.Or(rec.From, v.Client))
	switch {
	case rec.State == message.Queued:
		v.State, v.Why = "waiting", h.whyWaiting(rec)
	case !j.Ended:
		h.progressOf(ctx, &v, rec)
	default:
		v.Ended = time.UnixMilli(rec.Finished)
		v.Class = "failed"
		if rec.State == message.Done {
			v.Class = "done"
		}
		if rec.Error != nil && rec.State != message.Cancelled {
			v.Error = message.Clipped(rec.Error.Line())
		}
		if i := thumbOf(rec); i >= 0 {
			v.Thumb = fmt.Sprintf("/patchbay/jobs/%s/thumb?file=%d&crc=%08x", rec.Job, i, rec.Outputs[i].CRC32C)
		}
	}
	return v
}

// whyWaiting says what a job waits for.
func (h *HTTP) whyWaiting(rec *message.Record) string {
	now := h.jobs.Config().Now()
	if until := time.UnixMilli(rec.NotBefore); rec.NotBefore > 0 && until.After(now) {
		if n := len(rec.Causes); n > 0 {
			return "pauses until " + until.Format("15:04:05") + ", after " + message.Clipped(rec.Causes[n-1])
		}
		return "not before " + until.Format("2 Jan 15:04:05")
	}
	if h.jobs.Paused() {
		return "the queue is paused"
	}
	if err := h.jobs.Config().Resources.Lacks(rec.Files, rec.Memory); err != nil {
		return "for another daemon: " + h.cfg.Roots.Publish(fault.From(err)).Text
	}
	switch rec.Position {
	case 0:
		return "next: for a worker that is free"
	case 1:
		return "1 job is ahead of it"
	}
	return fmt.Sprintf("%d jobs are ahead of it", rec.Position)
}

// progressOf fills in how far a job that runs is: its node, the step, and how long the other steps take at the pace of
// those before.
func (h *HTTP) progressOf(ctx context.Context, v *jobView, rec *message.Record) {
	v.Node = "starting"
	if rec.Cancel {
		v.Node = "is being cancelled"
	}
	log, preview, err := h.jobs.Log(ctx, rec.Job)
	if err != nil {
		return
	}
	titles := message.TitlesIn(log)
	var first, last *message.Event // progress of the node that runs
	for i := range log {
		switch ev := &log[i]; ev.Type {
		case message.EventStart:
			first, last = nil, nil
		case message.EventExecuting:
			if node, ok := ev.Data["node"].(string); ok {
				v.Node, first, last = cmp.Or(titles[node], "node "+node), nil, nil
			}
		case message.EventProgress:
			if last = ev; first == nil {
				first = ev
			}
		}
	}
	if last != nil {
		v.Step, v.Steps = int64(numberOf(last.Data["value"])), int64(numberOf(last.Data["max"]))
		if made := float64(v.Step) - numberOf(first.Data["value"]); made > 0 && v.Steps > v.Step {
			each := time.Duration(float64(time.Duration(last.TS-first.TS)*time.Millisecond) / made)
			v.Left = durationOf(each * time.Duration(v.Steps-v.Step))
		}
	}
	if preview != nil {
		v.Preview = fmt.Sprintf("/patchbay/jobs/%s/preview?step=%d", rec.Job, v.Step)
	}
}

// tookOf is how long a job has run, "" if it has not.
func tookOf(rec *message.Record, now time.Time) string {
	switch {
	case rec.Started == 0:
		return ""
	case rec.Finished == 0:
		return durationOf(now.Sub(time.UnixMilli(rec.Started)).Truncate(time.Second))
	}
	return durationOf(time.Duration(rec.Finished-rec.Started) * time.Millisecond)
}

// durationOf writes a duration for people.
func durationOf(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// sizeOf writes a number of bytes for people.
func sizeOf(n int64) string {
	size, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, next
	}
	return fmt.Sprintf("%.4g %s", size, unit)
}
