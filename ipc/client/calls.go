package client

import (
	"context"
	"errors"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// The functions here are the verbs as calls on a Client.

// Submit queues a job.
func Submit(ctx context.Context, c Client, req *message.RunRequest) (message.Receipt, error) {
	var out message.Receipt
	err := AskOne(ctx, c, message.VerbSubmit, "", req, &out)
	return out, err
}

// Run starts a job, feeds col until it ends and returns the terminal event. A Lasting client continues after it loses
// the connection; any other returns ErrSilent, ErrNoDaemon or the error of its connection.
func Run(ctx context.Context, c Client, req *message.RunRequest, col *Collector) (*message.Event, error) {
	if l, ok := c.(*Lasting); ok {
		return l.run(ctx, req, col)
	}
	return collect(ctx, c, message.VerbRun, "", req, col)
}

// collect feeds col with the replies to a request.
func collect(ctx context.Context, c Client, verb, job string, body any, col *Collector) (*message.Event, error) {
	r, err := c.Ask(ctx, verb, job, body)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	q, asks := body.(message.JobRequest)
	col.unasked = asks && !q.Outputs
	return col.Run(ctx, r)
}

// Status returns the record of a job.
func Status(ctx context.Context, c Client, job string) (message.Record, error) {
	var out message.RecordReply
	err := AskOne(ctx, c, message.VerbStatus, job, nil, &out)
	return out.Record, err
}

// Follow feeds col with the events of a job, starting at sequence number from, and with its files if files is set,
// until the job ends.
func Follow(ctx context.Context, c Client, job string, from uint64, files bool,
	col *Collector,
) (*message.Event, error) {
	ask := message.JobRequest{Job: job, Follow: true, From: from, Outputs: files}
	if l, ok := c.(*Lasting); ok {
		return l.follow(ctx, ask, col)
	}
	return collect(ctx, c, message.VerbStatus, job, ask, col)
}

// Fetch returns the files of a job that is done. It makes up to three attempts if replies get lost.
func Fetch(ctx context.Context, c Client, job string) ([]message.File, error) {
	for tries := 1; ; tries++ {
		col := &Collector{}
		_, err := collect(ctx, c, message.VerbStatus, job, message.JobRequest{Job: job, Outputs: true}, col)
		if tries == 3 || !errors.Is(err, errGap) {
			return col.Files, err
		}
	}
}

// Cancel cancels a job and returns its state; the bool is false if the job had already ended.
func Cancel(ctx context.Context, c Client, job string) (bool, message.State, error) {
	var out message.CancelReply
	err := AskOne(ctx, c, message.VerbCancel, job, nil, &out)
	return out.Cancelled, out.State, err
}

// Retry queues a job again that failed, was cancelled or expired.
func Retry(ctx context.Context, c Client, job string) error {
	var out message.RetryReply
	return AskOne(ctx, c, message.VerbRetry, job, nil, &out)
}

// Move moves a waiting job ahead of all others, or behind those of a priority.
func Move(ctx context.Context, c Client, job string, to message.MoveRequest) (out message.MoveReply, err error) {
	to.Job = job
	return out, AskOne(ctx, c, message.VerbMove, job, to, &out)
}

// Delete removes the files of a job that has ended.
func Delete(ctx context.Context, c Client, job string) (out message.DeleteReply, err error) {
	return out, AskOne(ctx, c, message.VerbDelete, job, nil, &out)
}

// List returns the newest jobs in a state ("": all) and how many there are in each.
func List(ctx context.Context, c Client, state message.State, limit int) ([]message.Record,
	map[message.State]int, error,
) {
	var out message.JobsReply
	err := AskOne(ctx, c, message.VerbJobs, "", message.JobsRequest{State: string(state), Limit: limit}, &out)
	return out.Jobs, out.Counts, err
}

// Describe returns object_info entries by class; "" asks for all.
func Describe(ctx context.Context, c Client, class string) (*pyjson.Object, error) {
	var out struct {
		Info *pyjson.Object `json:"object_info"`
	}
	err := AskOne(ctx, c, message.VerbDescribe, "", message.DescribeRequest{Class: class}, &out)
	return out.Info, err
}

// Models returns the model files by kind of folder.
func Models(ctx context.Context, c Client) (map[string][]string, error) {
	var out struct {
		Models map[string][]string `json:"models"`
	}
	err := AskOne(ctx, c, message.VerbModels, "", nil, &out)
	return out.Models, err
}

// AskOne sends a request that is answered once and binds the answer to out.
func AskOne(ctx context.Context, c Client, verb, job string, body, out any) error {
	r, err := c.Ask(ctx, verb, job, body)
	if err != nil {
		return err
	}
	o, err := r.One(ctx)
	if err != nil {
		return err
	}
	return wire.BindReply(o, out)
}
