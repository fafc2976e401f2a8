package client

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
)

// lossy is a Client that answers every request with the same replies. The first answer lacks reply number without.
type lossy struct {
	t       *testing.T
	replies []any
	without int
	asked   int
}

func (l *lossy) Close() error { return nil }

func (l *lossy) Ask(context.Context, string, string, any) (*Replies, error) {
	l.asked++
	r := newReplies(nil)
	for i, v := range l.replies {
		if l.asked == 1 && i == l.without {
			continue
		}
		data, err := wire.Encode(v, wire.Msgpack)
		if err != nil {
			l.t.Fatal(err)
		}
		o, err := wire.Decode(data, wire.Msgpack, wire.DefaultLimits())
		if err != nil {
			l.t.Fatal(err)
		}
		r.put(Reply{Fields: o}, nil)
	}
	r.put(Reply{}, io.EOF)
	return r, nil
}

// TestALostReplyIsAskedForAgain loses each reply of a job that made two files, one of them in pieces, while the
// connection stays. It checks that Lasting and Fetch ask again and get all files and the end, and that following once
// gives an error.
func TestALostReplyIsAskedForAgain(t *testing.T) { synctest.Test(t, aLostReplyIsAskedForAgain) }

func aLostReplyIsAskedForAgain(t *testing.T) {
	data := wiretest.Noise(300)
	ref := message.OutputRef{Node: "9", Ext: ".png", Bytes: len(data), CRC32C: message.Checksum(data)}
	refs := []message.OutputRef{ref, ref}
	output, chunk, job := message.ReplyOutput, message.ReplyChunk, "j"
	files := []any{
		message.Output{Type: output, Job: job, Ref: ref, Chunks: 2},
		message.Chunk{Type: chunk, Job: job, Data: data[:200]},
		message.Chunk{Type: chunk, Job: job, Offset: 200, Data: data[200:]},
		message.Output{Type: output, Job: job, Output: 1, Ref: ref, Data: data},
	}
	end := message.Event{
		V: 1, Type: message.EventSuccess, Job: job, Seq: 4, TS: 4, Data: map[string]any{"prompt_id": job, "outputs": refs},
	}
	done := message.Record{V: 1, Job: job, State: message.Done, Outputs: refs}
	whole := func(got []message.File) bool {
		return len(got) == 2 && reflect.DeepEqual(got[0].Data, data) && reflect.DeepEqual(got[1].Data, data)
	}
	ran := slices.Concat([]any{message.Receipt{V: 1, Type: message.ReplyAccepted, Job: job}}, files, []any{end})
	for i := range ran {
		lasts, once := &lossy{t: t, replies: ran, without: i}, &lossy{t: t, replies: ran, without: i}
		l := &Lasting{Dial: func() (Client, error) { return lasts, nil }, Say: t.Logf, Patience: receiptTime}
		ends := 0
		col := &Collector{Event: func(message.Event) { ends++ }}
		got, err := Follow(t.Context(), l, job, 1, true, col)
		if err != nil || got == nil || !whole(col.Files) || lasts.asked != 1+min(i, 1) || ends != 1 {
			t.Errorf("reply %d lost: end %v, %v, told %d times, %d files, asked %d times", i, got, err, ends, len(col.Files),
				lasts.asked)
		}
		col = &Collector{}
		got, err = Follow(t.Context(), once, job, 1, true, col)
		if i > 0 && i < len(ran)-1 && !errors.Is(err, errGap) || i == len(ran)-1 && got != nil {
			t.Errorf("reply %d lost, asked once: end %v, %v", i, got, err)
		}
	}
	for i := range files {
		replies := append([]any{message.RecordReply{Type: "record", Record: done}}, files...)
		c := &lossy{t: t, replies: replies, without: 1 + i}
		if got, err := Fetch(t.Context(), c, job); err != nil || !whole(got) || c.asked != 2 {
			t.Errorf("fetched without reply %d: %d files, %v, asked %d times", i, len(got), err, c.asked)
		}
		c = &lossy{t: t, replies: slices.Delete(replies, 1+i, 2+i), without: -1}
		if _, err := Fetch(t.Context(), c, job); !errors.Is(err, errGap) || c.asked != 3 {
			t.Errorf("fetched from who never sends reply %d: %v, asked %d times", i, err, c.asked)
		}
	}
	failed := message.Event{V: 1, Type: message.EventError, Job: job, Seq: 4, Error: fault.New(fault.NoModel, "x")}
	none := &lossy{t: t, replies: []any{message.RecordReply{Type: "record", Record: done}, failed}, without: -1}
	l := &Lasting{Dial: func() (Client, error) { return none, nil }, Say: t.Logf, Patience: receiptTime}
	if got, err := Follow(t.Context(), l, job, 1, true, &Collector{}); got == nil || err != nil || none.asked != 1 {
		t.Errorf("failed, its files dropped: end %v, %v, asked %d times", got, err, none.asked)
	}
	failed.Data = map[string]any{"outputs": refs}
	some := &lossy{t: t, replies: append(slices.Clone(files), failed), without: len(files) - 1}
	l = &Lasting{Dial: func() (Client, error) { return some, nil }, Say: t.Logf, Patience: receiptTime}
	col := &Collector{}
	if got, err := Follow(t.Context(), l, job, 1, true, col); got == nil || err != nil || !whole(col.Files) ||
		some.asked != 2 {
		t.Errorf("failed, a file lost on its way: end %v, %v, %d files, asked %d times", got, err, len(col.Files),
			some.asked)
	}
	bare := &lossy{t: t, replies: []any{message.RecordReply{Type: "record", Record: done}, end}, without: -1}
	l = &Lasting{Dial: func() (Client, error) { return bare, nil }, Say: t.Logf, Patience: receiptTime}
	if got, err := Follow(t.Context(), l, job, 1, false, &Collector{}); got == nil || err != nil || bare.asked != 1 {
		t.Errorf("followed without files: end %v, %v, asked %d times", got, err, bare.asked)
	}
}
