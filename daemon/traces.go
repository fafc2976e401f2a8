package daemon

import (
	"context"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel"

	"patchbay/ipc/traces"
)

// headersVariable holds what requests to a collector of traces carry, such as credentials, as OpenTelemetry defines it:
// NAME=VALUE,... with URL encoding. The environment is its only place: settings are logged.
const headersVariable = "OTEL_EXPORTER_OTLP_HEADERS"

// openTraces makes what sends the traces of jobs, if a collector is named.
func (d *daemon) openTraces(ctx context.Context) error {
	if d.cfg.Traces == "" {
		return nil
	}
	headers, err := traceHeaders()
	if err != nil {
		return err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { d.log.Warn().Err(err).Msg("traces were not sent") }))
	d.traces, err = traces.New(ctx, traces.Config{
		URL: d.cfg.Traces, Headers: headers, Version: semantic(d.version), Daemon: d.owner, Log: d.log,
	})
	return err
}

// traceHeaders reads the headers for a collector.
func traceHeaders() (map[string]string, error) {
	headers := map[string]string{}
	for item := range strings.SplitSeq(os.Getenv(headersVariable), ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		name, v, ok := strings.Cut(item, "=")
		v, err := url.PathUnescape(strings.TrimSpace(v))
		if name = strings.TrimSpace(name); !ok || err != nil || !headerName(name) || strings.ContainsAny(v, "\r\n\x00") {
			return nil, refuse("%s: want NAME=VALUE,... with %% and two digits for , and other special signs", headersVariable)
		}
		headers[name] = v
	}
	return headers, nil
}

func headerName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// checkTraces returns an *InputError for a collector that cannot be meant, and completes its URL.
func (c *Config) checkTraces() error {
	if c.Traces == "" {
		return nil
	}
	u, err := url.Parse(c.Traces)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil { // which would be logged, and which the text of this error leaves out
		return refuse("--traces: want http://HOST:PORT or https://HOST/PATH of a collector, without a user and a query; "+
			"$%s is for credentials", headersVariable)
	}
	if u.Path == "" || u.Path == "/" {
		c.Traces = u.JoinPath("v1/traces").String()
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := os.Getenv(name); p != "" && p != "http/protobuf" {
			return refuse("--traces: %s is %s: traces are sent by http/protobuf only, as a rule to port 4318", name, p)
		}
	}
	_, err = traceHeaders()
	return err
}
