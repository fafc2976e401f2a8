package jobs

import (
	"context"
	"testing"

	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
)

// dropping is a store whose table drops the request of a job when the job is taken, as it does when it hears of an end.
type dropping struct {
	memory
	j *Table
}

func (s *dropping) swap(ctx context.Context, rec message.Record) (message.Record, error) {
	rec, err := s.memory.swap(ctx, rec)
	s.j.mu.Lock()
	defer s.j.mu.Unlock()
	s.j.jobs[rec.Job].drop()
	return rec, err
}

// TestTakenJobsHaveTheirRequest checks that a run has its request although the table drops it as the run begins.
func TestTakenJobsHaveTheirRequest(t *testing.T) {
	t.Parallel()
	store := &dropping{}
	j := New(Config{Store: store})
	store.j = j
	mustCreate(t, j, &message.RunRequest{ID: "p"})
	rec, req, _, err := j.Take(wiretest.Context(t), "w")
	if err != nil || rec.Attempt != 1 || req == nil || req.ID != "p" {
		t.Errorf("got attempt %d with request %+v, %v", rec.Attempt, req, err)
	}
}
