//go:build cgo

package driver

/*
#cgo noescape pb_graph_launch
#cgo nocallback pb_graph_launch
#include "shim.h"
*/
import "C"

// Graph holds calls that a stream has captured instead of enqueuing them; 0: none.
type Graph uint64

// Exec is an executable graph; 0: none.
type Exec uint64

// BeginCapture makes the stream capture the calls issued from now on, except marks. The caller must hold
// Device.CaptureMu, because a wait for the whole device would end the capture.
func (s *Stream) BeginCapture() error {
	s.Flush()
	err := try(func(e *C.pb_error) { C.pb_capture_begin(s.dev.c, s.at, e) })
	s.capture = err == nil
	return err
}

// EndCapture ends the capture and returns the captured calls.
func (s *Stream) EndCapture() (Graph, error) {
	s.Flush()
	s.capture = false
	var made C.uint64_t
	err := try(func(e *C.pb_error) { C.pb_capture_end(s.dev.c, s.at, &made, e) })
	return Graph(made), err
}

// LaunchGraph enqueues the calls of a graph.
func (s *Stream) LaunchGraph(x Exec) {
	s.do(func(e *C.pb_error) {
		s.dev.launches.Add(1)
		C.pb_graph_launch(s.dev.c, s.at, C.uint64_t(x), e)
	})
}

// MakeExec makes *x the executable of g, which it frees. An executable that is there already is updated if only
// arguments differ, else replaced.
func (dev *Device) MakeExec(g Graph, x *Exec) error {
	exec := C.uint64_t(*x)
	err := try(func(e *C.pb_error) { C.pb_graph_make(dev.c, C.uint64_t(g), &exec, e) })
	*x = Exec(exec)
	return err
}

func (dev *Device) DropGraph(g Graph) error {
	return try(func(e *C.pb_error) { C.pb_graph_drop(dev.c, C.uint64_t(g), e) })
}

// FreeExec frees an executable graph.
func (dev *Device) FreeExec(x Exec) error {
	return try(func(e *C.pb_error) { C.pb_graph_free(dev.c, C.uint64_t(x), e) })
}
