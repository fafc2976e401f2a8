package jobs

import (
	"bytes"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// TestReuseOutlivesTheDaemon answers a job with the files of one from an earlier life of the daemon, and reads the
// answer in a third life: the job that never ran is in the store with its files and one end.
func TestReuseOutlivesTheDaemon(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		e := jetstreamServer(t, false)
		out := t.TempDir()
		sc := OutputsConfig{Stage: out + "/.stage", Output: out, Keep: true}
		ctx := wiretest.Context(t)
		life := func() (Dispatcher, func()) {
			t.Helper()
			j, end := durable(t, e, "a")
			outputs, err := NewOutputs(sc)
			if err != nil {
				t.Fatal(err)
			}
			d := Dispatcher{Jobs: j, Outputs: outputs, Log: zerolog.Nop()}
			if err := d.Recover(ctx); err != nil {
				t.Fatal(err)
			}
			return d, end
		}
		d, end := life()
		mustCreate(t, d.Jobs, &message.RunRequest{ID: "p"})
		rec, _, _, err := d.Jobs.Take(ctx, "w")
		if err != nil {
			t.Fatal(err)
		}
		file := message.FileOf(messagetest.Picture("1", 1000))
		if err := d.Outputs.Stage("p", []message.File{file}); err != nil {
			t.Fatal(err)
		}
		d.finish(rec, &Outcome{Files: []message.File{file}}, nil, nil)
		end()

		d, end = life()
		answer := func(id, hash string) bool {
			t.Helper()
			_, did, err := d.Jobs.Reuse(ctx, d.Outputs, &message.RunRequest{ID: id, Reuse: true}, hash, []string{"1"})
			if err != nil {
				t.Fatal(err)
			}
			return did
		}
		if answer("other", "another hash") || answer("p", "hash") || !answer("q", "hash") {
			t.Error("q alone has the content of p and another id")
		}
		end()

		d, _ = life()
		rec, err = d.Jobs.Get("q")
		if err != nil || rec.State != message.Done || rec.Reused != "p" || len(rec.Outputs) != 1 {
			t.Errorf("got %+v, %v", rec, err)
		}
		if data, err := d.Outputs.Read("q", 0); err != nil || !bytes.Equal(data, file.Data) {
			t.Errorf("the file cannot be read: %v", err)
		}
		checkTerminal(t, e, "q", message.EventSuccess)

		// another daemon on the same server does not have the file
		j, _ := durable(t, e, "b")
		outputs, err := NewOutputs(OutputsConfig{Output: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if _, did, err := j.Reuse(ctx, outputs, &message.RunRequest{ID: "r"}, "hash", nil); did || err != nil {
			t.Errorf("another daemon answers it too: %v, %v", did, err)
		}
	})
}
