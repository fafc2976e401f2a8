//go:build cgo

package cuda

/*
#cgo noescape pb_graph_launch
#cgo nocallback pb_graph_launch
#include "lt.h"
#include "shim.h"
#include "kernels/args.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// graphs are sequences of calls that a stream has issued and will issue again as one (CUDA graphs).
type graphs struct {
	of     map[string]*graph // by the key of Replay
	idle   []C.uint64_t      // graphs of keys that were dropped: one of the same shape is changed sooner than made
	fixed  scratch           // the places of what moves, the same for all keys
	eager  bool              // this stream calls every time: --graphs off, or CUDA has refused
	within bool              // calls are captured now
	count  struct{ launched, refused int64 }
}

// graph is what was issued under one key.
type graph struct {
	exec    C.uint64_t // 0: it was issued once, not captured yet
	scratch uint64     // where the scratch memory was then
	fixed   []engine.Tensor
}

// idleGraphs is how many graphs of dropped keys are kept.
const idleGraphs = 4

// errMoved says that a call took memory that it had not taken the first time.
var errMoved = errors.New("cuda: a sequence that is captured takes more scratch memory than before")

// Replay implements engine.Replayer: the first time the calls are issued, because that may still take memory and choose
// algorithms, the second time captured. What CUDA refuses to capture is issued call by call from then on.
func (o *Ops) Replay(key string, moving []engine.Tensor, f func(fixed []engine.Tensor) error) (bool, error) {
	if o.graphs.eager || o.err != nil {
		return false, f(moving)
	}
	g, known := o.graphs.of[key]
	if !known {
		places, err := o.fix(moving)
		if err != nil {
			return false, err
		}
		g = &graph{fixed: places}
		if o.graphs.of == nil {
			o.graphs.of = map[string]*graph{}
		}
		o.graphs.of[key] = g
	}
	o.settle(g.fixed, moving)
	if !known {
		return false, f(g.fixed)
	}
	replayed := g.exec != 0 && g.scratch == o.mem.at
	if !replayed {
		if refused, err := o.capture(g, f); refused != nil {
			o.graphs.eager = true
			o.graphs.count.refused++
			return false, f(g.fixed)
		} else if err != nil {
			return false, err
		}
	}
	if o.err == nil {
		o.dev.launches.Add(1)
		if C.pb_graph_launch(o.dev.c, o.stream, g.exec, &o.args.e) != 0 {
			o.note(errorOf(&o.args.e))
		}
		o.graphs.count.launched++
	}
	return replayed, nil
}

// Drop implements engine.Replayer.
func (o *Ops) Drop() {
	for _, g := range o.graphs.of {
		if g.exec != 0 {
			o.graphs.idle = append(o.graphs.idle, g.exec)
		}
	}
	o.graphs.of = nil
	for len(o.graphs.idle) > idleGraphs {
		o.note(o.forget(o.graphs.idle[0]))
		o.graphs.idle = o.graphs.idle[1:]
	}
}

func (o *Ops) forget(exec C.uint64_t) error {
	return try(func(e *C.pb_error) { C.pb_graph_free(o.dev.c, exec, e) })
}

// free gives all graphs back.
func (g *graphs) free(o *Ops) error {
	o.Drop()
	var errs []error
	for _, exec := range g.idle {
		errs = append(errs, o.forget(exec))
	}
	g.idle = nil
	return errors.Join(append(errs, g.fixed.free())...)
}

// capture makes a graph of the calls of f. refused is what CUDA says where it does not: f may be called once more then.
func (o *Ops) capture(g *graph, f func([]engine.Tensor) error) (refused, err error) {
	o.dev.still.Lock() // a wait for the whole device, on another goroutine, would end the capture
	defer o.dev.still.Unlock()
	if err := try(func(e *C.pb_error) { C.pb_capture_begin(o.dev.c, o.stream, e) }); err != nil {
		return err, nil
	}
	var made C.uint64_t
	end := func() error {
		o.graphs.within, o.mem.frozen = false, false
		return try(func(e *C.pb_error) { C.pb_capture_end(o.dev.c, o.stream, &made, e) })
	}
	o.graphs.within, o.mem.frozen = true, true
	panics := true
	defer func() {
		if panics {
			_ = end()
			_ = try(func(e *C.pb_error) { C.pb_graph_drop(o.dev.c, made, e) })
		}
	}()
	err = f(g.fixed)
	panics = false
	ended := end()
	if refused = o.refusal(o.err, ended); refused != nil {
		o.err = nil
	}
	if made == 0 || err != nil || o.err != nil || refused != nil {
		if made != 0 {
			o.note(try(func(e *C.pb_error) { C.pb_graph_drop(o.dev.c, made, e) }))
		}
		if refused == nil {
			o.note(ended)
		}
		return refused, err
	}
	g.scratch = o.mem.at
	if n := len(o.graphs.idle); n > 0 && g.exec == 0 {
		g.exec, o.graphs.idle = o.graphs.idle[n-1], o.graphs.idle[:n-1]
	}
	o.note(try(func(e *C.pb_error) { C.pb_graph_make(o.dev.c, made, &g.exec, e) }))
	return nil, nil
}

// refusal returns the first of the errors if it is about the capture: of the driver, of cuBLASLt, or of ours.
func (o *Ops) refusal(errs ...error) error {
	for _, err := range errs {
		var e *Error
		if errors.As(err, &e) && (e.capture() || e.Code >= C.PB_LT_CODES) || errors.Is(err, errMoved) {
			return err
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

// fix finds places for operands that move.
func (o *Ops) fix(moving []engine.Tensor) ([]engine.Tensor, error) {
	if bytes := fixedRoom(moving); bytes > o.graphs.fixed.bytes {
		o.Drop() // their places go
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

// fixedRoom returns the bytes of the places of operands that move.
func fixedRoom(moving []engine.Tensor) (bytes int) {
	for i := range moving {
		bytes += room(moving[i].Bytes())
	}
	return bytes
}

// settle copies what moves to its places: neighbours of one size, equally far apart, by one launch.
func (o *Ops) settle(places, moving []engine.Tensor) {
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
		o.flat(kCopy, int(a.count), unsafe.Pointer(a))
		i += n
	}
}
