package client

import (
	"context"
	"fmt"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// FollowSample reads the replies to sample and returns the one that is "done"; replies that report progress go to emit,
// with their holds. A run that failed or was cancelled is returned as its *fault.Error, one that is silent for silence
// (0: no limit) as ErrSilent: its result belongs to the connection and cannot be had on another one.
func FollowSample(ctx context.Context, replies *Replies, silence time.Duration,
	emit func(*message.SampleReply),
) (*message.SampleReply, error) {
	var last *message.SampleReply
	for {
		got, err := replies.within(ctx, silence)
		if last != nil && err != nil {
			return last, nil
		}
		if err != nil {
			return nil, err
		}
		m, err := sampleReplyOf(got.Fields)
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			got.Hold.Release()
			return nil, err
		}
		m.Hold = got.Hold
		switch m.Type {
		case message.SampleDone:
			last = m
		case message.SampleProgress:
			emit(m)
		}
	}
}

func sampleReplyOf(o *pyjson.Object) (*message.SampleReply, error) {
	m := &message.SampleReply{}
	err := wire.BindReply(o, m)
	if err == nil && m.Type == "" {
		err = fmt.Errorf("read reply: a message of a run without a type")
	}
	return m, err
}

// Free releases handles or models; if none are named, everything.
func Free(ctx context.Context, c Client, req *message.FreeRequest) (message.FreeReply, error) {
	var out message.FreeReply
	err := AskOne(ctx, c, message.VerbFree, "", req, &out)
	return out, err
}
