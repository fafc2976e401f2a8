package graph

import (
	"context"
	"fmt"
	"math"

	"patchbay/fault"
	"patchbay/node/files"
	"patchbay/node/value"
	"patchbay/parallel/request"
)

// Call is one execution of a node: its inputs, and what its function may ask of the runner. Inputs have the types that
// the class declares.
type Call struct {
	Context context.Context
	Job     *Job
	ID      string
	Class   *Class
	in      map[string]any
	of      *execution
	saved   []files.Output
	ui      map[string]any
	bounds  Bounds
}

// Warn adds a line to the warnings of the job: something that the user should know although the node succeeded.
func (c *Call) Warn(format string, args ...any) {
	c.of.result.Warnings = append(c.of.result.Warnings, fmt.Sprintf(format, args...))
}

// Arg returns an input as T. It panics on another type: the runner has checked types, so that the catalogue is wrong.
func Arg[T any](c *Call, name string) T {
	v, ok := c.in[name].(T)
	if !ok {
		var want T
		panic(fault.At(fault.Internal, name, "%s of class %s is a %s where the class wants %T", name, c.Class.Name,
			typeOf(c.in[name]), want))
	}
	return v
}

// Raw returns an input as it is, nil if it is not given.
func (c *Call) Raw(name string) any { return c.in[name] }

// Given reports whether an optional input is there.
func (c *Call) Given(name string) bool {
	_, ok := c.in[name]
	return ok
}

// Roots returns the folders that names refer to.
func (c *Call) Roots() *files.Roots { return &c.of.run.roots }

// Emit emits an event of this node.
func (c *Call) Emit(e Event) {
	e.Node = c.ID
	c.of.emit(e)
}

// Str returns a STRING or COMBO input.
func (c *Call) Str(name string) string { return Arg[string](c, name) }

// Integer returns an INT input, clamped to the range of int.
func (c *Call) Integer(name string) int {
	switch n := c.in[name].(type) {
	case int64:
		return int(n)
	case uint64:
		return int(min(n, math.MaxInt64))
	}
	return Arg[int](c, name)
}

// Seed returns an INT input as the 64 bits of a seed.
func (c *Call) Seed(name string) uint64 {
	if n, ok := c.in[name].(uint64); ok {
		return n
	}
	return uint64(Arg[int64](c, name))
}

func (c *Call) Float(name string) float64 {
	switch n := c.in[name].(type) {
	case int64:
		return float64(n)
	case uint64:
		return float64(n)
	}
	return Arg[float64](c, name)
}

// Fits returns an error that names an input if what the node makes of it has more pixels than are allowed here.
func (c *Call) Fits(name string, pixels int) error { return c.bounds.pixels(name, float64(pixels)) }

// Show adds a value to what the editor shows for the node.
func (c *Call) Show(key string, v any) { c.ui[key] = v }

// Save adds a file to the outputs of the job.
func (c *Call) Save(out files.Output) {
	out.Node, out.Index = c.ID, len(c.saved)
	c.saved = append(c.saved, out)
}

// Use returns what handles need from this call to load and run their weights.
func (c *Call) Use() value.Use {
	return value.Use{
		Context: c.Context, Store: c.of.run.store, Turn: c.of.turn, Plan: c.Job.Plan, Loading: &c.of.result.Timings.Load,
	}
}

// Sampled records a run of the denoise loop that took so many seconds, loading included.
func (c *Call) Sampled(stats request.Stats, seconds float64) {
	r := c.of.result
	r.Stats = append(r.Stats, stats)
	r.Timings.Load += stats.LoadSeconds
	r.Timings.Denoise += seconds - stats.LoadSeconds
	r.Timings.Steps = append(r.Timings.Steps, stats.StepSeconds...)
}
