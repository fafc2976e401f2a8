package client

import (
	"cmp"
	"context"
	"slices"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// gatherQuiet is how long askAll waits for further daemons after an answer.
const gatherQuiet = 150 * time.Millisecond

// AllStats returns the stats of the daemons behind a connection, by name: all on a NATS server, the one on a socket.
func AllStats(ctx context.Context, c Client) ([]message.Stats, error) {
	out, err := askAll[message.Stats](ctx, c, message.VerbStats, nil)
	slices.SortFunc(out, func(a, b message.Stats) int { return cmp.Compare(a.Daemon, b.Daemon) })
	return out, err
}

// Pause lets the waiting jobs of the daemons behind a connection stay where they are, or go on.
func Pause(ctx context.Context, c Client, paused bool) ([]message.PauseReply, error) {
	out, err := askAll[message.PauseReply](ctx, c, message.VerbPause, message.PauseRequest{Paused: paused})
	slices.SortFunc(out, func(a, b message.PauseReply) int { return cmp.Compare(a.Daemon, b.Daemon) })
	return out, err
}

// askAll returns what the daemons behind a connection answer: all on a NATS server, the one on a socket.
func askAll[T any](ctx context.Context, c Client, verb string, body any) ([]T, error) {
	nc, ok := c.(*NATSClient)
	if !ok {
		out := make([]T, 1)
		if err := AskOne(ctx, c, verb, "", body, &out[0]); err != nil {
			return nil, err
		}
		return out, nil
	}
	r, err := nc.ask(verb, "", body, true)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []T
	var quiet *time.Timer
	wait, stop := context.WithCancel(ctx)
	defer stop()
	for {
		o, err := r.Next(wait)
		if err != nil && len(out) > 0 && ctx.Err() == nil {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var one T
		if err := wire.BindReply(o, &one); err != nil {
			return nil, err
		}
		out = append(out, one)
		if quiet == nil { // the first may take its time, the others come soon or not at all
			quiet = time.AfterFunc(gatherQuiet, stop)
			defer quiet.Stop()
		}
		quiet.Reset(gatherQuiet)
	}
}

// LimitsOf returns the limits that a daemon sets for its clients.
func LimitsOf(ctx context.Context, c Client) (message.LimitsReply, error) {
	var out struct {
		Limits message.LimitsReply `json:"limits"`
	}
	err := AskOne(ctx, c, message.VerbDescribe, "", message.DescribeRequest{Limits: true}, &out)
	return out.Limits, err
}
