package meter

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/parallel/plan"
)

// Meter counts what a daemon does. Everything comes from the events of its jobs (the worker measures, and its metrics
// event reports), from the replies to hosts, and from the refusals of its service. It keeps the numbers for /metrics
// and for the verb stats. Meter is safe for concurrent use.
type Meter struct {
	seconds *metrics.Set // of jobs and steps, by model and plan
	began   time.Time

	mu       sync.Mutex
	requests map[string]uint64 // by verb
	refused  map[string]uint64 // by code
	events   map[string]uint64 // by type
	ended    map[message.State]uint64
	axes     map[string]uint64 // bytes that ranks sent
	steps    uint64
	hits     uint64 // nodes whose values were in the cache
	misses   uint64
	samples  uint64
	live     map[string]*liveRun  // by job
	source   func() message.Stats // what only the daemon knows: jobs and workers
}

// liveRun is the progress of a running job.
type liveRun struct {
	step, steps int
	last        time.Time
	rate        float64 // steps a second, from the last two
	// bytes that ranks have sent, by axis: in the current sampling run, and in earlier ones of the job
	sent, before map[string]uint64
}

// moved adds the bytes that a job's ranks have sent, and its metrics have not reported yet, to the totals in to.
func (l *liveRun) moved(to map[string]uint64) {
	for _, part := range []map[string]uint64{l.before, l.sent} {
		for axis, n := range part {
			if _, known := to[axis]; known {
				to[axis] += n
			}
		}
	}
}

// part records what the current sampling run has sent so far. If a count has fallen, this is another run.
func (l *liveRun) part(now map[string]uint64) {
	anew := false
	for axis, n := range l.sent {
		anew = anew || now[axis] < n
	}
	if anew && l.before == nil {
		l.before = map[string]uint64{}
	}
	for axis, n := range l.sent {
		if anew {
			l.before[axis] += n
		}
	}
	l.sent = now
}

// New returns a Meter that counts from now.
func New() *Meter {
	m := &Meter{
		seconds: metrics.NewSet(), began: time.Now(), requests: map[string]uint64{}, refused: map[string]uint64{},
		events: map[string]uint64{},
		ended:  map[message.State]uint64{}, axes: map[string]uint64{}, live: map[string]*liveRun{},
		source: func() message.Stats { return message.Stats{} },
	}
	metrics.ExposeMetadata(true)
	for _, axis := range axes() {
		m.axes[axis] = 0
	}
	return m
}

// jobSeconds is the histogram of the durations of done jobs, by the model and plan of their first sampling run.
func (m *Meter) jobSeconds(model, plan string) *metrics.PrometheusHistogram {
	return m.seconds.GetOrCreatePrometheusHistogramExt(series("patchbay_job_seconds", "model", model, "plan", plan),
		[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500})
}

// stepSeconds is the histogram of the durations of sampling steps.
func (m *Meter) stepSeconds(model, plan string) *metrics.PrometheusHistogram {
	return m.seconds.GetOrCreatePrometheusHistogramExt(series("patchbay_step_seconds", "model", model, "plan", plan),
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100})
}

// Watch sets the source of the numbers of jobs and workers, which every call of Stats asks. It must be called first.
func (m *Meter) Watch(source func() message.Stats) { m.source = source }

// Event counts an event of a job of this daemon.
func (m *Meter) Event(ev message.Event) {
	m.mu.Lock()
	m.events[ev.Type]++
	switch {
	case ev.Type == message.EventProgress:
		m.progress(ev)
	case ev.Type == message.EventRetrying:
		m.endAttempt(ev.Job)
	case ev.Type == message.EventMetrics:
		m.job(ev.Job, ev.Data)
	case message.Terminal(ev.Type):
		m.endAttempt(ev.Job)
		m.ended[endOf(ev.Type)]++
	}
	m.mu.Unlock()
}

// endAttempt ends the counting of an attempt: bytes that its ranks have sent count even if no metrics event reports
// them. The caller must hold m.mu.
func (m *Meter) endAttempt(job string) {
	if l := m.live[job]; l != nil {
		l.moved(m.axes)
	}
	delete(m.live, job)
}

// endOf is the state in which a terminal event leaves its job.
func endOf(kind string) message.State {
	return cmp.Or(map[string]message.State{
		message.EventSuccess: message.Done, message.EventInterrupted: message.Cancelled,
		message.EventExpired: message.Expired,
	}[kind], message.Failed)
}

// progress counts a step. The caller must hold m.mu.
func (m *Meter) progress(ev message.Event) {
	m.steps++
	step, ok := wire.Integer(ev.Data["value"])
	steps, ok2 := wire.Integer(ev.Data["max"])
	if !ok || !ok2 {
		return
	}
	now := time.Now()
	l := m.live[ev.Job]
	if l == nil {
		l = &liveRun{}
		m.live[ev.Job] = l
	} else if d := now.Sub(l.last).Seconds(); d > 0 {
		l.rate = 1 / d
	}
	l.step, l.steps, l.last = int(step.Int64()), int(steps.Int64()), now
	var more struct {
		Sent map[string]uint64 `json:"sent"`
	}
	if _, split := ev.Data["sent"]; split && Read(ev.Data, &more) == nil {
		l.part(more.Sent)
	}
}

