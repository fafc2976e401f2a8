package client

import (
	"cmp"
	"context"
	"slices"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// gatherQuiet is how long AllStats waits for further daemons after an answer.
const gatherQuiet = 150 * time.Millisecond

// AllStats returns the stats of the daemons behind a connection, by name: all on a NATS server, the one on a socket.
func AllStats(ctx context.Context, c Client) ([]message.Stats, error) {
	nc, ok := c.(*NATSClient)
	if !ok {
		var s message.Stats
		if err := AskOne(ctx, c, message.VerbStats, "", nil, &s); err != nil {
			return nil, err
		}
		return []message.Stats{s}, nil
	}
	r, err := nc.ask(message.VerbStats, "", nil, true)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []message.Stats
	var quiet *time.Timer
	wait, stop := context.WithCancel(ctx)
	defer stop()
	for {
		o, err := r.Next(wait)
		if err != nil && len(out) > 0 && ctx.Err() == nil {
			slices.SortFunc(out, func(a, b message.Stats) int { return cmp.Compare(a.Daemon, b.Daemon) })
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var s message.Stats
		if err := wire.BindReply(o, &s); err != nil {
			return nil, err
		}
		out = append(out, s)
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
