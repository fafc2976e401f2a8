package daemon

import (
	"strings"
	"testing"
)

// TestTracesURL checks which collectors are taken, and that no error repeats what may be a secret.
func TestTracesURL(t *testing.T) {
	for _, row := range []struct{ url, want string }{
		{"", ""},
		{"http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"},
		{"https://example.org/", "https://example.org/v1/traces"},
		{"https://example.org/otlp/v1/traces", "https://example.org/otlp/v1/traces"},
		{"127.0.0.1:4318", "refused"},
		{"grpc://127.0.0.1:4317", "refused"},
		{"http://", "refused"},
		{"http://alice:s3cret@example.org", "refused"},
		{"http://example.org/v1/traces?key=s3cret", "refused"},
		{"http://example.org/#s3cret", "refused"},
		{"http://s3cret\x7f", "refused"},
	} {
		c := Config{Traces: row.url}
		switch err := c.checkTraces(); {
		case err != nil && (row.want != "refused" || strings.Contains(err.Error(), "s3cret")):
			t.Errorf("%q: %v", row.url, err)
		case err == nil && c.Traces != row.want:
			t.Errorf("%q: %q, want %q", row.url, c.Traces, row.want)
		}
	}
	c := Config{Traces: "http://127.0.0.1:4317"}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if err := c.checkTraces(); err == nil || !strings.Contains(err.Error(), "grpc") {
		t.Errorf("a collector that speaks gRPC: %v", err)
	}
}

// TestTraceHeaders reads headers as OpenTelemetry writes them.
func TestTraceHeaders(t *testing.T) {
	t.Setenv(headersVariable, " api-key = a%2Cb , Authorization=Basic%20Zg==,")
	got, err := traceHeaders()
	if err != nil || len(got) != 2 || got["api-key"] != "a,b" || got["Authorization"] != "Basic Zg==" {
		t.Errorf("the headers are %v, %v", got, err)
	}
	for _, bad := range []string{"s3cret", "a=%s3cret", "=s3cret", "a b=s3cret", "a=s3cret%0A"} {
		t.Setenv(headersVariable, bad)
		if _, err := traceHeaders(); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
