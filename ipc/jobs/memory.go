package jobs

import (
	"context"
	"errors"
	"sync"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// memory is the Store of jobs that end with their process. It has no followers but its table, which knows all changes.
type memory struct {
	mu   sync.Mutex
	rev  uint64
	jobs map[string]kept
}

// kept is a job in memory. Its request is dropped when it ends.
type kept struct {
	rec message.Record
	req *message.RunRequest
}

func (m *memory) open(context.Context, follower) error { return nil }

func (m *memory) keep(_ context.Context, rec message.Record, req *message.RunRequest) (message.Record, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.jobs[rec.Job]; ok {
		return old.rec.Clone(), false, nil
	}
	return m.put(rec, req), true, nil
}

// put writes a record at the next revision. The caller must hold m.mu.
func (m *memory) put(rec message.Record, req *message.RunRequest) message.Record {
	if m.jobs == nil {
		m.jobs = map[string]kept{}
	}
	m.rev++
	rec.Rev = m.rev
	if rec.State.Final() {
		req = nil
	}
	m.jobs[rec.Job] = kept{rec.Clone(), req}
	return rec
}

func (m *memory) swap(_ context.Context, rec message.Record) (message.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.jobs[rec.Job]
	if !ok || old.rec.Rev != rec.Rev {
		return message.Record{}, errConflict
	}
	return m.put(rec, old.req), nil
}

func (m *memory) get(_ context.Context, job string) (message.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.jobs[job]
	if !ok {
		return message.Record{}, ErrNoJob
	}
	return k.rec.Clone(), nil
}

func (m *memory) request(_ context.Context, rec message.Record) (*message.RunRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.jobs[rec.Job]; k.req != nil {
		return k.req, nil
	}
	return nil, errors.Join(fault.New(fault.Expired,
		"the jobs of this daemon are kept in memory only, without what they asked for; submit the job again"), errGone)
}

func (m *memory) log(context.Context, string) ([]message.Event, error) { return nil, nil }
func (m *memory) told(context.Context, message.Record) (uint64, error) { return 0, nil }
func (m *memory) bury(context.Context, message.Record) error           { return nil }

func (m *memory) tend(_ context.Context, _, forgotten []message.Record) []message.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rec := range forgotten {
		if m.jobs[rec.Job].rec.Rev == rec.Rev {
			delete(m.jobs, rec.Job)
		}
	}
	return nil
}
