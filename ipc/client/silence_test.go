package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"patchbay/fault"
	"patchbay/ipc/bulk"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// TestSilenceEndsStreams checks that jobs and samples alike notice a daemon that stops in the middle of a stream, only
// once it has been silent for that long, and that without a limit the wait goes on.
func TestSilenceEndsStreams(t *testing.T) { synctest.Test(t, silenceEndsStreams) }

func silenceEndsStreams(t *testing.T) {
	const silence = 100 * time.Millisecond
	started := func() *Replies {
		r := newReplies(nil)
		r.put(Reply{Fields: pyjson.NewObject("type", "accepted", "job", "j", "state", "running")}, nil)
		return r
	}
	for name, follow := range map[string]func(context.Context, *Replies, time.Duration) error{
		"job": func(ctx context.Context, r *Replies, d time.Duration) error {
			_, err := (&Collector{Silence: d}).Run(ctx, r)
			return err
		},
		"sample": func(ctx context.Context, r *Replies, d time.Duration) error {
			_, err := FollowSample(ctx, r, max(d, 0), func(*message.SampleReply) {})
			return err
		},
	} {
		r := started()
		go func() {
			for range 4 { // signs of life keep it
				time.Sleep(silence / 2)
				r.put(Reply{Fields: pyjson.NewObject("type", "heartbeat", "job", "j")}, nil)
			}
		}()
		began := time.Now()
		if err := follow(t.Context(), r, silence); !errors.Is(err, ErrSilent) || time.Since(began) != 3*silence {
			t.Errorf("%s: after %s of which 200ms had heartbeats: %v, want ErrSilent after 300ms", name, time.Since(began), err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 3*silence)
		if err := follow(ctx, started(), -1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s without a limit ended with %v", name, err)
		}
		stop()
	}
}

// TestLongRepliesAreNoSilence checks that a reply which takes longer to arrive than a daemon may be silent is waited
// for while its bytes come, and given up once they do not.
func TestLongRepliesAreNoSilence(t *testing.T) { synctest.Test(t, longRepliesAreNoSilence) }

func longRepliesAreNoSilence(t *testing.T) {
	const silence, pieces = 100 * time.Millisecond, 40
	for name, sent := range map[string]int{"whole": pieces, "half": pieces / 2} {
		near, far := net.Pipe()
		c := NewFrameClient(near, near, near.Close)
		gone := make(chan struct{})
		go func() { // answers the request with one frame, in pieces
			defer close(gone)
			defer far.Close()
			if _, err := wire.ReadFrame(far); err != nil {
				t.Error(err)
			}
			body, err := wire.Encode(map[string]any{"tag": 1, "end": true, "text": strings.Repeat("x", 9000)}, wire.Msgpack)
			if err != nil {
				t.Error(err)
			}
			frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
			for i := range sent {
				time.Sleep(silence / 2)
				_, _ = far.Write(frame[i*len(frame)/pieces : (i+1)*len(frame)/pieces])
			}
			time.Sleep(10 * silence)
		}()
		r, err := c.Ask(t.Context(), message.VerbStats, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.begun = true // not the first reply, which may take longer
		began := time.Now()
		_, err = r.within(t.Context(), silence)
		after := time.Duration(sent) * silence / 2
		switch took := time.Since(began); {
		case sent == pieces && (err != nil || took != after):
			t.Errorf("%s: %v after %s, want the reply after %s", name, err, took, after)
		case sent < pieces && (!errors.Is(err, ErrSilent) || took < after+silence || took > after+2*silence):
			t.Errorf("%s: %v after %s, want ErrSilent %s after the last byte, at %s", name, err, took, silence, after)
		}
		_ = c.Close()
		<-gone
	}
}

// TestLongPullsAreNoSilence checks that bytes which a reply refers to may take longer than a daemon may be silent, as
// those of a large file over a slow link do.
func TestLongPullsAreNoSilence(t *testing.T) { synctest.Test(t, longPullsAreNoSilence) }

func longPullsAreNoSilence(t *testing.T) {
	const silence = 100 * time.Millisecond
	r := newReplies(nil)
	r.begun = true // not the first reply, which may take longer
	r.pull = func(ctx context.Context, _ *wire.Ref) (*bulk.Region, error) {
		if err := wire.Pause(ctx, 10*silence); err != nil {
			return nil, err
		}
		return bulk.NewRegion(4)
	}
	ref := pyjson.NewObject("kind", wire.RefStream, "bytes", 4, "subject", "s", "id", "x")
	r.put(Reply{Fields: pyjson.NewObject("type", message.ReplyOutput, "data", pyjson.NewObject(wire.RefKey, ref))}, nil)
	m, err := r.within(t.Context(), silence)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := m.Fields.Get("data"); fmt.Sprintf("%T", b) != "[]uint8" {
		t.Errorf("got %v, want the bytes", b)
	}
	m.Hold.Release()
}

// TestFailedSamplesHoldNoMemory checks that the memory of a reply that ends a sample with an error is released.
func TestFailedSamplesHoldNoMemory(t *testing.T) {
	for name, o := range map[string]*pyjson.Object{
		"its error": pyjson.NewObject("type", message.EventError, "error", pyjson.NewObject("code", fault.NoModel)),
		"no type":   pyjson.NewObject("job", "j"),
	} {
		g, err := bulk.NewRegion(1)
		if err != nil {
			t.Fatal(err)
		}
		r := newReplies(nil)
		r.put(Reply{o, bulk.Holding(g)}, io.EOF)
		if _, err := FollowSample(t.Context(), r, 0, nil); err == nil || g.Bytes() != nil {
			t.Errorf("%s: %v, the memory is held: %v", name, err, g.Bytes() != nil)
		}
	}
}

// TestWhatCountsAsLost checks that a stream is resumed when its other side went away, and never when that has answered.
func TestWhatCountsAsLost(t *testing.T) {
	end := &message.Event{Type: message.EventError}
	for name, c := range map[string]struct {
		end  *message.Event
		err  error
		want bool
	}{
		"an end": {end: end}, "no end": {want: true}, "silence": {err: ErrSilent, want: true},
		"NATS gone": {err: errUnplugged, want: true}, "socket gone": {err: errHungUp, want: true},
		"draining": {err: fault.New(fault.Draining, "x"), want: true}, "refused": {err: fault.New(fault.NoJob, "x")},
		"given up": {err: context.Canceled},
	} {
		if got := lost(c.end, c.err); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestNoDaemonIsSaidOnce checks the error of a job whose daemon stays away: it says once that none answers, whether the
// connection says so too or not, and how to go on.
func TestNoDaemonIsSaidOnce(t *testing.T) {
	for _, why := range []error{fmt.Errorf("%w at nats://x: refused", ErrNoDaemon), errHungUp} {
		l := &Lasting{Dial: func() (Client, error) { return nil, why }, Say: t.Logf}
		_, err := Follow(t.Context(), l, "j", 1, false, &Collector{})
		if !errors.Is(err, ErrNoDaemon) || !errors.Is(err, why) || strings.Count(err.Error(), ErrNoDaemon.Error()) != 1 ||
			!strings.Contains(err.Error(), "; once one is back, `patchbay watch j` shows the job") {
			t.Errorf("got %v", err)
		}
	}
}
