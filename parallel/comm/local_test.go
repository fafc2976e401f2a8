package comm

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/engine"
)

// world runs f on every rank of a local group and returns the first error.
func world(size int, deadline time.Duration, f func(c Comm) error) error {
	ends, err := Local{}.Connect(Group{Name: "test", Deadline: deadline}, make([]engine.Ops, size))
	if err != nil {
		return err
	}
	errs := make(chan error, size)
	for _, c := range ends {
		go func() {
			var err error
			defer func() {
				if v := recover(); v != nil {
					err = v.(error)
				}
				errs <- err
				if err != nil {
					c.Abort(err)
				}
			}()
			err = f(c)
		}()
	}
	var first error
	for range ends {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

func vec(v ...float32) engine.Tensor { return engine.FromF32(v, len(v)) }

func TestAllToAllMovesEveryElementOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.IntRange(1, 6).Draw(t, "ranks")
		counts := make([][]int, p) // counts[from][to]
		for i := range counts {
			counts[i] = rapid.SliceOfN(rapid.IntRange(0, 5), p, p).Draw(t, "counts")
		}
		rounds := rapid.IntRange(1, 3).Draw(t, "rounds")
		err := world(p, time.Minute, func(c Comm) error {
			me := c.Rank()
			for round := range rounds {
				var src []float32
				var recv []int
				var want []float32
				for peer := range p {
					for k := range counts[me][peer] {
						src = append(src, float32(10000*round+1000*me+100*peer+k))
					}
					recv = append(recv, counts[peer][me])
					for k := range counts[peer][me] {
						want = append(want, float32(10000*round+1000*peer+100*me+k))
					}
				}
				dst := vec(make([]float32, len(want))...)
				c.AllToAll(dst, vec(src...), recv, counts[me])
				if got := dst.F32(); !slices.Equal(got, want) {
					t.Errorf("rank %d got %v, want %v", me, got, want)
				}
			}
			sent := int64(4 * rounds * (sum(counts[me]) - counts[me][me]))
			if c.Traffic().Bytes != sent {
				t.Errorf("rank %d counted %d bytes, sent %d", me, c.Traffic().Bytes, sent)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestReductionsAndGather(t *testing.T) {
	err := world(3, time.Minute, func(c Comm) error {
		r := float32(c.Rank())
		a := vec(r, 10*r, 1)
		c.AllReduce(a)
		if got := a.F32(); !slices.Equal(got, []float32{3, 30, 3}) {
			t.Errorf("AllReduce on rank %d = %v", c.Rank(), got)
		}
		counts := []int{1, 0, 2}
		part := vec(make([]float32, counts[c.Rank()])...)
		c.ReduceScatter(part, vec(r, r, r), counts)
		for _, v := range part.F32() {
			if v != 3 {
				t.Errorf("ReduceScatter on rank %d = %v", c.Rank(), part.F32())
			}
		}
		all := vec(0, 0, 0)
		mine := [][]float32{{7}, {}, {8, 9}}[c.Rank()]
		c.AllGather(all, vec(mine...), counts)
		if got := all.F32(); !slices.Equal(got, []float32{7, 8, 9}) {
			t.Errorf("AllGather on rank %d = %v", c.Rank(), got)
		}
		ring := vec(-1)
		c.SendRecv(ring, (c.Rank()+2)%3, vec(r), (c.Rank()+1)%3)
		if want := float32((c.Rank() + 2) % 3); ring.F32()[0] != want {
			t.Errorf("ring on rank %d = %v, want %v", c.Rank(), ring.F32()[0], want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A disagreement must name both call sites; nobody may hang or move bytes.
func TestLocalNamesBothSitesOfADisagreement(t *testing.T) {
	for name, f := range map[string]func(c Comm){
		"operation": func(c Comm) {
			if c.Rank() == 0 {
				c.AllReduce(vec(1))
			} else {
				c.AllGather(vec(1), vec(1), []int{1, 0})
			}
		},
		"counts": func(c Comm) {
			n := []int{1, 1}
			if c.Rank() == 1 {
				n = []int{2, 1}
			}
			c.AllToAll(vec(0, 0, 0), vec(1, 2, 3), n, []int{1, 1})
		},
		"size": func(c Comm) {
			c.SendRecv(vec(make([]float32, 1+c.Rank())...), 1-c.Rank(), vec(1), 1-c.Rank())
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := world(2, time.Minute, func(c Comm) error { f(c); return nil })
			if err == nil || strings.Count(err.Error(), "local_test.go")+strings.Count(err.Error(),
				"TestLocalNamesBothSites") < 2 {
				t.Fatalf("error %v does not name both call sites", err)
			}
		})
	}
}

func TestDeadlineAndAbortEndEveryWait(t *testing.T) {
	err := world(2, 50*time.Millisecond, func(c Comm) error {
		if c.Rank() == 1 {
			return nil // never comes
		}
		c.AllReduce(vec(1))
		return nil
	})
	var ce *Error
	if !errors.As(err, &ce) || !strings.Contains(err.Error(), "waited") || !strings.Contains(err.Error(), "AllReduce") {
		t.Fatalf("deadline gave %v", err)
	}
	boom := errors.New("boom")
	err = world(3, time.Minute, func(c Comm) error {
		if c.Rank() == 2 {
			return boom
		}
		c.SendRecv(vec(0), 2, vec(0), -1)
		return nil
	})
	if !errors.Is(err, boom) {
		t.Fatalf("abort gave %v, want %v first", err, boom)
	}
}

// TestOffersArriveInOrder: offers do not wait for their receiver while they have slots, whether memory or message came
// first, and arrive in the order of the posts; bytes are those of plain sends.
func TestOffersArriveInOrder(t *testing.T) {
	posted, offered := make(chan struct{}), make(chan struct{})
	err := world(2, time.Minute, func(c Comm) error {
		if c.Rank() == 0 {
			<-posted
			slots, v := []engine.Tensor{vec(0, 0), vec(0)}, vec(1, 2)
			c.Offer(slots[0], v, 1) // finds memory
			copy(v.F32(), []float32{9, 9})
			c.Offer(slots[1], vec(3), 1)
			c.Offer(slots[0].Slice(0, 0, 1), vec(4), 1) // waits in its slot
			close(offered)
			c.Offer(slots[1], vec(5), 1)
			c.Offer(slots[0].Slice(0, 1, 2), vec(6), 1)
			c.SendRecv(engine.Tensor{}, -1, vec(7), 1)
			if got := c.Traffic(); got.Bytes != 7*4 || got.Calls != 6 {
				t.Errorf("rank 0 counted %+v", got)
			}
			return nil
		}
		a, b := vec(0, 0), vec(0)
		got := vec(0, 0, 0, 0, 0, 0, 0)
		c.Post(a, 0)
		c.Post(b, 0)
		close(posted)
		<-offered
		c.Await(got.Slice(0, 0, 2), 0)
		c.Post(a.Slice(0, 0, 1), 0) // its offer is there
		c.Await(got.Slice(0, 2, 3), 0)
		c.Post(b, 0)
		c.Post(a.Slice(0, 1, 2), 0)
		for i := 3; i < 6; i++ {
			c.Await(got.Slice(0, i, i+1), 0)
		}
		c.SendRecv(got.Slice(0, 6, 7), 0, engine.Tensor{}, -1)
		if got := got.F32(); !slices.Equal(got, []float32{1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("rank 1 got %v", got)
		}
		if n := c.Traffic().Posted; n != 5 {
			t.Errorf("%d messages into posted memory, want 5", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestASlotIsNotOverwritten: an Offer of a slot whose message nobody has taken yet waits.
func TestASlotIsNotOverwritten(t *testing.T) {
	taken := make(chan struct{})
	err := world(2, time.Minute, func(c Comm) error {
		if c.Rank() == 0 {
			slot := vec(0)
			c.Offer(slot, vec(1), 1)
			c.Offer(slot, vec(2), 1)
			select {
			case <-taken:
			default:
				t.Error("the second offer did not wait for the first one")
			}
			return nil
		}
		a, got := vec(0), vec(0, 0)
		time.Sleep(20 * time.Millisecond)
		close(taken)
		for i := range 2 {
			c.Post(a, 0)
			c.Await(got.Slice(0, i, i+1), 0)
		}
		if !slices.Equal(got.F32(), []float32{1, 2}) {
			t.Errorf("got %v", got.F32())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPrefetchGathersBesideOtherWork: neither rank waits in Prefetch, and Fetched has all parts.
func TestPrefetchGathersBesideOtherWork(t *testing.T) {
	begun := make(chan struct{})
	err := world(2, time.Minute, func(c Comm) error {
		all := vec(0, 0, 0)
		mine := [][]float32{{7}, {8, 9}}[c.Rank()]
		if c.Rank() == 1 {
			<-begun // rank 0 has gone on without this one
		}
		c.Prefetch(all, vec(mine...), []int{1, 2})
		if c.Rank() == 0 {
			close(begun)
		}
		c.Fetched()
		if got := all.F32(); !slices.Equal(got, []float32{7, 8, 9}) {
			t.Errorf("rank %d got %v", c.Rank(), got)
		}
		if got := c.Traffic(); got.Calls != 1 || got.Bytes != int64(4*len(mine)) {
			t.Errorf("rank %d counted %+v", c.Rank(), got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMessagesThatDisagreeAreNamed: another size or type, a plain send or receive beside posted memory, an Await
// without a post.
func TestMessagesThatDisagreeAreNamed(t *testing.T) {
	offer := func(c Comm) { c.Offer(vec(0), vec(1), 1) }
	send := func(c Comm) { c.SendRecv(engine.Tensor{}, -1, vec(1), 1) }
	nothing := func(Comm) {}
	for name, c := range map[string]struct {
		send, receive func(c Comm)
		want          string
	}{
		"size": {offer, func(c Comm) { c.Post(vec(0, 0), 0); c.Await(vec(0, 0), 0) }, "receives f32[2]"},
		"type": {offer, func(c Comm) {
			c.Post(engine.NewTensor(engine.Buf{Host: make([]byte, 2)}, engine.BF16, 1), 0)
			c.Await(vec(0), 0)
		}, "receives bf16[1]"},
		"copy": {offer, func(c Comm) { c.Post(vec(0), 0); c.Await(vec(0, 0), 0) }, "receives f32[2]"},
		"receive": {
			nothing, func(c Comm) { c.Post(vec(0), 0); c.SendRecv(vec(0), 0, engine.Tensor{}, -1) },
			"has posted memory for it before",
		},
		"send":    {send, func(c Comm) { c.Post(vec(0), 0); c.Await(vec(0), 0) }, "that takes an Offer"},
		"nothing": {nothing, func(c Comm) { c.Await(vec(0), 0) }, "has posted no memory"},
	} {
		err := world(2, time.Minute, func(e Comm) error {
			if e.Rank() == 1 {
				c.receive(e)
			} else {
				c.send(e)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
