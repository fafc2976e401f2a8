package traces

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"patchbay/ipc/wire"
)

// collector sends spans by OTLP over HTTP. otlptracehttp does too, and brings gRPC (ADR 9).
type collector struct {
	url     string
	headers map[string]string
	http    *http.Client
	pause   time.Duration // before the second try, then doubled
}

func newCollector(cfg Config) *collector {
	return &collector{url: cfg.URL, headers: cfg.Headers, pause: time.Second, http: &http.Client{
		// headers with credentials are for this host only
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Start implements otlptrace.Client.
func (*collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *collector) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It tries again until ctx ends, half a minute in the SDK, if the collector
// cannot be reached or says that it can take the spans later.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// of the same form as ExportTraceServiceRequest, whose package imports gRPC
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	for pause := c.pause; ; pause *= 2 {
		again, err := c.post(ctx, body)
		if err == nil || !again || wire.Pause(ctx, pause) != nil {
			return err
		}
	}
}

// post sends spans once. again reports whether another try may succeed: other answers are final by the protocol.
func (c *collector) post(ctx context.Context, body []byte) (again bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	q.Header.Set("Content-Type", "application/x-protobuf")
	q.Header.Set("User-Agent", "Patchbay")
	for name, v := range c.headers {
		q.Header.Set(name, v)
	}
	resp, err := c.http.Do(q)
	if err != nil {
		return true, err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return false, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	return again, fmt.Errorf("the collector at %s answers with status %d", q.URL.Host, resp.StatusCode)
}
