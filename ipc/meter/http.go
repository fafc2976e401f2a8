package meter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// totals gives the counters of a Meter, and its gauges, to Prometheus.
type totals struct{ m *Meter }

// Describe implements prometheus.Collector: what there is to tell depends on what has happened.
func (totals) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (t totals) Collect(out chan<- prometheus.Metric) {
	s := t.m.Stats()
	put := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("patchbay_"+name, help, names, nil), kind, value, values...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
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
	for _, c := range wire.ErrorTable() {
		put(counter, "requests_refused_total", "Requests that were answered with an error, by code.",
			float64(s.Refused[c.Code]), "code", c.Code)
	}
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	for kind, n := range t.m.events {
		put(counter, "events_total", "Events of jobs, by type.", float64(n), "type", kind)
	}
}

// Endpoint serves /metrics and /healthz to whatever watches over the machine.
type Endpoint struct {
	l   net.Listener
	srv *http.Server
}

// Listen listens on host:port. ill names what is not as it should be; nothing: all is well.
func Listen(addr string, m *Meter, ill func() []string) (*Endpoint, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if bad := ill(); len(bad) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, strings.Join(bad, "\n"))
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return &Endpoint{l: l, srv: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// Address is where it listens.
func (o *Endpoint) Address() string { return o.l.Addr().String() }

// Serve answers until Close.
func (o *Endpoint) Serve() error {
	if err := o.srv.Serve(o.l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// Close ends Serve, and what is under way a second later.
func (o *Endpoint) Close() {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if o.srv.Shutdown(ctx) != nil {
		_ = o.srv.Close()
	}
	_ = o.l.Close() // of one that was never served
}
