//go:build cgo

// Package nccl exchanges data between streams by NCCL, which is loaded at run time (nccl.h declares what is used of it,
// nccl_shim.h what Go calls). It knows communicators, what they move and how they end. It does not know groups of
// ranks, the order of their calls, or what an exchange is for.
package nccl

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -I${SRCDIR}/../driver
#cgo LDFLAGS: -ldl
#include "nccl_shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
	"patchbay/engine/cuda/library"
)

// Library is the opened library. It stays open for the life of the process.
type Library struct {
	api *C.pb_nccl
	driver.Found
}

// Open opens the library where it is found.
func Open(d *driver.Driver, s *library.Search) (*Library, error) {
	l := library.NCCL()
	handle, found := d.Load(s, l)
	if handle == nil {
		if found.Err != nil {
			return nil, found.Err
		}
		return nil, fmt.Errorf("%s was not found (%s)", l.Name, l.Pip)
	}
	n := &Library{Found: found}
	if err := driver.Try(func(e *C.pb_error) { C.pb_nccl_open(handle, &n.api, e) }); err != nil {
		return nil, fmt.Errorf("%s: %w", found.Path, err)
	}
	return n, nil
}

// IDLength is the number of bytes of the ID of a group of communicators.
const IDLength = 128

// NewID makes the ID by which the ranks of a group find each other. The process that makes it must keep running until
// they have.
func (n *Library) NewID() ([]byte, error) {
	id := make([]byte, IDLength)
	err := try(func(e *C.pb_error) { C.pb_nccl_id(n.api, unsafe.Pointer(&id[0]), e) })
	return id, err
}

// Clique holds the communicators of a group for those of its ranks that are in this process, each on its own GPU.
// Methods may be called from any goroutine; a rank issues one call at a time, and nothing else on the stream, until
// Pending says that it is over. Errors of the library are *Error.
type Clique struct {
	lib   *Library
	ranks []communicator
}

// communicator is one rank of a clique; NCCL allows one thread at a time in it.
type communicator struct {
	mu     sync.Mutex
	device *driver.Device
	at     C.uint64_t // 0: released, or of another process
	parts  []C.pb_nccl_part
}

func (k *communicator) handle() *C.pb_device { return (*C.pb_device)(k.device.Handle()) }

// Connect starts to make the communicators of several groups, one for each stream's device, in one grouped call. A nil
// stream is a rank of another process, which connects with the same ID from NewID. Exchanges of group g take at most
// limits[g] multiprocessors, as many as NCCL likes if that is 0. Pending tells when they are made. After an error there
// is nothing to release.
func (n *Library) Connect(ids [][]byte, limits []int, groups ...[]*driver.Stream) ([]*Clique, error) {
	var ends []C.pb_nccl_end
	var names []byte
	for g, streams := range groups {
		if len(ids[g]) != IDLength {
			return nil, fmt.Errorf("the name of a group has %d bytes, want %d", len(ids[g]), IDLength)
		}
		names = append(names, ids[g]...)
		for r, s := range streams {
			if s != nil {
				device := (*C.pb_device)(s.Device().Handle())
				ends = append(ends, C.pb_nccl_end{
					device: device, id: C.int(g), rank: C.int(r), size: C.int(len(streams)), most: C.int(limits[g]),
				})
			}
		}
	}
	err := try(func(e *C.pb_error) {
		C.pb_nccl_connect(n.api, unsafe.Pointer(unsafe.SliceData(names)), unsafe.SliceData(ends), C.int(len(ends)), e)
	})
	cliques, at := make([]*Clique, len(groups)), 0
	for g, streams := range groups {
		c := &Clique{lib: n, ranks: make([]communicator, len(streams))}
		for r, s := range streams {
			if s != nil {
				c.ranks[r].device, c.ranks[r].at = s.Device(), ends[at].communicator
				at++
			}
		}
		cliques[g] = c
	}
	if err != nil {
		for _, c := range cliques {
			c.Abort()
		}
		return nil, err
	}
	return cliques, nil
}

// Pending reports whether what a rank has started is still under way on the host. It returns an error if something has
// failed since, including failures that NCCL has found by itself.
func (c *Clique) Pending(rank int) (bool, error) {
	k := &c.ranks[rank]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == 0 {
		return false, errAborted
	}
	var pending C.int
	err := try(func(e *C.pb_error) { C.pb_nccl_state(c.lib.api, k.at, &pending, e) })
	return pending != 0, err
}

// Exchange enqueues, as one group, the sends and receives of a rank: send[i] goes to rank i and recv[i] comes from it.
// Tensors are contiguous; empty ones are left out, as the peer does too.
func (c *Clique) Exchange(rank int, on *driver.Stream, send, recv []engine.Tensor) (pending bool, err error) {
	return c.issue(rank, on, func(k *communicator) {
		for i, t := range send {
			if !t.IsZero() && t.Len() > 0 {
				k.add(C.PB_SEND, i, engine.Tensor{}, t, t)
			}
		}
		for i, t := range recv {
			if !t.IsZero() && t.Len() > 0 {
				k.add(C.PB_RECV, i, t, engine.Tensor{}, t)
			}
		}
	})
}

