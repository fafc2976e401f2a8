package parallel

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/remote"
	"patchbay/parallel/request"
	"patchbay/parallel/scope"
)

// shared is a hosts whose processes several engines may share.
type shared struct {
	*hosts
	mu sync.Mutex
	at []*remote.Process
}

func (s *shared) On(places []int) Processes { return &some{s, places} }

func (s *shared) All() (out []process.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.at {
		if c != nil && c.Err() == nil {
			out = append(out, c)
		}
	}
	return out
}

func (s *shared) Start(ranks int) ([]process.Process, error) {
	var all []int
	for i := range ranks {
		all = append(all, i)
	}
	return s.On(all).Start(ranks)
}

// some is the Hosts of shared at some of its places.
type some struct {
	*shared
	places []int
}

func (s *some) Changed(int) bool { return false }

func (s *some) Start(int) (out []process.Process, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var clients []*remote.Process
	for _, p := range s.places {
		if s.at[p] == nil || s.at[p].Err() != nil {
			s.starts++
			if s.at[p], err = s.process(p); err != nil {
				return nil, err
			}
		}
		clients, out = append(clients, s.at[p]), append(out, s.at[p])
	}
	_, err = remote.Meet(clients, remote.ByBest, false)
	return out, err
}

// TestProcessesRunJobsBesideEachOther checks that waiting jobs get a process each, that a lone one gets them all,
// alternately, and that processes and their weights stay. A process that is killed fails only its own job, and the
// next job gets a new one.
func TestProcessesRunJobsBesideEachOther(t *testing.T) {
	const places = 4
	m, err := hardware.NewMachine("cpu")
	if err != nil {
		t.Fatal(err)
	}
	m.Link.Bandwidth, m.Link.Latency, m.Device.Handover, m.Device.Launch = 1e12, 1e-5, 1e-5, 0
	m.Device.GEMM, m.Device.Attention, m.Device.Traffic = 1e9, 1e9, 1e9
	h := &shared{hosts: &hosts{t: t, ops: testOps}, at: make([]*remote.Process, places)}
	e, err := NewPool(Config{NewOps: testOps, Machine: &m, Ranks: places, Schedule: ScheduleAuto, Processes: h})
	if err != nil {
		t.Fatal(err)
	}
	defer h.served.Wait()
	defer e.Close()
	of := func(seed int) *request.Request {
		r := besideRequest(t, seed)
		h.weights(r)
		return r
	}
	together := func(killed int) {
		var kill sync.Once
		var lost atomic.Int32
		turns, meet := make([]*Turn, places), meeting(t, places)
		for i := range turns {
			turns[i] = e.Enter()
		}
		var running sync.WaitGroup
		for i, turn := range turns {
			running.Go(func() {
				defer turn.Leave()
				got, err := turn.Sample(t.Context(), of(i), func(request.Progress) error {
					meet(i)
					if killed >= 0 {
						kill.Do(h.at[killed].Close)
					}
					return nil
				})
				if err != nil && scope.AsError(err).Code == fault.HostLost {
					lost.Add(1)
					return
				}
				if err != nil {
					t.Errorf("job %d: %v", i, err)
					return
				}
				differs(t, fmt.Sprintf("job %d", i), got, besideRequest(t, i))
			})
		}
		running.Wait()
		if n := lost.Load(); n != int32(min(1, killed+1)) {
			t.Errorf("with process %d killed %d jobs have lost theirs", killed, n)
		}
	}
	alone := func() {
		got, err := e.Sample(t.Context(), of(7), nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Stats.Traffic); n != places {
			t.Errorf("a job that is alone ran on %d processes by %s", n, got.Stats.Plan)
		}
		differs(t, "alone", got, besideRequest(t, 7))
	}
	together(-1)
	alone()
	together(-1)
	if h.starts != places {
		t.Errorf("%d processes were started for %d places", h.starts, places)
	}
	if list := e.Resident(); len(list) < places {
		t.Errorf("the processes say they hold %v", list)
	}
	together(2)
	alone()
	if h.starts != places+1 {
		t.Errorf("%d processes were started, want one more for the one that has gone", h.starts)
	}
	if _, err := e.Load(context.Background(), of(0).Model, "ulysses=2"); err != nil {
		t.Error(err)
	}
	alone() // two of the processes are connected without the others
	together(-1)
	e.Evict("")
	if list := e.Resident(); len(list) > 0 {
		t.Errorf("after everything was evicted there is %v", list)
	}
}
