//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

// graphs are the sequences of calls that a stream replays as CUDA graphs: each as one graph, or as several with calls
// of Between in between. A capture issues nothing, so it may be abandoned.
type graphs struct {
	of     map[string]*graph // by the key of Replay
	idle   [][]driver.Exec   // graphs of dropped keys: updating one of the same shape is faster than making one
	fixed  scratch           // the fixed copies of moving operands, shared by all keys
	eager  bool              // issue every call: --graphs off, or CUDA has refused a capture
	within *capture          // the capture under way; nil: calls are issued
	count  struct{ launched, refused int64 }
}

// graph is what was issued under one key.
type graph struct {
	pieces  []piece // none: it was issued once but not captured yet
	scratch uint64  // address of the scratch memory when it was captured
	fixed   []engine.Tensor
}

// piece is a part of a sequence.
type piece struct {
	exec driver.Exec
	then func() // the call between it and the next one; nil: it is the last
}

// capture is a sequence that is being captured.
type capture struct {
	made  []driver.Graph // one per piece
	thens []func()       // the calls between them
	err   error          // the first error of the driver
}

// idleGraphs is how many sequences of dropped keys are kept.
const idleGraphs = 4

// errCaptureNeedsMemory says that a call in a capture needs scratch memory, or a comparison, that the first pass did
// not need.
var errCaptureNeedsMemory = errors.New("cuda: a sequence that is captured takes more scratch memory than before")

// Replay implements engine.Replayer: the first time the calls are issued, because that may still take memory and choose
// algorithms, the second time they are captured. Once CUDA has refused a capture, the stream issues all sequences call
// by call.
func (o *Ops) Replay(key string, moving []engine.Tensor, f func(fixed []engine.Tensor) error) (bool, error) {
	if o.graphs.eager || o.Err() != nil {
		return false, f(moving)
	}
	g, known := o.graphs.of[key]
	if !known {
		places, err := o.placeMoving(moving)
		if err != nil {
			return false, err
		}
		g = &graph{fixed: places}
		if o.graphs.of == nil {
			o.graphs.of = map[string]*graph{}
		}
		o.graphs.of[key] = g
	}
	o.copyMoving(g.fixed, moving)
	if !known {
		return false, f(g.fixed)
	}
	replayed := g.pieces != nil && g.scratch == o.mem.at
	if !replayed {
		if refused, err := o.capture(g, f); refused != nil {
			o.graphs.eager = true
			o.graphs.count.refused++
			return false, f(g.fixed)
		} else if err != nil {
			return false, err
		}
	}
	if o.Err() == nil {
		o.graphs.count.launched++
	}
	for _, p := range g.pieces {
		if p.exec != 0 {
			o.LaunchGraph(p.exec)
		}
		if p.then != nil { // even after an error: peers wait for it, and it tells them
			p.then()
		}
	}
	return replayed, nil
}

func (o *Ops) Between(call func()) {
	c := o.graphs.within
	if c == nil {
		call()
		return
	}
	o.cut(c)
	c.thens = append(c.thens, call)
	o.begin(c)
}

func (o *Ops) Drop() {
	for _, g := range o.graphs.of {
		if g.pieces != nil {
			o.graphs.idle = append(o.graphs.idle, execs(g.pieces))
		}
	}
	o.graphs.of = nil
	for len(o.graphs.idle) > idleGraphs {
		o.Note(o.forget(o.graphs.idle[0]))
		o.graphs.idle = o.graphs.idle[1:]
	}
}

func execs(pieces []piece) (out []driver.Exec) {
	for _, p := range pieces {
		out = append(out, p.exec)
	}
	return out
}

// forget frees executable graphs.
func (o *Ops) forget(execs []driver.Exec) error {
	var errs []error
	for _, exec := range execs {
		if exec != 0 {
			errs = append(errs, o.dev.FreeExec(exec))
		}
	}
	return errors.Join(errs...)
}

func (g *graphs) free(o *Ops) error {
	o.Drop()
	var errs []error
	for _, execs := range g.idle {
		errs = append(errs, o.forget(execs))
	}
	g.idle = nil
	return errors.Join(append(errs, g.fixed.free())...)
}

// begin starts to capture a piece.
func (o *Ops) begin(c *capture) {
	if c.err == nil {
		c.err = o.BeginCapture()
		o.Note(c.err) // a stream with an error issues nothing
	}
}

// cut ends the piece that is being captured.
func (o *Ops) cut(c *capture) {
	var made driver.Graph
	if c.err == nil {
		made, c.err = o.EndCapture()
		o.Note(c.err)
	}
	c.made = append(c.made, made)
}

// drop frees the graphs of a capture.
func (o *Ops) drop(c *capture) {
	for _, made := range c.made {
		if made != 0 {
			o.Note(o.dev.DropGraph(made))
		}
	}
	c.made = nil
}