// runMetrics is what Meter reads of a metrics event (made by worker.metricsOf).
type runMetrics struct {
	Timings  struct{ Total float64 } `json:"timings"`
	Executed []string                `json:"executed"`
	Cached   []string                `json:"cached"`
	Stats    []samplingMetrics       `json:"stats"`
}

// samplingMetrics is what Meter reads of one sampling run (made by worker.statsOf).
type samplingMetrics struct {
	Model       string                       `json:"model"`
	Plan        string                       `json:"plan"`
	StepSeconds []float64                    `json:"step_seconds"`
	Ranks       []map[string]json.RawMessage `json:"ranks"`
}

// Read decodes data of an event into dst, whatever types its values have got on their way from the worker.
func Read(data map[string]any, dst any) error {
	b, err := wire.Encode(data, wire.JSON)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, dst)
}

// job counts the metrics of a job. The caller must hold m.mu.
func (m *Meter) job(job string, data map[string]any) {
	var r runMetrics
	if _, whole := data["stats"]; !whole || Read(data, &r) != nil {
		return // metrics of a sample (see Sampled), warnings of a job that failed, or a worker of another version
	}
	model, plan := "", ""
	if len(r.Stats) > 0 {
		model, plan = r.Stats[0].Model, r.Stats[0].Plan
	}
	m.jobSeconds(model, plan).Update(r.Timings.Total)
	m.hits, m.misses = m.hits+uint64(len(r.Cached)), m.misses+uint64(len(r.Executed))
	m.told(job)
	for _, s := range r.Stats {
		m.sampling(s)
	}
}

// told drops the bytes that steps have reported: the metrics of the job count all. The caller must hold m.mu.
func (m *Meter) told(job string) {
	if l := m.live[job]; l != nil {
		l.sent, l.before = nil, nil
	}
}

// sampling counts a sampling run. The caller must hold m.mu.
func (m *Meter) sampling(s samplingMetrics) {
	steps := m.stepSeconds(s.Model, s.Plan)
	for _, v := range s.StepSeconds {
		steps.Update(v)
	}
	for _, rank := range s.Ranks {
		for _, axis := range axes() {
			var sent struct{ Bytes uint64 }
			if text, ok := rank[axis]; ok && json.Unmarshal(text, &sent) == nil {
				m.axes[axis] += sent.Bytes
			}
		}
	}
}

// axes returns the names of the mesh axes along which ranks exchange data.
func axes() []string {
	return []string{plan.AxisUlysses.String(), plan.AxisRing.String(), plan.AxisPipe.String(), plan.AxisTensor.String()}
}

// Sampled counts a done run of the verb sample; its steps were counted as they came.
func (m *Meter) Sampled(job string, metrics map[string]any) {
	var s samplingMetrics
	m.mu.Lock()
	if Read(metrics, &s) == nil {
		m.sampling(s)
		m.told(job)
	}
	m.samples++
	m.mu.Unlock()
}

// Asked counts a request.
func (m *Meter) Asked(verb string) {
	if !slices.Contains(message.VerbNames(), verb) {
		verb = "unknown" // clients must not be able to create counters
	}
	m.mu.Lock()
	m.requests[verb]++
	m.mu.Unlock()
}

// Refuse counts an error with which a request was answered.
func (m *Meter) Refuse(e *fault.Error) {
	m.mu.Lock()
	m.refused[e.Public()]++
	m.mu.Unlock()
}

// Stats returns the answer to the verb stats.
func (m *Meter) Stats() message.Stats {
	s := m.source()
	s.V, s.Since = message.ProtocolVersion, m.began.UnixMilli()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Ended, s.Axes, s.Refused, s.Requests = map[message.State]uint64{}, maps.Clone(m.axes), maps.Clone(m.refused),
		maps.Clone(m.requests)
	maps.Copy(s.Ended, m.ended)
	for _, l := range m.live {
		l.moved(s.Axes)
	}
	s.Steps, s.CacheHits, s.CacheMisses, s.Samples = m.steps, m.hits, m.misses, m.samples
	for _, n := range m.events {
		s.Events += n
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		for job := range strings.SplitSeq(w.Job, ", ") {
			l := m.live[job]
			if l == nil {
				continue
			}
			rate := l.rate
			if quiet := time.Since(l.last).Seconds(); rate > 0 && quiet > 2/rate { // it has become slower, or hangs
				rate = 1 / quiet
			}
			w.Step, w.Steps, w.Rate = w.Step+l.step, w.Steps+l.steps, w.Rate+rate
		}
		s.Rate += w.Rate
	}
	return s
}
