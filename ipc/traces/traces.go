// Package traces sends a trace of every job that has ended to an OpenTelemetry collector. Nothing is recorded while a
// job runs: its spans are made from what its record and the log of its events say anyway.
//
// Reading order: traces (which jobs, and when), spans (from a log to spans), otlp (to the collector).
package traces

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// Config says where traces go and who sends them.
type Config struct {
	URL     string            // of the collector, as in http://127.0.0.1:4318/v1/traces
	Headers map[string]string // of requests to it, such as credentials
	// Version is that of the program, Daemon the name of this one: attributes of all traces. OTEL_SERVICE_NAME and
	// OTEL_RESOURCE_ATTRIBUTES go before them.
	Version, Daemon string
	Log             zerolog.Logger
}

// Tracer sends the traces of the jobs of one table.
type Tracer struct {
	log      zerolog.Logger
	ended    chan string
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// waiting bounds the jobs whose traces are still to be made. Beyond it, as while a collector hangs, jobs have none.
const waiting = 1024

// New returns a Tracer, which sends nothing before Run. The error is for OTEL_RESOURCE_ATTRIBUTES.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	return newTracer(ctx, cfg, newCollector(cfg))
}

func newTracer(ctx context.Context, cfg Config, c *collector) (*Tracer, error) {
	who, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "patchbay"), attribute.String("service.version", cfg.Version),
		attribute.String("service.instance.id", cfg.Daemon),
	), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, err
	}
	t := &Tracer{log: cfg.Log, ended: make(chan string, waiting)}
	// blocking: this package makes spans faster than they are sent, and nobody waits for it
	t.provider = sdk.NewTracerProvider(sdk.WithResource(who), sdk.WithIDGenerator(ids{}),
		sdk.WithBatcher(otlptrace.NewUnstarted(c), sdk.WithBlocking()))
	t.tracer = t.provider.Tracer("patchbay")
	return t, nil
}

// Event notes that a job has ended. It does not block, and does not call the table.
func (t *Tracer) Event(ev message.Event) {
	if !message.Terminal(ev.Type) {
		return
	}
	select {
	case t.ended <- ev.Job:
	default:
		t.log.Warn().Str("job", ev.Job).Msg("no trace: the collector is behind")
	}
}

// lastWords is how long Run may take to send what is left when its context has ended.
const lastWords = 5 * time.Second

// Run sends traces until ctx ends, and then what is left.
func (t *Tracer) Run(ctx context.Context, table *jobs.Table) {
	for ctx.Err() == nil {
		select {
		case id := <-t.ended:
			t.send(ctx, table, id)
		case <-ctx.Done():
		}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer stop()
	for len(t.ended) > 0 && ctx.Err() == nil {
		t.send(ctx, table, <-t.ended)
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn().Err(err).Msg("the last traces were not sent")
	}
}

// send makes the spans of a job, unless another daemon has run it: all daemons hear of all ends.
func (t *Tracer) send(ctx context.Context, table *jobs.Table, id string) {
	rec, err := table.Get(id)
	if err != nil || !table.Mine(id) || rec.EndSeq == 0 { // forgotten, or running again
		return
	}
	log, _, err := table.Log(ctx, id)
	if err != nil {
		t.log.Warn().Err(err).Str("job", id).Msg("no trace: its events cannot be read")
		return
	}
	// what is sampled is for the client to say, and for OTEL_TRACES_SAMPLER
	ctx = trace.ContextWithRemoteSpanContext(ctx, message.TraceParent(rec.TraceParent))
	job := fmt.Sprintf("%s %d", rec.Job, rec.Created) // an id may be used again once its job is forgotten
	t.record(ctx, trace.SpanKindConsumer, key{job, fmt.Sprintf("%s %d", job, rec.EndSeq)}, spansOf(&rec, log))
}

// record hands a span and its parts to the SDK.
func (t *Tracer) record(ctx context.Context, kind trace.SpanKind, k key, s *span) {
	ctx, made := t.tracer.Start(context.WithValue(ctx, keyOf{}, k), s.name, trace.WithSpanKind(kind),
		trace.WithTimestamp(s.start), trace.WithAttributes(s.attributes...))
	for i, part := range s.parts {
		t.record(ctx, trace.SpanKindInternal, key{k.job, fmt.Sprintf("%s/%d", k.span, i)}, part)
	}
	if s.code != "" {
		made.SetAttributes(attribute.String("error.type", s.code))
		made.SetStatus(codes.Error, s.code)
	}
	made.End(trace.WithTimestamp(s.end))
}

// key names a job, and a span of it, among everything that is traced.
type key struct{ job, span string }

// keyOf is the key under which a context has that of its span.
type keyOf struct{}

// ids makes the numbers of traces and spans from their keys, so that a job whose end is told twice has one trace, and
// one that is retried by hand goes on with its own.
type ids struct{}

// NewIDs implements sdk.IDGenerator.
func (g ids) NewIDs(ctx context.Context) (id trace.TraceID, root trace.SpanID) {
	k, _ := ctx.Value(keyOf{}).(key)
	sum := sha256.Sum256([]byte("trace " + k.job))
	copy(id[:], sum[:])
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) (id trace.SpanID) {
	k, _ := ctx.Value(keyOf{}).(key)
	sum := sha256.Sum256([]byte("span " + k.span))
	copy(id[:], sum[:])
	return id
}
