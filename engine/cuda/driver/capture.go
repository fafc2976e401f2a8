//go:build cgo

package driver

/*
#cgo noescape pb_graph_launch
#cgo nocallback pb_graph_launch
#include "shim.h"
*/
import "C"

// Graph is calls that a stream has kept instead of enqueuing them; 0: none.
type Graph uint64

// Exec launches the calls of a graph; 0: there are none.
type Exec uint64

// BeginCapture has the stream keep what is issued from now on; marks are left out. Waits for the device are held back
// meanwhile (Device.Still): they would end it.
func (s *Stream) BeginCapture() error {
	s.capture = true
	return try(func(e *C.pb_error) { C.pb_capture_begin(s.dev.c, s.at, e) })
}

// EndCapture returns what was kept.
func (s *Stream) EndCapture() (Graph, error) {
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

// MakeExec gives a graph back and makes *x what launches it: what is there is changed if only arguments are others,
// else replaced.
func (dev *Device) MakeExec(g Graph, x *Exec) error {
	exec := C.uint64_t(*x)
	err := try(func(e *C.pb_error) { C.pb_graph_make(dev.c, C.uint64_t(g), &exec, e) })
	*x = Exec(exec)
	return err
}

// DropGraph gives a graph back.
func (dev *Device) DropGraph(g Graph) error {
	return try(func(e *C.pb_error) { C.pb_graph_drop(dev.c, C.uint64_t(g), e) })
}

// FreeExec gives what launches a graph back.
func (dev *Device) FreeExec(x Exec) error {
	return try(func(e *C.pb_error) { C.pb_graph_free(dev.c, C.uint64_t(x), e) })
}