// capture makes graphs of the calls of f, of which none is issued. If CUDA refuses to capture them, refused is its
// error, and f may be called once more.
func (o *Ops) capture(g *graph, f func([]engine.Tensor) error) (refused, err error) {
	o.dev.CaptureMu.Lock() // a wait for the whole device, on another goroutine, would end the capture
	defer o.dev.CaptureMu.Unlock()
	c := &capture{}
	if o.begin(c); c.err != nil {
		o.Forgive()
		return c.err, nil
	}
	end := func() {
		o.cut(c)
		o.graphs.within, o.mem.frozen = nil, false
	}
	o.graphs.within, o.mem.frozen = c, true
	panics := true
	defer func() {
		if panics {
			end()
			o.drop(c)
		}
	}()
	err = f(g.fixed)
	panics = false
	end()
	if refused = o.refusal(o.Err(), c.err); refused != nil {
		o.Forgive()
	}
	if err != nil || o.Err() != nil || refused != nil {
		o.drop(c)
		return refused, err
	}
	o.build(g, c)
	return nil, nil
}

// build makes the graphs of a capture executable for g, by updating existing executables where there are some.
func (o *Ops) build(g *graph, c *capture) {
	old := execs(g.pieces)
	if n := len(o.graphs.idle); n > 0 && old == nil {
		old, o.graphs.idle = o.graphs.idle[n-1], o.graphs.idle[:n-1]
	}
	g.pieces = make([]piece, len(c.made))
	for i, made := range c.made {
		p := &g.pieces[i]
		if made != 0 && i < len(old) {
			p.exec, old[i] = old[i], 0
		}
		if made != 0 {
			o.Note(o.dev.MakeExec(made, &p.exec))
		}
		if i < len(c.thens) {
			p.then = c.thens[i]
		}
	}
	o.Note(o.forget(old))
	if g.scratch = o.mem.at; o.Err() != nil {
		_ = o.forget(execs(g.pieces))
		g.pieces = nil
	}
}

// refusal returns the first of the errors if it is about the capture: one of the driver, of a library, or
// errCaptureNeedsMemory.
func (o *Ops) refusal(errs ...error) error {
	for _, err := range errs {
		var e *driver.Error
		if errors.As(err, &e) && (e.OfCapture() || e.OfLibrary()) || errors.Is(err, errCaptureNeedsMemory) {
			return err
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

// placeMoving finds fixed places for moving operands.
func (o *Ops) placeMoving(moving []engine.Tensor) ([]engine.Tensor, error) {
	if bytes := fixedRoom(moving); bytes > o.graphs.fixed.bytes {
		o.Drop() // their places are freed
		if err := o.graphs.fixed.need(bytes); err != nil {
			return nil, fmt.Errorf("%s: take %d KB for what moves between evaluations: %w", o.Location(), bytes>>10, err)
		}
	}
	o.graphs.fixed.used = 0
	places := make([]engine.Tensor, len(moving))
	for i, t := range moving {
		places[i] = engine.NewTensor(engine.Buf{Dev: o.graphs.fixed.take(t.Bytes())}, t.DType, t.Shape()...)
	}
	return places, nil
}

// fixedRoom returns the bytes of the fixed places of moving operands.
func fixedRoom(moving []engine.Tensor) (bytes int) {
	for i := range moving {
		bytes += room(moving[i].Bytes())
	}
	return bytes
}

// copyMoving copies moving operands to their fixed places. Consecutive ones of equal size and distance take one launch.
func (o *Ops) copyMoving(places, moving []engine.Tensor) {
	at := func(i int) uint64 { return uint64(address("Replay", moving[i])) }
	for i := 0; i < len(moving); {
		if !moving[i].Contiguous() {
			o.strided(places[i], moving[i])
			i++
			continue
		}
		size, n := moving[i].Bytes(), 1
		step := uint64(0)
		for ; i+n < len(moving) && moving[i+n].Bytes() == size && moving[i+n].Contiguous(); n++ {
			if next := at(i+n) - at(i+n-1); n == 1 {
				step = next
			} else if next != step {
				break
			}
		}
		per := 4
		if (at(i)|step|uint64(size))%16 == 0 {
			per = 16
		}
		a := &o.args.copy
		*a = C.struct_pb_copy{
			dst: address("Replay", places[i]), src: C.pb_u64(at(i)), size: C.int(per), count: C.pb_i64(n * size / per),
			dims: [5]C.int{1, 1, 1, C.int(n), C.int(size / per)},
		}
		a.ds[3], a.ds[4], a.ss[3], a.ss[4] = C.pb_i64(room(size)/per), 1, C.pb_i64(int64(step)/int64(per)), 1
		o.copyBy(kCopy)
		i += n
	}
}
