package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// TestIdleWhileRequestsCome checks a wait for the last reply while requests still come and end: it ends when none is
// open, and not before those that were open at its beginning are over.
func TestIdleWhileRequestsCome(t *testing.T) {
	for range 50 {
		var o openRequests
		o.begin()
		var others sync.WaitGroup
		var ended atomic.Int64
		var last atomic.Bool
		for range 2 {
			others.Go(func() {
				for !last.Load() {
					o.begin()
					o.end()
					ended.Add(1)
				}
			})
		}
		idle := o.idle()
		for seen := ended.Load(); ended.Load() < seen+10; {
			time.Sleep(10 * time.Microsecond)
		}
		select {
		case <-idle:
			t.Fatal("idle while a request is open")
		default:
		}
		last.Store(true)
		o.end()
		others.Wait()
		select {
		case <-idle:
		case <-time.After(time.Minute):
			t.Fatal("no request is open, and the wait goes on")
		}
	}
}

// TestReferencesAreOneRequest checks that a request whose bytes are fetched first is counted once, and its refusal too,
// whether the bytes came or not.
func TestReferencesAreOneRequest(t *testing.T) {
	s := NewService(ServiceConfig{Log: zerolog.Nop()})
	for _, failure := range []error{nil, fault.New(fault.BadPayload, "they are gone")} {
		s.Handle(&Call{
			Verb: message.VerbExec,
			Fields: pyjson.NewObject("inputs", pyjson.NewObject("value", &wire.Tensor{
				Tensor: array.Tensor{DType: "u8", Shape: []int{4}},
				Ref:    &wire.Ref{Kind: wire.RefStream, Bytes: 4},
			})),
			Reply: &Reply{Send: func([][]byte, []int, *fault.Error, bool) error { return nil }},
			pull: func(_ context.Context, ref *wire.Ref) (*bulk.Region, error) {
				if failure != nil {
					return nil, failure
				}
				return bulk.NewRegion(ref.Bytes)
			},
		})
	}
	s.Close()
	got := s.cfg.Meter.Stats()
	if n := got.Requests[message.VerbExec]; n != 2 {
		t.Errorf("%d requests are counted, want 2", n)
	}
	if r := got.Refused; r[fault.BadRequest] != 1 || r[fault.BadPayload] != 1 { // the first one lacks class_type
		t.Errorf("the refusals %v are counted, want one %s and one %s", r, fault.BadRequest, fault.BadPayload)
	}
}

// ended is a context that has ended although its Done channel is open.
type ended struct{ context.Context }

// Err returns context.Canceled.
func (ended) Err() error { return context.Canceled }

// logged receives the lines of a log.
type logged func(line string)

func (f logged) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// TestSocketIsNotMadeAgainAtTheEnd checks that a socket bound while Serve ends is removed, and that nothing is logged.
func TestSocketIsNotMadeAgainAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	synctest.Test(t, func(t *testing.T) {
		c, err := ListenSocket(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c.watch(ended{ctx}, zerolog.New(logged(func(line string) {
			t.Errorf("the log says %s", line)
			stop()
		})))
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file of the socket: got %v, want it to be gone", err)
		}
	})
}
