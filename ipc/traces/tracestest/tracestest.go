// Package tracestest is a collector of traces for tests.
package tracestest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"patchbay/ipc/wire/wiretest"
)

// Collector takes spans by OTLP over HTTP, at /v1/traces.
type Collector struct {
	*httptest.Server
	t    testing.TB
	came chan request
	all  []*Span
	// Bodies has everything that was sent.
	Bodies strings.Builder
}

type request struct {
	body   []byte
	header http.Header
}

// Span is a span as it was sent. Its ids are in hexadecimal.
type Span struct {
	Trace, ID, Parent, Name, Error string
	Start, End                     time.Time
	Attributes                     map[string]string
	Resource                       map[string]string
	Header                         http.Header // of the request
}

// New starts a collector that answers with these statuses first, and then takes spans. It ends with the test.
func New(t testing.TB, statuses ...int) *Collector {
	t.Helper()
	c := &Collector{t: t, came: make(chan request, 1000)}
	answers := make(chan int, len(statuses))
	for _, s := range statuses {
		answers <- s
	}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil || q.Method != http.MethodPost || q.URL.Path != "/v1/traces" ||
			q.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("a request for %s %s with the headers %v: %v", q.Method, q.URL, q.Header, err)
		}
		select {
		case status := <-answers:
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(status)
		default:
			c.came <- request{body, q.Header}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// Job waits until the span of a job was sent, and returns it with all that came with or before it and has its trace.
func (c *Collector) Job(id string) (job *Span, all []*Span) {
	c.t.Helper()
	for ctx := wiretest.Context(c.t); ; {
		for _, s := range c.all {
			if s.Name == "job" && s.Attributes["patchbay.job"] == id {
				job = s
			}
		}
		if job != nil {
			return job, slices.DeleteFunc(slices.Clone(c.all), func(s *Span) bool { return s.Trace != job.Trace })
		}
		select {
		case q := <-c.came:
			c.take(q)
		case <-ctx.Done():
			c.t.Fatalf("no trace of job %s has come", id)
		}
	}
}

func (c *Collector) take(q request) {
	c.t.Helper()
	c.Bodies.Write(q.body)
	var data tracepb.TracesData
	if err := proto.Unmarshal(q.body, &data); err != nil {
		c.t.Fatal(err)
	}
	for _, r := range data.GetResourceSpans() {
		resource := map[string]string{}
		for _, a := range r.GetResource().GetAttributes() {
			resource[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				made := &Span{
					Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Name: s.GetName(), Attributes: map[string]string{},
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Resource: resource, Header: q.header,
				}
				if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
					made.Error = s.GetStatus().GetMessage()
				}
				for _, a := range s.GetAttributes() {
					made.Attributes[a.GetKey()] = a.GetValue().GetStringValue()
				}
				c.all = append(c.all, made)
			}
		}
	}
}
