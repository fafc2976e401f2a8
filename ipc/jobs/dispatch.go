package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// Dispatcher takes jobs from the table to the executors and records how they end.
type Dispatcher struct {
	Jobs    *Table
	Outputs *Outputs
	Log     zerolog.Logger
}

// errStopped is the cause of a run that was cancelled.
var errStopped = errors.New("the job was cancelled")

// errDeadline is the cause of a run that exceeded its deadline.
var errDeadline = errors.New("the deadline has passed")

// Work serves the executors until take ends, each with one job at a time for every time it is listed. Runs in progress
// then continue until run ends. Work returns when all have stopped.
func (d *Dispatcher) Work(take, run context.Context, executors []Executor) {
	var wg sync.WaitGroup
	for _, ex := range executors {
		wg.Go(func() { d.serve(take, run, ex) })
	}
	for n := range wire.Every(take, 100*time.Millisecond) {
		d.Jobs.Expire(take)
		if n%10 == 0 {
			d.trim(take)
		}
	}
	wg.Wait()
}

func (d *Dispatcher) serve(take, run context.Context, ex Executor) {
	for {
		if ex.Ready(take) != nil {
			return
		}
		rec, req, stop, err := d.Jobs.Take(take, ex.Name())
		if err != nil {
			return
		}
		d.run(run, ex, rec, req, stop)
		req.Hold.Release()
	}
}

// run makes one attempt at a job.
func (d *Dispatcher) run(ctx context.Context, ex Executor, rec message.Record, req *message.RunRequest,
	stop <-chan struct{},
) {
	log := d.Log.With().Str("job", rec.Job).Str("worker", ex.Name()).Int("attempt", rec.Attempt).Logger()
	log.Info().Msg("job started")
	sink := Sink{
		Event: func(ev message.Event) {
			if ev.Data == nil {
				ev.Data = map[string]any{}
			}
			ev.Data["prompt_id"] = rec.Job
			d.Jobs.Append(rec.Job, rec.Attempt, ev)
		},
		Preview: func(n string, jpeg []byte) { d.Jobs.Preview(previewOf(rec.Job, n, jpeg)) },
	}
	started := time.Now()
	out, err := Execute(ctx, ex, Task{Req: req, Attempt: rec.Attempt}, stop, sink)
	if out != nil {
		defer out.Hold.Release()
		if staged := d.Outputs.Stage(rec.Job, out.Files); staged != nil {
			out.Files = nil
			if err == nil {
				err = staged
			}
		}
	}
	d.finish(rec, out, fault.From(err))
	if err != nil {
		log.Warn().Err(err).Dur("took", time.Since(started)).Msg("job ended")
		return
	}
	log.Info().Dur("took", time.Since(started)).Msg("job done")
}

// Execute makes one attempt at a job on ex. It ends early, with an error that says why and what the job had reached,
// when stop is closed, after DeadlineMS of the request, or with ctx. A panic of ex is an error too.
func Execute(ctx context.Context, ex Executor, task Task, stop <-chan struct{}, sink Sink) (*Outcome, error) {
	ctx, cancel := Until(ctx, stop, errStopped)
	defer cancel(nil)
	if ms := task.Req.DeadlineMS; ms > 0 {
		timer := time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { cancel(errDeadline) })
		defer timer.Stop()
	}
	out, err := message.Guarded(func() (*Outcome, error) { return ex.Run(ctx, task, sink) })
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errStopped):
		err = at(Cancelled(), err)
	case errors.Is(cause, errDeadline):
		err = at(fault.New(fault.Deadline, "the job ran longer than its deadline of %d ms", task.Req.DeadlineMS), err)
	case cause != nil:
		err = fault.New(fault.Draining, "the daemon was stopped while the job ran")
	}
	return out, err
}

