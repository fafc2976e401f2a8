package jobs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

// TestDamagedRecords flips bytes of the records' file, as a bad disk does, and removes its index, as after a crash. The
// server silently drops what it cannot read, and the daemon must name every job that is lost.
func TestDamagedRecords(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		e := bubble.Start(t, natsserver.Inside(dir))
		j, end := durable(t, e, "a")
		for i := range 13 {
			mustCreate(t, j, &message.RunRequest{ID: fmt.Sprint("j", i), Client: strings.Repeat("x", 500)})
		}
		ctx := wiretest.Context(t)
		for i := range 13 {
			eventually(ctx, t, "the events are there", func() bool {
				last, err := storeOf(j).last(ctx, fmt.Sprint("j", i), message.EventQueued)
				return err == nil && last != nil
			})
		}
		for _, id := range []string{"j0", "j1", "j3", "j4"} { // done: only the record and its events are kept
			rec, _, _, err := j.takeThis(ctx, id, "w")
			if err == nil {
				rec, err = force(ctx, j, id, rec.Rev, func(r *message.Record) { r.State = message.Done })
			}
			if err != nil {
				t.Fatal(err)
			}
			eventually(ctx, t, "the end is told", func() bool {
				number, err := storeOf(j).told(ctx, rec)
				return err == nil && number > 0
			})
		}
		forgotten, err := j.Get("j0")
		if err != nil {
			t.Fatal(err)
		}
		if err := storeOf(j).drop(ctx, &forgotten); err != nil { // and this one on purpose
			t.Fatal(err)
		}
		end()
		e.Close()
		msgs := filepath.Join(dir, "jetstream", "$G", "streams", "KV_"+message.JobBucket, "msgs")
		blocks, err := filepath.Glob(filepath.Join(msgs, "*.blk"))
		if err != nil || len(blocks) != 1 {
			t.Fatalf("blocks of records: %v, %v", blocks, err)
		}
		data, err := os.ReadFile(blocks[0])
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.Index(data, []byte(`"job":"j3"`))
		for i := at; i < at+4; i++ {
			data[i] ^= 0x55
		}
		if err := os.WriteFile(blocks[0], data, 0o600); err != nil || at < 0 {
			t.Fatal(err, at)
		}
		if err := os.Remove(filepath.Join(msgs, "index.db")); err != nil {
			t.Fatal(err)
		}
		e.Start()
		var log bytes.Buffer
		l, err := OpenJetStream(ctx, JetStreamConfig{
			URL: e.URL, InProcess: e, Owner: "a", Log: zerolog.New(&log),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		j = New(l.On(Config{}))
		if err := j.Open(ctx); err != nil {
			t.Fatal(err)
		}
		_, counts := j.List("", 0)
		left := 0
		for _, n := range counts {
			left += n
		}
		lost := l.Space().Lost
		space := l.Space()
		if left == 13 || lost != 13-left || !slices.Contains(space.LostJobs, "j3") || slices.Contains(space.LostJobs, "j0") {
			t.Errorf("%d of 13 records are left, and %d jobs are said to be lost: %v", left, lost, space.LostJobs)
		}
		t.Logf("the server reports %v", space.Damaged)
		if len(space.Damaged) != 1 || !strings.HasPrefix(space.Damaged[0], "KV_"+message.JobBucket+": ") {
			t.Errorf("the server reports %v, want losses of the records only", space.Damaged)
		}
		if text := log.String(); !strings.Contains(text, `"j3"`) || !strings.Contains(text, fmt.Sprintf(`"jobs":%d`, lost)) {
			t.Errorf("the log does not name the job: %s", text)
		}
	})
}
