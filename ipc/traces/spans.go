package traces

import (
	"cmp"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/meter"
	"patchbay/ipc/wire"
)

// span is a stretch of a job's time.
type span struct {
	name       string
	start, end time.Time
	// attributes are ids, names, numbers and states only: no prompts, no texts of errors, no addresses.
	attributes []attribute.KeyValue
	code       string // of the error with which it ended; "": none
	parts      []*span
}

func (s *span) add(name string, start, end time.Time, attributes ...attribute.KeyValue) *span {
	part := &span{name: name, start: start, end: latest(start, end), attributes: attributes} // clocks are set back too
	s.parts = append(s.parts, part)
	return part
}

// shown returns a name that a client has chosen as a trace has it: short, and without the login of a URL.
func shown(name string) string {
	if strings.Contains(name, "://") {
		name = wire.Redact(name)
	}
	return wire.Shown(name)
}

func text(key, v string) attribute.KeyValue { return attribute.String(key, shown(v)) }

// nodeTime is what a metrics event has of one call of a node (made by worker.metricsOf).
type nodeTime struct {
	Node    string  `json:"node"`
	Class   string  `json:"class"`
	Phase   string  `json:"phase"`
	Seconds float64 `json:"seconds"`
	Load    float64 `json:"load_seconds"`
}

