package serve_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/meter"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/hammer"
)

// FuzzConn sends arbitrary bytes over a connection to a service.
func FuzzConn(f *testing.F) { connTarget(f).Fuzz(f) }

// idle is an executor that samples nothing: a Fake acts on the names of samplers.
type idle struct{ ipctest.Fake }

func (*idle) Sample(context.Context, *message.SampleRequest, func(*message.SampleReply)) (*message.SampleReply, error) {
	return nil, errors.New("not here")
}

// collected collects the bytes that a connection writes.
type collected struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (c *collected) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(b)
}

// connTarget sends an input, as all that a client sends before it hangs up, to its own service that runs no jobs. It
// checks that the answers are whole frames with tags of requests, that no request has more than one last answer, and
// that nothing is left running.
func connTarget(tb testing.TB) *hammer.Target[[]byte] {
	outputs, err := jobs.NewOutputs(jobs.OutputsConfig{})
	if err != nil {
		tb.Fatal(err)
	}
	meter := meter.New()
	requests := messagetest.Frames(tb)
	var seeds []hammer.Input
	for i, r := range requests {
		next := requests[(i+7)%len(requests)]
		seeds = append(seeds, hammer.Input{Data: wiretest.FrameOf(r.Data)},
			hammer.Input{Data: append(wiretest.FrameOf(r.Data),
				wiretest.FrameOf(bytes.Replace(next.Data, []byte("tag\x01"), []byte("tag\x02"), 1))...)})
	}
	seeds = append(seeds, hammer.Input{Data: wiretest.FrameOf([]byte(`{"op":"ping","tag":1}`))},
		hammer.Input{Data: wiretest.FrameOf([]byte(`{"op":"status","tag":1,"job":"j","follow":true}`))})
	return &hammer.Target[[]byte]{
		Name: "FuzzConn", Seeds: seeds,
		Parse: func(in hammer.Input) ([]byte, error) {
			cfg := ipctest.FakeService()
			cfg.Jobs, cfg.Outputs = jobs.New(jobs.Config{MaxQueued: 20}), outputs
			cfg.Executors = []jobs.Executor{&idle{ipctest.Fake{Label: "idle"}}}
			cfg.Log, cfg.Meter = zerolog.Nop(), meter
			s := serve.NewService(cfg)
			out := &collected{}
			ctx := context.Background()
			err := (&serve.Stdio{In: io.NopCloser(bytes.NewReader(in.Data)), Out: out}).Serve(ctx, ctx, s.Answerer)
			s.Close()
			return out.b.Bytes(), err
		},
		Check: checkAnswers,
	}
}

// checkAnswers compares the answers of a connection with its requests.
func checkAnswers(in hammer.Input, answers []byte, refused error) error {
	asked := map[any]int{}
	for r := bytes.NewReader(in.Data); ; {
		body, err := wire.ReadFrame(r)
		if err != nil {
			break
		}
		env := wire.Envelope{}
		if enc, ok := wire.Sniff(body); ok {
			if o, err := wire.Decode(body, enc, wire.FrameLimits()); err == nil {
				tag, _ := o.Get("tag")
				env.Tag = wire.TagOf(tag)
			} else {
				env = wire.PeekEnvelope(body, enc)
			}
		}
		asked[env.Tag]++
	}
	if errors.Is(refused, wire.ErrFrameTooLarge) {
		asked[nil]++
	}
	ended := map[any]int{}
	for r := bytes.NewReader(answers); ; {
		body, err := wire.ReadFrame(r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the answers are cut off: %w", err)
		}
		enc, ok := wire.Sniff(body)
		if !ok {
			return fmt.Errorf("an answer is %.40q", body)
		}
		o, err := wire.Decode(body, enc, wire.FrameLimits())
		if err != nil {
			return fmt.Errorf("an answer cannot be read: %w", err)
		}
		env, fields, err := wire.Unwrap(o)
		if err != nil {
			return fmt.Errorf("an answer cannot be read: %w", err)
		}
		if e := wire.ReplyError(fields); e != nil {
			var known *fault.Error
			if errors.As(e, &known); known == nil ||
				!slices.ContainsFunc(fault.Public(), func(c fault.Row) bool { return c.Code == known.Public() }) ||
				known.Public() == fault.Internal {
				return fmt.Errorf("answered with %w", e)
			}
		}
		if asked[env.Tag] == 0 {
			return fmt.Errorf("an answer for the tag %v, which nobody sent", env.Tag)
		}
		if env.End {
			ended[env.Tag]++
		}
	}
	for tag, n := range ended {
		if n > asked[tag] {
			return fmt.Errorf("%d last answers for %d requests with the tag %v", n, asked[tag], tag)
		}
	}
	return nil
}
