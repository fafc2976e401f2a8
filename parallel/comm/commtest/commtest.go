// Package commtest checks that a comm.Transport keeps what package comm promises: every transport passes the same
// suite. Only tests import it.
package commtest

import (
	"fmt"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

// Rig is a transport under test and the Ops of its ranks.
type Rig struct {
	Transport comm.Transport
	// Ops returns Ops for a group of that many ranks, and a function that releases them.
	Ops func(ranks int) (ops []engine.Ops, close func() error, err error)
	// Late says that the host never waits for a peer: disagreements and aborts are errors of the next wait for
	// results, and there are no deadlines.
	Late bool
	// Texts says that causes cross process boundaries, where only their text survives.
	Texts bool
	// Trusting says that the transport does not detect calls that disagree: their ranks wait until an abort.
	Trusting bool
	// Draws bounds the number of random exchanges where connecting groups takes long. 0: no bound.
	Draws int
}

// Run checks a transport.
func Run(t *testing.T, rig Rig) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, rig Rig)
	}{
		{"AllToAll", allToAll},
		{"AllGather", allGather},
		{"ReductionsInRankOrder", reductions},
		{"LongReductions", longReductions},
		{"SendRecv", sendRecv},
		{"OrderedWithOps", ordered},
		{"OffersInOrder", offers},
		{"AwaitWaits", awaits},
		{"SlotsAreNotOverwritten", slots},
		{"PostsAreReadBeforeTheyAreFilledAgain", posts},
		{"Prefetch", prefetch},
		{"Traffic", traffic},
		{"Disagreements", disagreements},
		{"MessagesThatDisagree", messages},
		{"DeadlineAndAbort", deadline},
		{"FirstCauseStays", firstCause},
	} {
		if finds := c.name == "Disagreements" || c.name == "MessagesThatDisagree"; finds && rig.Trusting {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.run(t, rig) })
	}
}

// member is one rank of a test.
type member struct {
	comm.Comm
	ops  engine.Ops
	t    testing.TB
	bufs []engine.Buf
}

// errorer can be failed: a testing.T or a rapid.T.
type errorer interface {
	Errorf(format string, args ...any)
}

// world runs f on every rank of a group and returns the first error. It frees the ranks' memory when all are done.
func world(t testing.TB, rig Rig, size int, deadline time.Duration, f func(m *member) error) error {
	ops, end, err := rig.Ops(size)
	if err != nil {
		return err
	}
	g := comm.Group{Name: "test", Deadline: deadline, Ranks: make([]int, size), Pipe: true}
	for r := range g.Ranks {
		g.Ranks[r] = r
	}
	ends, err := rig.Transport.Connect(g, ops)
	if err != nil {
		return err
	}
	members := make([]*member, size)
	errs := make(chan error, size)
	for r, c := range ends {
		m := &member{Comm: c, ops: ops[r], t: t}
		members[r] = m
		go func() {
			err := recovered(func() error {
				if err := f(m); err != nil {
					return err
				}
				return m.ops.Sync()
			})
			if err != nil {
				m.Abort(err)
			}
			errs <- err
		}()
	}
	var first error
	for range members {
		if err := <-errs; first == nil {
			first = err
		}
	}
	for _, m := range members {
		_ = m.ops.Sync()
	}
	for _, m := range members {
		for _, b := range m.bufs {
			m.ops.Free(b)
		}
	}
	if err := end(); err != nil && first == nil {
		first = err
	}
	return first
}

// recovered returns the panic of a Comm in f as an error.
func recovered(f func() error) (err error) {
	defer func() {
		v := recover()
		if e, ok := v.(*comm.Error); ok {
			err = e
		} else if v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return f()
}

// empty returns memory for n elements, filled with NaN unless the type is f64.
func (m *member) empty(d engine.DType, n int) engine.Tensor {
	buf, err := m.ops.Alloc(max(1, n) * d.Size())
	if err != nil {
		m.t.Error(err)
		panic(&comm.Error{Text: "no memory", Cause: err})
	}
	m.bufs = append(m.bufs, buf)
	t := engine.NewTensor(buf, d, n)
	if n > 0 && d != engine.F64 {
		m.ops.Fill(t, nan())
	}
	return t
}

// vec returns an f32 tensor of these values.
func (m *member) vec(v ...float32) engine.Tensor { return m.as(engine.F32, v...) }

func (m *member) as(d engine.DType, v ...float32) engine.Tensor {
	t := m.empty(d, len(v))
	if len(v) > 0 {
		m.ops.Upload(t, v)
	}
	return t
}

// none returns memory for n f32, filled with NaN.
func (m *member) none(n int) engine.Tensor { return m.empty(engine.F32, n) }

func (m *member) read(t engine.Tensor) []float32 {
	out := make([]float32, t.Len())
	if len(out) == 0 {
		return out
	}
	if err := m.ops.Download(out, t).Wait(); err != nil {
		panic(&comm.Error{Text: "download", Cause: err})
	}
	return out
}

// want reports an error unless t holds these values.
func (m *member) want(e errorer, what string, t engine.Tensor, want ...float32) {
	got := m.read(t)
	if len(got) != len(want) {
		e.Errorf("%s on rank %d: %d values, want %d", what, m.Rank(), len(got), len(want))
		return
	}
	for i := range want {
		if got[i] != want[i] { // NaN never equals
			e.Errorf("%s on rank %d: element %d of %d is %g, want %g", what, m.Rank(), i, len(want), got[i], want[i])
			return
		}
	}
}
