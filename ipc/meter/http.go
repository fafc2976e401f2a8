package meter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// write writes all that m counts, in Prometheus' text format (its documentation's "Exposition formats", version 0.0.4).
func (m *Meter) write(w io.Writer) {
	s, names, families := m.Stats(), []string(nil), map[string]string{} // the lines of a family must be contiguous
	put := func(kind, name, help string, value float64, labels ...string) {
		name = "patchbay_" + name
		if families[name] == "" {
			names = append(names, name)
			families[name] = fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		}
		families[name] += fmt.Sprintf("%s %g\n", series(name, labels...), value)
	}
	const gauge, counter = "gauge", "counter"
	for _, st := range message.States() {
		put(gauge, "jobs", "Jobs that are remembered, by state; queued is the length of the queue.", float64(s.Jobs[st]),
			"state", string(st))
		if st.Final() {
			put(counter, "jobs_ended_total", "Jobs that this daemon has ended, by state.", float64(s.Ended[st]),
				"state", string(st))
		}
	}
	for _, w := range s.Workers {
		put(gauge, "worker_up", "1 while the worker answers.", float64(min(w.PID, 1)), "worker", w.Name)
		put(counter, "worker_restarts_total", "How often a worker was started again.", float64(w.Restarts), "worker", w.Name)
	}
	if s.Store != nil {
		put(gauge, "store_bytes", "Bytes of the files of the job store.", float64(s.Store.Bytes))
		put(gauge, "store_limit_bytes", "Bytes that they may have, 0 if not known.", float64(s.Store.Limit))
		put(gauge, "store_lost_jobs", "Jobs whose records were missing when the daemon started.", float64(s.Store.Lost))
		put(gauge, "store_restored_jobs", "Jobs whose records the NATS server had lost, and that were written again.",
			float64(s.Store.Restored))
		put(gauge, "store_copies", "Copies of every record, 0 if not known.", float64(s.Store.Copies))
		put(gauge, "store_trouble", "Streams without a leader, and servers that are away or behind.",
			float64(len(s.Store.Trouble)))
	}
	for _, a := range axes() {
		put(counter, "axis_bytes_total", "Bytes that ranks sent each other, by axis of the mesh.",
			float64(s.Axes[a]), "axis", a)
	}
	put(counter, "steps_total", "Sampling steps.", float64(s.Steps))
	put(counter, "samples_total", "Runs of the verb sample that are done.", float64(s.Samples))
	put(counter, "cache_nodes_total", "Nodes of jobs that are done, by whether their values were in the worker's cache.",
		float64(s.CacheHits), "result", "hit")
	put(counter, "cache_nodes_total", "Nodes of jobs that are done, by whether their values were in the worker's cache.",
		float64(s.CacheMisses), "result", "miss")
	for _, v := range append(message.VerbNames(), "unknown") {
		put(counter, "requests_total", "Requests, by verb.", float64(s.Requests[v]), "verb", v)
	}
	for _, c := range fault.Public() {
		put(counter, "requests_refused_total", "Requests that were answered with an error, by code.",
			float64(s.Refused[c.Code]), "code", c.Code)
	}
	m.mu.Lock()
	events := maps.Clone(m.events)
	m.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(events)) {
		put(counter, "events_total", "Events of jobs, by type.", float64(events[kind]), "type", kind)
	}
	for _, name := range names {
		_, _ = io.WriteString(w, families[name])
	}
	m.seconds.WritePrometheus(w)
	metrics.WriteProcessMetrics(w)
	metrics.WriteFDMetrics(w)
}

// escaped escapes the value of a label.
var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// series returns the name of a series: the metric with its labels, given as alternating names and values.
func series(name string, labels ...string) string {
	var parts []string
	for i := 0; i < len(labels); i += 2 {
		parts = append(parts, labels[i]+`="`+escaped.Replace(strings.ToValidUTF8(labels[i+1], "\ufffd"))+`"`)
	}
	if parts == nil {
		return name
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

// ServeHTTP answers with all that m counts.
func (m *Meter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	m.write(w)
}

// Health returns a handler that answers with what is wrong with the daemon, and status 503, or ok.
func Health(ill func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if bad := ill(); len(bad) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, strings.Join(bad, "\n"))
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}

// Endpoint serves /metrics and /healthz to monitoring systems.
type Endpoint struct {
	l   net.Listener
	srv *http.Server
}

// Listen listens on addr (host:port). ill returns what is wrong with the daemon; nothing means that it is healthy.
func Listen(addr string, m *Meter, ill func() []string) (*Endpoint, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.ServeHTTP)
	mux.HandleFunc("GET /healthz", Health(ill))
	return &Endpoint{l: l, srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// Address returns the address that the endpoint listens on.
func (o *Endpoint) Address() string { return o.l.Addr().String() }

// Serve answers until Close.
func (o *Endpoint) Serve() error {
	if err := o.srv.Serve(o.l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// Close ends Serve, and aborts requests that are still in progress after a second.
func (o *Endpoint) Close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if o.srv.Shutdown(ctx) != nil {
		_ = o.srv.Close()
	}
	_ = o.l.Close() // in case Serve was never called
}
