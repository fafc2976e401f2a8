// Package profile measures where the time of a computation goes: it wraps an engine.Ops and records every call as a
// span.
//
// A span has the layer that the caller has announced (Layer), the operation and its time on the host's monotonic clock.
// On asynchronous backends (engine.Stamper) the time is measured on the device and shifted to that clock. Table sums
// spans by layer and rank; Trace writes them in the Chrome trace event format, which Perfetto and chrome://tracing
// open.
package profile

import (
	"time"

	"patchbay/engine"
)

// Span is one call of an operation or of an exchange.
type Span struct {
	Rank  int
	Layer string        // one of Layers, or any other name
	Op    string        // method of Ops or Comm
	Start time.Duration // since the start of the profile
	Took  time.Duration
	Bytes int64 // moved to other ranks, exchanges only
}

// Ops is an engine.Ops that records its calls as spans. Like any Ops it is used by one goroutine at a time.
type Ops struct {
	engine.Through
	inner engine.Ops
	rank  int
	zero  time.Time
	layer string
	spans []Span

	stamper engine.Stamper // nil: calls have run when they return
	open    []stamped      // spans whose times are still to be read from the device
	offset  time.Duration  // from the device's clock to the profile's
}

// stamped is a span whose begin and end are read from the device later.
type stamped struct {
	span       int
	begin, end func() time.Duration
}

var _ engine.Ops = (*Ops)(nil)

// Wrap returns an Ops that measures the ops of a rank. Times count from zero, which all ranks of one profile share.
func Wrap(ops engine.Ops, rank int, zero time.Time) *Ops {
	o := &Ops{inner: ops, rank: rank, zero: zero, layer: "other"}
	o.Do = func(op string, _ func(), call func(engine.Ops)) {
		defer o.span(op)()
		call(ops)
	}
	if s, ok := ops.(engine.Stamper); ok && ops.Sync() == nil {
		o.stamper = s
		now := s.Stamp()
		if ops.Sync() == nil {
			o.offset = time.Since(zero) - now()
		}
	}
	return o
}

// Layer sets the layer of the following calls and returns the previous one.
func (o *Ops) Layer(name string) (before string) {
	before, o.layer = o.layer, name
	return before
}

// Remember adds a span that is not a call of Ops: an exchange of bytes that began at start and ends now.
func (o *Ops) Remember(layer, op string, start time.Time, bytes int64) {
	o.spans = append(o.spans, Span{
		Rank: o.rank, Layer: layer, Op: op, Start: start.Sub(o.zero),
		Took: time.Since(start), Bytes: bytes,
	})
}

// Begin starts a span that is not a call of Ops, such as an exchange. The function it returns ends the span and takes
// the number of bytes moved to other ranks.
func (o *Ops) Begin(layer, op string) (end func(bytes int64)) {
	start := time.Now()
	if o.stamper == nil {
		return func(bytes int64) { o.Remember(layer, op, start, bytes) }
	}
	begin := o.stamper.Stamp()
	return func(bytes int64) {
		o.open = append(o.open, stamped{len(o.spans), begin, o.stamper.Stamp()})
		o.Remember(layer, op, start, bytes)
	}
}

// Spans returns the spans recorded so far, in order. An asynchronous backend must have been synced before.
func (o *Ops) Spans() []Span {
	for _, s := range o.open {
		begin, end := s.begin(), s.end()
		o.spans[s.span].Start, o.spans[s.span].Took = begin+o.offset, end-begin
	}
	o.open = nil
	return o.spans
}

// span times one call. Attention calls count as layer attention wherever they occur.
func (o *Ops) span(op string) func() {
	layer := o.layer
	if op == "Attention" || op == "MergeAttention" {
		layer = "attention"
	}
	end := o.Begin(layer, op)
	return func() { end(0) }
}

// Name returns the name of the wrapped operations.
func (o *Ops) Name() string { return o.inner.Name() }

// Alloc takes memory; it is not measured.
func (o *Ops) Alloc(bytes int) (engine.Buf, error) { return o.inner.Alloc(bytes) }

// Free gives memory back; it is not measured.
func (o *Ops) Free(b engine.Buf) { o.inner.Free(b) }

// Sync waits for the wrapped operations; it is not measured.
func (o *Ops) Sync() error { return o.inner.Sync() }

// Pack packs a weight; it is not measured.
func (o *Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) { return o.inner.Pack(m, c) }

func (o *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	defer o.span("Download")()
	return o.inner.Download(dst, src)
}
