package commtest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

func sendRecv(t *testing.T, rig Rig) {
	err := world(t, rig, 3, time.Minute, func(m *member) error {
		r := m.Rank()
		ring := m.vec(-1)
		m.SendRecv(ring, (r+2)%3, m.vec(float32(r)), (r+1)%3)
		m.want(t, "ring", ring, float32((r+2)%3))
		down := m.vec(-1)
		from, to := r-1, r+1
		if to == 3 {
			to = -1
		}
		m.SendRecv(down, from, m.vec(float32(10+r)), to)
		m.want(t, "line", down, []float32{-1, 10, 11}[r])
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// offers checks that an Offer with a free slot does not wait for its receiver, whether the Post or the Offer comes
// first, that messages arrive in the order of the posts, and that traffic counts the bytes of plain sends.
func offers(t *testing.T, rig Rig) {
	posted, offered := make(chan struct{}), make(chan struct{})
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		if m.Rank() == 0 {
			<-posted
			slots, v := []engine.Tensor{m.none(2), m.none(1)}, m.vec(1, 2)
			m.Offer(slots[0], v, 1) // its memory is posted
			m.ops.Upload(v, []float32{9, 9})
			m.Offer(slots[1], m.vec(3), 1)
			m.Offer(slots[0].Slice(0, 0, 1), m.vec(4), 1) // waits in its slot
			close(offered)
			m.Offer(slots[1], m.vec(5), 1)
			m.Offer(slots[0].Slice(0, 1, 2), m.vec(6), 1)
			m.SendRecv(engine.Tensor{}, -1, m.vec(7), 1)
			if got := m.Traffic(); got.Bytes != 7*4 || got.Calls != 6 {
				t.Errorf("rank 0 counted %+v", got)
			}
			return nil
		}
		a, b, got := m.none(2), m.none(1), m.none(7)
		m.Post(a, 0)
		m.Post(b, 0)
		close(posted)
		<-offered
		m.Await(got.Slice(0, 0, 2), 0)
		m.Post(a.Slice(0, 0, 1), 0) // already offered
		m.Await(got.Slice(0, 2, 3), 0)
		m.Post(b, 0)
		m.Post(a.Slice(0, 1, 2), 0)
		for i := 3; i < 6; i++ {
			m.Await(got.Slice(0, i, i+1), 0)
		}
		m.SendRecv(got.Slice(0, 6, 7), 0, engine.Tensor{}, -1)
		m.want(t, "offers", got, 1, 2, 3, 4, 5, 6, 7)
		if n := m.Traffic().Posted; n != 5 {
			t.Errorf("%d messages into posted memory, want 5", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// awaits checks that what is read after Await is the message, even if it was sent long after the call.
func awaits(t *testing.T, rig Rig) {
	const n = 64
	asked, read := make(chan struct{}), make(chan struct{})
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		a, b := m.none(n), m.none(n)
		if m.Rank() == 0 {
			m.ops.Fill(a, 3)
			<-asked
			select { // a rank that does not wait has read by then
			case <-read:
			case <-time.After(300 * time.Millisecond):
			}
			m.Offer(b, a, 1)
			return nil
		}
		m.Post(a, 0)
		close(asked)
		m.Await(b, 0)
		m.want(t, "message", b, repeated(n, 3)...)
		close(read)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// slots checks that a message keeps its contents until it is received, even if its slot is offered again.
func slots(t *testing.T, rig Rig) {
	const n, rounds = 256, 8
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		value := func(i int) []float32 {
			v := make([]float32, n)
			for k := range v {
				v[k] = float32(i + 1)
			}
			return v
		}
		if m.Rank() == 0 {
			slot, src := m.none(n), m.none(n)
			for i := range rounds {
				m.ops.Fill(src, float32(i+1))
				m.Offer(slot, src, 1)
				m.ops.Fill(src, nan())
			}
			return nil
		}
		a, got := m.none(n), m.none(n*rounds)
		for i := range rounds {
			m.Post(a, 0)
			m.Await(got.Slice(0, i*n, (i+1)*n), 0)
		}
		for i := range rounds {
			m.want(t, "slot", got.Slice(0, i*n, (i+1)*n), value(i)...)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// posts checks that memory posted again is filled only after earlier readers are done with it.
func posts(t *testing.T, rig Rig) {
	const n, rounds = 256, 6
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		var a, b []engine.Tensor // allocated before any exchange: Alloc waits for the device
		for range rounds {
			a, b = append(a, m.none(n)), append(b, m.none(n))
		}
		if m.Rank() == 0 {
			for i := range rounds { // one slot each, so that only the receiver reuses memory
				m.ops.Fill(a[i], float32(i+1))
				m.Offer(b[i], a[i], 1)
			}
			return nil
		}
		slot := m.none(n)
		for i := range rounds {
			m.Post(slot, 0)
			m.Await(a[i], 0)
			m.ops.Add(b[i], a[i], slot) // a late reader of the slot
		}
		for i, y := range b {
			m.want(t, "posted memory", y, repeated(n, float32(2*(i+1)))...)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func repeated(n int, v float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// disagreements checks that calls which disagree end in an error that names both call sites, and do not hang.
func disagreements(t *testing.T, rig Rig) {
	for name, f := range map[string]func(m *member){
		"operation": func(m *member) {
			if m.Rank() == 0 {
				m.Run(comm.NewAllReduce(m.vec(1)))
			} else {
				m.Run(comm.NewAllGather(m.none(1), m.vec(1), []int{1, 0}))
			}
		},
		"counts": func(m *member) {
			n := []int{1, 1}
			if m.Rank() == 1 {
				n = []int{2, 1}
			}
			m.Run(comm.NewAllToAll(m.none(3), m.vec(1, 2, 3), n, []int{1, 1}))
		},
		"size": func(m *member) { m.SendRecv(m.none(1+m.Rank()), 1-m.Rank(), m.vec(1), 1-m.Rank()) },
	} {
		err := world(t, rig, 2, time.Minute, func(m *member) error { f(m); return nil })
		if err == nil || strings.Count(err.Error(), "commtest.disagreements") < 2 {
			t.Errorf("%s: error %v does not name both call sites", name, err)
		}
	}
}

// messages checks the errors for messages of another size or type, a plain send or receive where memory is posted, and
// an Await without a Post.
func messages(t *testing.T, rig Rig) {
	offer := func(m *member) { m.Offer(m.none(1), m.vec(1), 1) }
	send := func(m *member) { m.SendRecv(engine.Tensor{}, -1, m.vec(1), 1) }
	nothing := func(*member) {}
	for name, c := range map[string]struct {
		send, receive func(m *member)
		want          string
		early         bool // detected where the host waits for peers
	}{
		"size": {offer, func(m *member) { m.Post(m.none(2), 0); m.Await(m.none(2), 0) }, "receives f32[2]", false},
		"type": {
			offer, func(m *member) { m.Post(m.empty(engine.BF16, 1), 0); m.Await(m.none(1), 0) }, "receives bf16[1]", false,
		},
		"copy": {offer, func(m *member) { m.Post(m.none(1), 0); m.Await(m.none(2), 0) }, "receives f32[2]", false},
		"receive": {
			nothing, func(m *member) { m.Post(m.none(1), 0); m.SendRecv(m.none(1), 0, engine.Tensor{}, -1) },
			"has posted memory for it before", true,
		},
		"send":    {send, func(m *member) { m.Post(m.none(1), 0); m.Await(m.none(1), 0) }, "that takes an Offer", true},
		"nothing": {nothing, func(m *member) { m.Await(m.none(1), 0) }, "has posted no memory", false},
	} {
		if c.early && rig.Late {
			continue
		}
		err := world(t, rig, 2, time.Minute, func(m *member) error {
			if m.Rank() == 1 {
				c.receive(m)
			} else {
				c.send(m)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// deadline checks that a rank that does not arrive, or fails, ends the waits of the others.
func deadline(t *testing.T, rig Rig) {
	if !rig.Late {
		err := world(t, rig, 2, 50*time.Millisecond, func(m *member) error {
			if m.Rank() == 0 {
				m.Run(comm.NewAllReduce(m.vec(1))) // rank 1 never arrives
			}
			return nil
		})
		var ce *comm.Error
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), "waited") || !strings.Contains(err.Error(), "AllReduce") {
			t.Errorf("deadline gave %v", err)
		}
	}
	boom := errors.New("boom")
	err := world(t, rig, 3, time.Minute, func(m *member) error {
		if m.Rank() == 2 {
			return boom
		}
		m.SendRecv(m.none(1), 2, engine.Tensor{}, -1)
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "boom") { // causes are text between processes
		t.Errorf("abort gave %v, want %v first", err, boom)
	}
}

// firstCause checks that calls which wait or come later report the first cause of an abort, not a later one.
func firstCause(t *testing.T, rig Rig) {
	first := errors.New("first")
	for name, call := range map[string]func(m *member){
		"AllReduce": func(m *member) { m.Run(comm.NewAllReduce(m.vec(1))) },
		"SendRecv":  func(m *member) { m.SendRecv(m.none(1), 1-m.Rank(), m.vec(1), 1-m.Rank()) },
		"Await":     func(m *member) { m.Post(m.none(1), 1-m.Rank()); m.Await(m.none(1), 1-m.Rank()) },
	} {
		err := world(t, rig, 2, time.Minute, func(m *member) error {
			m.Abort(first)
			m.Abort(errors.New("echo"))
			call(m)
			return nil
		})
		var ce *comm.Error
		if !errors.As(err, &ce) || !errors.Is(err, first) && !rig.Texts || !strings.Contains(err.Error(), "first") ||
			strings.Contains(err.Error(), "echo") {
			t.Errorf("%s in an aborted group: got %v, want an Error caused by the first abort", name, err)
		}
	}
}
