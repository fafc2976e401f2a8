package jobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
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
		if n%100 == 0 {
			d.nameAgain(take)
			d.settle()
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
		d.Outputs.work(rec.Job, 1)
		d.run(run, ex, rec, req, stop)
		d.Outputs.work(rec.Job, -1)
		req.Hold.Release()
	}
}

// run makes one attempt at a job.
func (d *Dispatcher) run(ctx context.Context, ex Executor, rec message.Record, req *message.RunRequest,
	stop <-chan struct{},
) {
	log := d.Log.With().Str("job", rec.Job).Str("worker", ex.Name()).Int("attempt", rec.Attempt).Logger()
	log.Info().Msg("job started")
	m := making{d: d, rec: rec, told: map[string]bool{}}
	sink := Sink{
		Event: func(ev message.Event) {
			if ev = m.named(ev); ev.Data == nil {
				ev.Data = map[string]any{}
			}
			ev.Data["prompt_id"] = rec.Job
			d.Jobs.Append(rec.Job, rec.Attempt, ev)
		},
		Preview: func(n string, jpeg []byte) { d.Jobs.Preview(previewOf(rec.Job, n, jpeg)) },
		File:    func(f message.File) { m.files = append(m.files, f) },
	}
	started := time.Now()
	out, err := Execute(ctx, ex, Task{Req: req, Attempt: rec.Attempt}, stop, sink)
	if out != nil {
		defer out.Hold.Release()
		if d.Jobs.holds(rec.Job, rec.Attempt) {
			if staged := d.Outputs.Stage(rec.Job, out.Files); err == nil {
				err = staged
			}
		}
	}
	d.finish(rec, out, fault.From(err), m.told)
	if err != nil {
		log.Warn().Err(err).Dur("took", time.Since(started)).Msg("job ended")
		return
	}
	log.Info().Dur("took", time.Since(started)).Msg("job done")
}

// making is what an attempt has made so far.
type making struct {
	d     *Dispatcher
	rec   message.Record
	files []message.File
	told  map[string]bool // nodes whose executed event had the names of their files
}

// named gives files of a node their names and puts these into its executed event. If that fails, the event says
// nothing of them: the end of the attempt tries again, and says what went wrong.
func (m *making) named(ev message.Event) message.Event {
	if ev.Type != message.EventExecuted || !slices.ContainsFunc(m.files, func(f message.File) bool {
		return f.Ref.Node == ev.Node
	}) {
		return ev
	}
	var mine []message.OutputRef
	if m.d.Jobs.holds(m.rec.Job, m.rec.Attempt) && m.d.Outputs.Stage(m.rec.Job, m.files) == nil {
		if refs, err := m.d.Outputs.Commit(m.rec.Job); err == nil {
			for _, r := range refs[:len(m.files)] {
				if r.Node == ev.Node {
					mine = append(mine, r)
				}
			}
		}
	}
	out := ev
	ui := map[string]any{}
	switch shown := ev.Data["output"].(type) {
	case map[string]any:
		maps.Copy(ui, shown)
	case *pyjson.Object:
		for _, k := range shown.Keys() {
			ui[k] = shown.At(k)
		}
	}
	for _, f := range m.files {
		if f.Ref.Node == ev.Node {
			delete(ui, f.Ref.Kind)
		}
	}
	out.Data = map[string]any{"node": ev.Node, "display_node": ev.Node, "output": ui}
	for _, e := range executedEvents(m.rec.Job, mine, map[string]map[string]any{ev.Node: ui}) {
		out, m.told[ev.Node] = e, true
	}
	return out
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

// finish records the end of an attempt. told are the nodes whose files clients have heard of.
func (d *Dispatcher) finish(was message.Record, out *Outcome, failure *fault.Error, told map[string]bool) {
	ctx := context.Background() // the end of a job is recorded even while the daemon stops
	end := ended{attempt: attemptOf(&was), failure: failure}
	if out != nil {
		end.metrics, end.ui = out.Metrics, out.UI
	}
	for _, f := range d.Outputs.of(was.Job) { // of an attempt that was lost too, and of earlier ones
		if f.open {
			end.outputs = append(end.outputs, f.Ref)
		}
	}
	rec, then, err := d.Jobs.do(ctx, was.Job, end)
	if err != nil {
		d.Log.Warn().Err(err).Str("job", was.Job).Msg("result dropped")
		d.Jobs.release(was.Job, was.Attempt)
		return
	}
	if then.files {
		d.ended(ctx, rec, end.ui, told)
	}
}

// ended gives the files of a job that has ended their names and records these, with which its log ends. What the nodes
// of a job that failed or was cancelled had made by then is kept. ui is that of its Outcome; nodes in told have said
// what they made.
func (d *Dispatcher) ended(ctx context.Context, rec message.Record, ui map[string]map[string]any,
	told map[string]bool,
) {
	refs, err := d.Outputs.Commit(rec.Job)
	for _, ev := range executedEvents(rec.Job, refs, ui) {
		if !told[ev.Node] {
			d.Jobs.Append(rec.Job, -1, ev)
		}
	}
	warning := ""
	if err != nil {
		d.Log.Error().Err(err).Str("job", rec.Job).Msg("files of a job that has ended did not get their names")
		warning = wire.Shown(err.Error())
	}
	d.name(ctx, rec.Job, named{attemptOf(&rec), refs, warning})
}

// name records the names of the files of an attempt.
func (d *Dispatcher) name(ctx context.Context, job string, n named) {
	if _, _, err := d.Jobs.do(ctx, job, n); err != nil {
		d.Log.Error().Err(err).Str("job", job).Msg("file names not recorded")
		d.Jobs.release(job, n.number)
		return
	}
	d.Outputs.Clean(job)
}

// nameAgain records names that the files of ended jobs have and their records lack: the store had lost the end when the
// names were to be recorded, or has lost the names, and another daemon wrote again what it knew.
func (d *Dispatcher) nameAgain(ctx context.Context) {
	for _, rec := range d.Jobs.nameless() {
		var refs []message.OutputRef
		for _, f := range d.Outputs.of(rec.Job) {
			refs = append(refs, f.Ref)
		}
		alike := func(a, b message.OutputRef) bool { return a.CRC32C == b.CRC32C && a.Bytes == b.Bytes }
		if names(refs) > names(rec.Outputs) && slices.EqualFunc(refs, rec.Outputs, alike) {
			d.name(ctx, rec.Job, named{attemptOf(&rec), refs, rec.Warning})
		}
	}
}

// settle looks for files that no attempt is at work on and that were not known to be recorded. It removes those of jobs
// that have ended or run elsewhere, and the staged copies of those whose record names them by now.
func (d *Dispatcher) settle() {
	for _, job := range d.Outputs.left() {
		switch rec, err := d.Jobs.Get(job); {
		case errors.Is(err, ErrNoJob), d.Jobs.elsewhere(&rec):
			d.Outputs.drop(job)
		case rec.State.Final() && rec.EndSeq > 0 && names(rec.Outputs) == len(d.Outputs.of(job)):
			d.Outputs.Clean(job)
		}
	}
}

// names counts the files that have names.
func names(refs []message.OutputRef) (n int) {
	for _, r := range refs {
		if r.Filename != "" {
			n++
		}
	}
	return n
}
