package jobs

import (
	"context"
	"testing"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
)

// lasting is a store that keeps requests, so that jobs can be retried.
type lasting struct{ memory }

func (*lasting) request(_ context.Context, rec message.Record) (*message.RunRequest, error) {
	return &message.RunRequest{ID: rec.Job, Tied: true}, nil
}

// TestRevivedJobs checks that a retry unties a job, whose client has had its end, and that the table knows when it was:
// a daemon that stands in for a silent one must not cancel it for what was asked before.
func TestRevivedJobs(t *testing.T) {
	t.Parallel()
	j, ctx, began := New(Config{Store: &lasting{}}), wiretest.Context(t), time.Now()
	mustCreate(t, j, &message.RunRequest{ID: "p", Tied: true})
	if _, did, err := j.Cancel(ctx, "p"); !did || err != nil || j.Revived("p", began) {
		t.Fatalf("cancelled: %v, %v, revived %v", did, err, j.Revived("p", began))
	}
	asked := time.Now()
	rec, err := j.Retry(ctx, "p")
	if err != nil || rec.Tied {
		t.Errorf("after a retry the job is tied: %v, %v", rec.Tied, err)
	}
	if !j.Revived("p", asked) || j.Revived("p", time.Now()) || j.Revived("q", asked) {
		t.Errorf("revived since the cancel %v, since now %v, another job %v", j.Revived("p", asked),
			j.Revived("p", time.Now()), j.Revived("q", asked))
	}
}
