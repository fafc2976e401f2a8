package stream

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
)

// ends connects a group with one rank in each of two processes.
func ends(t *testing.T, all [2]*Mesh, g comm.Group) (out [2]comm.Comm) {
	t.Helper()
	g.Ranks, g.Processes = []int{0, 1}, []int{0, 1}
	for p, m := range all {
		ops := make([]engine.Ops, 2)
		ops[p] = ref.New()
		list, err := m.Connect(g, ops)
		if err != nil {
			t.Fatal(err)
		}
		out[p] = list[p]
	}
	return out
}

// received receives count messages of one number and returns an error unless they are first, first+1, and so on.
func received(c comm.Comm, from, first, count int) (err error) {
	defer func() {
		if bad, ok := recover().(error); ok {
			err = bad
		}
	}()
	got := engine.FromF32([]float32{-1}, 1)
	for i := first; i < first+count; i++ {
		c.SendRecv(got, from, engine.Tensor{}, -1)
		if v := got.F32()[0]; !(v == float32(i)) {
			return fmt.Errorf("message %d is %v", i, v)
		}
	}
	return nil
}

// TestMoreFramesThanTheRingHolds checks that frames that find no slot arrive through the socket in order, at any
// speeds.
func TestMoreFramesThanTheRingHolds(t *testing.T) {
	all := meet(t, [2]*engine.Ledger{})
	defer all[0].Close()
	defer all[1].Close()
	comms := ends(t, all, comm.Group{Team: 1, Name: "ring", Deadline: time.Minute})
	send := func(first, count int) {
		for i := first; i < first+count; i++ {
			comms[0].SendRecv(engine.Tensor{}, -1, engine.FromF32([]float32{float32(i)}, 1), 1)
		}
	}
	const ahead, rounds = 3 * slots, 40
	l := all[0].links[1]
	send(0, ahead) // no rank receives them yet
	if n := l.out.word(put).Load(); n < slots || l.wrote == 0 {
		t.Errorf("of %d frames %d went through a ring of %d and %d through the socket", ahead, n, slots, l.wrote)
	}
	done := make(chan error, 1)
	go func() { done <- received(comms[1], 0, 0, ahead+rounds*slots) }()
	for i := range rounds {
		send(ahead+i*slots, slots)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestNoWakeUpIsLost checks that of two ranks that answer each other, each asleep when the other one writes, none
// misses its wake-up, without the heartbeats that would wake them too.
func TestNoWakeUpIsLost(t *testing.T) {
	all := meet(t, [2]*engine.Ledger{})
	for p, m := range all {
		close(m.ended)
		defer func() { _ = m.run.Wait() }()
		defer func() { _ = m.links[1-p].conn.Close() }()
	}
	in := all[0].links[1].in
	in.word(asleep).Add(1)
	seen := in.word(bell).Load()
	in.wake() // between the look and the sleep
	if no := in.futex(futexWait, seen); no != unix.EAGAIN {
		t.Fatalf("who was woken before it slept sleeps: %v", no)
	}
	in.word(asleep).Store(0)
	comms := ends(t, all, comm.Group{Team: 1, Name: "ring", Deadline: 10 * time.Second})
	const rounds = 20_000
	done := make(chan error, 2)
	for p, c := range comms {
		go func() {
			defer func() {
				err, _ := recover().(error)
				done <- err
			}()
			v := engine.FromF32([]float32{0}, 1)
			for i := range rounds {
				if p == 0 {
					c.SendRecv(engine.Tensor{}, -1, v, 1)
				}
				c.SendRecv(v, 1-p, engine.Tensor{}, -1)
				if p == 1 {
					c.SendRecv(engine.Tensor{}, -1, v, 0)
				}
				for range i % 64 { // varies which rank is asleep
					runtime.Gosched()
				}
			}
		}()
	}
	for range comms {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestClosedWhileARankSleeps checks that a rank asleep on memory that its own process closes is woken, and that the
// memory is unmapped after it.
func TestClosedWhileARankSleeps(t *testing.T) {
	all := meet(t, [2]*engine.Ledger{})
	defer all[1].Close()
	comms := ends(t, all, comm.Group{Team: 1, Name: "ring", Deadline: time.Minute})
	in, done := all[0].links[1].in, make(chan error, 1)
	go func() { done <- received(comms[0], 1, 0, 1) }()
	for in.word(asleep).Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	all[0].Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "process 1 has gone") {
		t.Errorf("got %v, want that process 1 has gone", err)
	}
	if in.data != nil {
		t.Errorf("%d bytes stay mapped, held by %d", len(in.data), in.users)
	}
}

// TestMalformedRings checks that a process that breaks the format of its ring counts as gone for a waiting rank.
func TestMalformedRings(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(s *shared)
		want   string
	}{
		"more than there is room for": {func(s *shared) { s.word(put).Store(slots + 1) }, "65 frames in a ring of 64"},
		"a frame longer than its slot": {func(s *shared) {
			binary.LittleEndian.PutUint32(s.slot(0)[4:], slotBytes)
			s.word(put).Store(1)
		}, "of 256 bytes: not this protocol"},
		"a frame that ends early": {func(s *shared) { s.word(put).Store(1) }, "a frame in a ring: EOF"},
		"a payload that lies in the ring": {func(s *shared) {
			s.post((&frame{kind: plain, payload: make([]byte, 8), place: pieceHead}).head(), 0)
		}, "a payload of 8 bytes at 64 of"},
	} {
		t.Run(name, func(t *testing.T) {
			all := meet(t, [2]*engine.Ledger{})
			defer all[0].Close()
			defer all[1].Close()
			comms := ends(t, all, comm.Group{Team: 1, Name: "ring", Deadline: time.Minute})
			c.breaks(all[0].links[1].out)
			err := received(comms[1], 0, 0, 1)
			if err == nil || !strings.Contains(err.Error(), "process 0 has gone") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want that process 0 has gone: %s", err, c.want)
			}
		})
	}
}
