package message

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceParent is the header of W3C Trace Context, and the field of a request.
const traceParent = "traceparent"

// TraceParent reads a traceparent of W3C Trace Context. The result is not valid if the text is not.
func TraceParent(text string) trace.SpanContext {
	carried := propagation.MapCarrier{traceParent: text}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carried))
}

// CarriedTraceParent returns the traceparent among the headers of a message, whatever the case of its name; "" if there
// is none, or a wrong one, with which W3C Trace Context wants a message to be taken as one without.
func CarriedTraceParent(headers map[string][]string) string {
	for name, values := range headers {
		if len(values) == 1 && strings.EqualFold(name, traceParent) && TraceParent(values[0]).IsValid() {
			return values[0]
		}
	}
	return ""
}