func since(start time.Time, seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func at(ms int64) time.Time { return time.UnixMilli(ms) }

// maker makes spans from the events of a log, in their order.
type maker struct {
	rec    *message.Record
	titles map[string]string
	times  map[string]nodeTime // of the attempt that has succeeded, by node
	called map[string]int      // the event with which a node of the last attempt began; before, it asked for inputs
	load   float64             // seconds, of the verb sample

	job     *span
	waits   time.Time // when the job began to wait; zero: it does not
	attempt *span     // nil: none runs
	node    *span     // nil: none runs
	id      string    // of node
	ends    time.Time // when node ended, if that is known before the next one begins; else zero
	last    time.Time // when the last node of the attempt ended
	step    int64     // the last one of node, 0: none; and when it ended, or the first one can have begun
	stepped time.Time
}

// spansOf returns what a job has done since it was handed in, or since it was retried by hand, until its last end:
//
//	job
//	  received          the request is written to the store
//	  queued            once for each attempt
//	  attempt
//	    (node)          named by its title, of phase load, text, denoise, vae or other
//	      loading       weights; shown first, which is where most nodes need them
//	      step
//	    saving          files go to the daemon, and get their names
//
// Times are those of the daemon, in milliseconds. The spans of an attempt that did not succeed have neither loading nor
// the class of nodes: only metrics have these.
func spansOf(rec *message.Record, log []message.Event) *span {
	m := maker{rec: rec, titles: message.TitlesIn(log), times: map[string]nodeTime{}, called: map[string]int{}}
	var metrics struct {
		Nodes []nodeTime `json:"nodes"`
		Load  float64    `json:"load_seconds"`
	}
	if meter.Read(rec.Metrics, &metrics) == nil { // else of a worker of another version
		m.load = metrics.Load
		for _, n := range metrics.Nodes {
			was := m.times[n.Node]
			n.Seconds, n.Load = n.Seconds+was.Seconds, n.Load+was.Load
			m.times[n.Node] = n
		}
	}
	m.job = &span{name: "job", start: at(rec.Created)}
	for i := len(log) - 2; i >= 0; i-- {
		if message.Terminal(log[i].Type) {
			log = log[i+1:]
			m.job.start = at(log[0].TS)
			break
		}
	}
	for i := range log {
		if ev := &log[i]; ev.Type == message.EventExecuting && ev.Attempt == rec.Attempt {
			m.called[ev.Node] = i
		}
	}
	saved := at(rec.Finished)
	for i := range log {
		m.take(&log[i], i)
		if ev := &log[i]; ev.Type == message.EventExecuted && ev.TS > rec.Finished {
			saved = at(ev.TS)
		}
	}
	m.finish(saved)
	return m.job
}

// take continues with an event of the log, the i-th.
func (m *maker) take(ev *message.Event, i int) {
	ts := at(ev.TS)
	switch ev.Type {
	case message.EventQueued:
		m.job.add("received", m.job.start, ts)
		m.waits = ts
	case message.EventRetrying:
		m.endAttempt(ts, ev.Error)
		m.waits = ts
	case message.EventStart:
		m.endAttempt(ts, nil) // another daemon goes on, and what the first one said is lost
		if ev.Attempt == m.rec.Attempt {
			ts = at(m.rec.Started)
		}
		m.begin(ts, ev.Attempt)
	case message.EventExecuting:
		if ev.Node != "" && m.attempt != nil { // without a node it is a part of the end, see finish
			m.endNode(ts, nil)
			m.beginNode(ev, i)
		}
	case message.EventProgress:
		m.progress(ev)
	}
}

// finish ends what has not ended when the job has. Its files had their names at the given time.
func (m *maker) finish(saved time.Time) {
	r, end := m.rec, at(m.rec.Finished)
	if m.attempt == nil && r.Started > 0 && !at(r.Started).Before(m.waits) && r.Reused == "" {
		m.begin(at(r.Started), r.Attempt) // it ended before it said anything
	}
	if m.attempt == nil && !m.waits.IsZero() && r.Reused == "" {
		m.job.add("queued", m.waits, end)
	}
	if attempt := m.attempt; attempt != nil {
		m.endAttempt(end, r.Error)
		if len(r.Outputs) > 0 {
			attempt.end = attempt.add("saving", m.last, saved).end
		}
		attempt.attributes = append(attempt.attributes, attribute.String("patchbay.worker", r.Worker))
	}
	m.job.end, m.job.code = latest(m.job.start, saved), codeOf(r.Error)
	m.job.attributes = []attribute.KeyValue{
		text("patchbay.job", r.Job), attribute.String("patchbay.state", string(r.State)),
		attribute.Int("patchbay.attempts", r.Attempt), attribute.Int("patchbay.files", len(r.Outputs)),
	}
	for _, a := range []struct{ key, v string }{
		{"patchbay.kind", r.Kind}, {"patchbay.model", r.Model}, {"patchbay.plan", r.Plan}, {"patchbay.reused", r.Reused},
	} {
		if a.v != "" {
			m.job.attributes = append(m.job.attributes, text(a.key, a.v))
		}
	}
}

// begin begins an attempt.
func (m *maker) begin(ts time.Time, number int) {
	if !m.waits.IsZero() {
		m.job.add("queued", m.waits, ts)
		m.waits = time.Time{}
	}
	m.attempt = m.job.add("attempt", ts, ts, attribute.Int("patchbay.attempt", number))
	m.last, m.step, m.stepped = ts, 0, ts
	if m.load > 0 {
		m.stepped = m.attempt.add("loading", ts, since(ts, m.load)).end
	}
}

func (m *maker) endAttempt(ts time.Time, failure *fault.Error) {
	m.endNode(ts, failure)
	if m.attempt != nil {
		m.attempt.end, m.attempt.code = latest(m.attempt.start, ts), codeOf(failure)
	}
	m.attempt = nil
}

func (m *maker) beginNode(ev *message.Event, i int) {
	ts := at(ev.TS)
	m.node = m.attempt.add(shown(cmp.Or(m.titles[ev.Node], "node "+ev.Node)), ts, ts, text("patchbay.node", ev.Node))
	m.id, m.ends, m.step, m.stepped = ev.Node, time.Time{}, 0, ts
	t, known := m.times[ev.Node]
	if !known || m.called[ev.Node] != i || ev.Attempt != m.rec.Attempt {
		return
	}
	m.node.attributes = append(m.node.attributes, text("patchbay.class", t.Class),
		attribute.String("patchbay.phase", t.Phase))
	m.ends = since(ts, t.Seconds)
	if t.Load > 0 {
		m.stepped = m.node.add("loading", ts, since(ts, min(t.Load, t.Seconds))).end
	}
}

// endNode ends the node that runs, if one does, at a time at which it does not run any more.
func (m *maker) endNode(ts time.Time, failure *fault.Error) {
	n := m.node
	if n == nil {
		return
	}
	n.end = latest(n.start, ts)
	if !m.ends.IsZero() {
		n.end = earliest(n.end, m.ends)
	}
	for _, p := range n.parts { // seconds of the worker are finer than the times of events
		p.start, p.end = earliest(p.start, n.end), earliest(p.end, n.end)
	}
	if failure != nil && failure.Node == m.id {
		n.code = codeOf(failure)
	}
	m.last, m.node = n.end, nil
}

// progress makes the span of a step. It has none if the one before is not known: progress of long logs is dropped, and
// what an earlier attempt had computed is not computed again.
func (m *maker) progress(ev *message.Event) {
	value, ok := wire.Integer(ev.Data["value"])
	in := m.node
	if in == nil {
		in = m.attempt
	}
	if !ok || in == nil {
		return
	}
	n, ts := value.Int64(), at(ev.TS)
	if (n == 1 || n == m.step+1) && ev.Data["resumed"] != true {
		in.add("step", m.stepped, ts, attribute.Int64("patchbay.step", n))
	}
	m.step, m.stepped = n, latest(m.stepped, ts)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// codeOf returns the code of an error; a job that was cancelled has not failed.
func codeOf(failure *fault.Error) string {
	if failure == nil || failure.Public() == fault.Cancelled {
		return ""
	}
	return failure.Public()
}
