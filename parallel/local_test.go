package parallel

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
	ends := NewLocal("test", size, deadline)
	g := NewGroup(func(err error) { ends[0].Abort(err) })
	for _, c := range ends {
		g.Go("rank", func() error { return f(c) })
	}
	return g.Wait()
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
		b := vec(r)
		c.Broadcast(b, 2)
		if b.F32()[0] != 2 {
			t.Errorf("Broadcast on rank %d = %v", c.Rank(), b.F32())
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
				c.Broadcast(vec(1), 0)
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
			if err == nil || strings.Count(err.Error(), "local_test.go")+strings.Count(err.Error(), "TestLocalNamesBothSites") < 2 {
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
	var ce *CommError
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

// TestPostedMemoryIsFilledInOrder: sends that find posted memory do not wait for the receiver, whether memory or sender came first, and fill it in the
// order of the posts; bytes are those of plain sends.
func TestPostedMemoryIsFilledInOrder(t *testing.T) {
	first, sent := make(chan struct{}), make(chan struct{})
	err := world(2, time.Minute, func(c Comm) error {
		if c.Rank() == 0 {
			<-first
			c.SendRecv(engine.Tensor{}, -1, vec(1, 2), 1)
			c.SendRecv(engine.Tensor{}, -1, vec(3), 1) // both return although rank 1 does nothing
			close(sent)
			c.SendRecv(engine.Tensor{}, -1, vec(4), 1) // comes before its memory
			c.SendRecv(engine.Tensor{}, -1, vec(5), 1) // has none
			if got := c.Traffic(); got.Bytes != 5*4 || got.Calls != 4 {
				t.Errorf("rank 0 counted %+v", got)
			}
			return nil
		}
		a, b, d, e := vec(0, 0), vec(0), vec(0), vec(0)
		c.Post(a, 0)
		c.Post(b, 0)
		close(first)
		<-sent
		time.Sleep(time.Millisecond)
		c.Post(d, 0)
		for range 3 {
			c.Await(0)
		}
		c.SendRecv(e, 0, engine.Tensor{}, -1)
		if got := slices.Concat(a.F32(), b.F32(), d.F32(), e.F32()); !slices.Equal(got, []float32{1, 2, 3, 4, 5}) {
			t.Errorf("rank 1 got %v", got)
		}
		if n := c.Traffic().Posted; n != 3 {
			t.Errorf("%d messages into posted memory, want 3", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPostsThatDisagreeAreNamed: another size, a receive beside posted memory, an Await without a post.
func TestPostsThatDisagreeAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		receive func(c Comm)
		want    string
	}{
		"size":    {func(c Comm) { c.Post(vec(0, 0), 0); c.Await(0) }, "has posted"},
		"receive": {func(c Comm) { c.Post(vec(0), 0); c.SendRecv(vec(0), 0, engine.Tensor{}, -1) }, "has posted memory for it before"},
		"nothing": {func(c Comm) { c.Await(0) }, "has posted no memory"},
	} {
		err := world(2, time.Minute, func(e Comm) error {
			if e.Rank() == 1 {
				c.receive(e)
			} else if name == "size" {
				e.SendRecv(engine.Tensor{}, -1, vec(1), 1)
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