// AllGather enqueues a rank's part of gathering sources of equal length, in rank order.
func (c *Clique) AllGather(rank int, on *driver.Stream, dst, src engine.Tensor) (pending bool, err error) {
	return c.issue(rank, on, func(k *communicator) { k.add(C.PB_ALL_GATHER, 0, dst, src, src) })
}

// ReduceScatter enqueues a rank's part of summing sources, in an order of NCCL's choice, and scattering the sum in
// parts of equal length.
func (c *Clique) ReduceScatter(rank int, on *driver.Stream, dst, src engine.Tensor) (pending bool, err error) {
	return c.issue(rank, on, func(k *communicator) { k.add(C.PB_REDUCE_SCATTER, 0, dst, src, dst) })
}

// AllReduce enqueues a rank's part of summing buf in place, in an order of NCCL's choice.
func (c *Clique) AllReduce(rank int, on *driver.Stream, buf engine.Tensor) (pending bool, err error) {
	return c.issue(rank, on, func(k *communicator) { k.add(C.PB_ALL_REDUCE, 0, buf, buf, buf) })
}

// issue enqueues what parts adds as one group.
func (c *Clique) issue(rank int, on *driver.Stream, parts func(*communicator)) (bool, error) {
	k := &c.ranks[rank]
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == 0 {
		return false, errAborted
	}
	k.parts = k.parts[:0]
	parts(k)
	if len(k.parts) == 0 || on.Err() != nil {
		return false, nil
	}
	var pending C.int
	err := try(func(e *C.pb_error) {
		C.pb_nccl_exchange(c.lib.api, k.handle(), k.at, C.uint64_t(on.Handle()), &k.parts[0], C.int(len(k.parts)),
			&pending, e)
	})
	return pending != 0, err
}

// add appends a call with the count and the type of like. Types that are only moved are sent as bytes.
func (k *communicator) add(call, peer int, dst, src, like engine.Tensor) {
	p := C.pb_nccl_part{
		dst: C.uint64_t(driver.Address("NCCL", dst)), src: C.uint64_t(driver.Address("NCCL", src)),
		count: C.uint64_t(like.Len()), call: C.int(call), peer: C.int(peer),
	}
	switch like.DType {
	case engine.F32:
		p._type = C.PB_NCCL_F32
	case engine.F64:
		p._type = C.PB_NCCL_F64
	case engine.BF16:
		p._type = C.PB_NCCL_BF16
	default:
		p._type, p.count = C.PB_NCCL_U8, C.uint64_t(like.Bytes())
	}
	k.parts = append(k.parts, p)
}

// Abort ends what the ranks wait for on their devices, with undefined results, and releases the communicators.
func (c *Clique) Abort() {
	_ = c.all(func(k *communicator) error { // there is nothing left to do about an error
		return try(func(e *C.pb_error) { C.pb_nccl_abort(c.lib.api, k.handle(), k.at, e) })
	})
}

// Close releases communicators on which nothing is under way, or aborts them if that takes longer than patience.
func (c *Clique) Close(patience time.Duration) error {
	return c.all(func(k *communicator) error {
		err := try(func(e *C.pb_error) { C.pb_nccl_finalize(c.lib.api, k.handle(), k.at, e) })
		pending, end := C.int(1), time.Now().Add(patience)
		for looks := 0; err == nil && pending != 0; looks++ {
			if looks > 8 {
				time.Sleep(100 * time.Microsecond)
			}
			err = try(func(e *C.pb_error) { C.pb_nccl_state(c.lib.api, k.at, &pending, e) })
			if err == nil && pending != 0 && time.Now().After(end) {
				err = fmt.Errorf("a communicator on %s was not done after %v", k.device.Location(), patience)
			}
		}
		if err != nil {
			return errors.Join(err, try(func(e *C.pb_error) { C.pb_nccl_abort(c.lib.api, k.handle(), k.at, e) }))
		}
		return try(func(e *C.pb_error) { C.pb_nccl_destroy(c.lib.api, k.handle(), k.at, e) })
	})
}

// all calls end for the communicators of all ranks concurrently: within one process they wait for each other.
func (c *Clique) all(end func(*communicator) error) error {
	errs := make([]error, len(c.ranks))
	var wg sync.WaitGroup
	for r := range c.ranks {
		wg.Go(func() {
			k := &c.ranks[r]
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.at != 0 {
				errs[r] = end(k)
				k.at = 0
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Error is a failed call of the library.
type Error struct {
	Call string // function of the library
	Code int    // its result
	Text string // description of the result
}

// Error returns "call: text (code)".
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

var errAborted = errors.New("the communicators were given back")

// try runs a call of the library and returns its error.
func try(f func(e *C.pb_error)) error {
	err := driver.Try(f)
	if e := (*driver.Error)(nil); errors.As(err, &e) && e.Call != "cuCtxSetCurrent" {
		return &Error{e.Call, e.Code, e.Text}
	}
	return err
}