// Until returns a context that also ends, with cause, when stop is closed. The caller must call cancel.
func Until(ctx context.Context, stop <-chan struct{}, cause error) (_ context.Context, cancel context.CancelCauseFunc) {
	ctx, cancel = context.WithCancelCause(ctx)
	go func() {
		select {
		case <-stop:
			cancel(cause)
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// at returns end with the place that the run had reached when it returned err.
func at(end *fault.Error, err error) *fault.Error {
	was := fault.From(err)
	end.Node, end.Class, end.Extra = was.Node, was.Class, was.Extra
	return end
}

func previewOf(job, nodeID string, jpeg []byte) message.Preview {
	return message.Preview{Type: message.ReplyPreview, Job: job, Node: nodeID, Format: "image/jpeg", Data: jpeg}
}

// finish records the end of an attempt: one compare-and-swap decides, and only its winner appends the terminal event.
func (d *Dispatcher) finish(was message.Record, out *Outcome, failure *fault.Error) {
	ctx := context.Background() // the end of a job is recorded even while the daemon stops
	job, state := was.Job, EndOf(failure)
	rec, err := d.swap(ctx, was, func(r *message.Record) {
		// cancellation was requested, and the run is gone
		if r.Cancel && failure != nil && (failure.Public() == fault.WorkerLost || failure.Public() == fault.Draining) {
			state, failure = message.Cancelled, Cancelled()
		}
		if retry, counts := d.Jobs.again(*r, failure); retry {
			d.Jobs.requeued(r, failure, counts)
			return
		}
		r.State, r.Finished = state, d.Jobs.cfg.Now().UnixMilli()
		if failure != nil {
			r.Error, r.NodeError = failure, failure.NodeErrors
		}
		if out == nil {
			return
		}
		r.Metrics = out.Metrics
		for _, f := range out.Files {
			r.Outputs = append(r.Outputs, f.Ref)
		}
	})
	if err != nil {
		d.Log.Warn().Err(err).Str("job", job).Msg("result dropped")
		d.Jobs.release(job, was.Attempt)
		return
	}
	if rec.State == message.Queued {
		data := map[string]any{"prompt_id": job, "cause": failure.Text}
		d.Jobs.Append(job, -1, message.Event{Type: message.EventRetrying, Data: data, Error: failure})
		return
	}
	d.ended(ctx, rec, out)
}

// EndOf is the state in which a run leaves its job.
func EndOf(failure *fault.Error) message.State {
	switch {
	case failure == nil:
		return message.Done
	case failure.Public() == fault.Cancelled:
		return message.Cancelled
	}
	return message.Failed
}

// ended gives the files of a job that has ended their names and appends its last events. What the nodes of a job that
// failed or was cancelled had made by then is kept.
func (d *Dispatcher) ended(ctx context.Context, rec message.Record, out *Outcome) {
	var ui map[string]map[string]any
	var warning error
	if out != nil && (rec.State == message.Done || len(rec.Outputs) > 0) {
		ui = out.UI
		rec.Outputs, warning = d.named(ctx, rec)
	}
	last := LastEvents(rec, ui)
	if warning != nil && rec.State == message.Done {
		last[len(last)-1].Data["warning"] = warning.Error()
	}
	for _, ev := range last {
		d.Jobs.Append(rec.Job, -1, ev)
	}
	if rec.State == message.Failed {
		d.Jobs.bury(ctx, rec)
	}
}

// LastEvents returns the events with which a job ends: executed with the names of its files, metrics, executing without
// a node, and the terminal one. ui is that of its Outcome.
func LastEvents(rec message.Record, ui map[string]map[string]any) []message.Event {
	events := executedEvents(rec.Job, rec.Outputs, ui)
	if rec.State == message.Done && rec.Metrics != nil {
		events = append(events, message.Event{Type: message.EventMetrics, Data: rec.Metrics})
	}
	return append(events, idle(rec.Job), terminalOf(rec))
}

// idle returns the event by which ComfyUI says that no node of a job is running any more.
func idle(job string) message.Event {
	return message.Event{Type: message.EventExecuting, Data: map[string]any{"node": nil, "prompt_id": job}}
}

// named gives the files of a job their names and records these.
func (d *Dispatcher) named(ctx context.Context, rec message.Record) ([]message.OutputRef, error) {
	refs, err := d.Outputs.Commit(rec.Job)
	if err != nil {
		d.Log.Error().Err(err).Str("job", rec.Job).Msg("files of a job that has ended did not get their names")
	}
	if _, failed := d.swap(ctx, rec, func(r *message.Record) { r.Outputs = refs }); failed != nil {
		d.Log.Error().Err(failed).Str("job", rec.Job).Msg("file names not recorded")
	} else {
		d.Outputs.Clean(rec.Job)
	}
	return refs, err
}

// executedEvents returns ComfyUI's executed events, one per node that made files, in the order of the files.
func executedEvents(job string, refs []message.OutputRef, ui map[string]map[string]any) []message.Event {
	var order []string
	files := map[string]map[string]any{}
	for _, r := range refs {
		if files[r.Node] == nil {
			order = append(order, r.Node)
			files[r.Node] = map[string]any{}
			maps.Copy(files[r.Node], ui[r.Node])
			files[r.Node][r.Kind] = []any{}
		}
		list, _ := files[r.Node][r.Kind].([]any)
		files[r.Node][r.Kind] = append(list, map[string]any{"filename": r.Filename, "subfolder": r.Subfolder, "type": r.Type})
	}
	var out []message.Event
	for _, n := range order {
		out = append(out, message.Event{Type: message.EventExecuted, Node: n, Data: map[string]any{
			"node": n, "display_node": n, "output": files[n], "prompt_id": job,
		}})
	}
	return out
}

// endData fills in what ComfyUI's execution_error and execution_interrupted carry.
func endData(e *fault.Error, data map[string]any) map[string]any {
	data["node_id"], data["node_type"], data["executed"] = e.Node, e.Class, []string{}
	if ran, ok := e.Extra["executed"]; ok {
		data["executed"] = ran
	}
	if e.Public() != fault.Cancelled {
		data["current_inputs"], data["current_outputs"] = map[string]any{}, []string{}
		for _, name := range []string{"current_inputs", "current_outputs"} {
			if v, ok := e.Extra[name]; ok {
				data[name] = v
			}
		}
		text := e.Text
		if e.Details != "" {
			text = fmt.Sprintf("%s: %s", text, e.Details)
		}
		f := e.Form()
		data["exception_message"], data["exception_type"] = text, cmp.Or(f.Type, f.Code)
		data["traceback"] = append([]string{}, f.Trace...)
	}
	return data
}

// swap applies change to the record of an attempt by compare-and-swap, as long as the attempt is the current one. After
// the server has lost records, another daemon may have an attempt of the same number. swap retries after a conflict
// with another change, such as a cancel request. A write reported as a conflict may still take effect if a server that
// has lost the leadership had passed it on: swap recognizes it by its content.
func (d *Dispatcher) swap(ctx context.Context, was message.Record,
	change func(*message.Record),
) (message.Record, error) {
	var tried message.Record
	for {
		cur, err := d.Jobs.Get(was.Job)
		if err != nil {
			return message.Record{}, err
		}
		if cur.Attempt != was.Attempt || cur.State != was.State || cur.Owner != was.Owner {
			tried.Rev, tried.Finished, tried.Cancel, tried.Started = cur.Rev, cur.Finished, cur.Cancel, cur.Started
			if value, err := encodeRecord(tried); err == nil && cur.State.Final() && same(cur, value) {
				return cur, nil
			}
			return message.Record{}, fmt.Errorf("job %s is %s in attempt %d of %s, not %s in attempt %d of %s", was.Job,
				cur.State, cur.Attempt, cur.Owner, was.State, was.Attempt, was.Owner)
		}
		tried = cur.Clone()
		change(&tried)
		rec, err := d.Jobs.Update(ctx, was.Job, cur.Rev, change)
		if !errors.Is(err, errConflict) {
			return rec, err
		}
	}
}
