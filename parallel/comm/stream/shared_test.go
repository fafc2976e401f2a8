package stream

import (
	"fmt"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
)

// TestPayloadsInSharedMemory checks that payloads in shared memory arrive whole, that the memory is reused instead of
// growing with every exchange, and that payloads never received are freed with their team.
func TestPayloadsInSharedMemory(t *testing.T) {
	const n, rounds = 100_000, 50 // a payload is 400 kB
	all := meet(t, [2]*engine.Ledger{})
	defer all[0].Close()
	defer all[1].Close()
	connect := func(team uint64) (ends [2]comm.Comm) {
		for p, m := range all {
			ops := make([]engine.Ops, 2)
			ops[p] = ref.New()
			list, err := m.Connect(comm.Group{
				Team: team, Name: "ring", Ranks: []int{0, 1}, Processes: []int{0, 1}, Deadline: time.Minute,
			}, ops)
			if err != nil {
				t.Fatal(err)
			}
			ends[p] = list[p]
		}
		return ends
	}
	ends, done := connect(1), make(chan error, 2)
	for p := range ends {
		go func() {
			src, dst := make([]float32, n), make([]float32, 2*n)
			for round := range rounds {
				for i := range src {
					src[i] = float32(i + 1000*round + 7*p)
				}
				to := engine.FromF32(dst, 2*n)
				ends[p].Run(comm.NewAllGather(to, engine.FromF32(src, n), []int{n, n}))
				for i, v := range to.F32() {
					if want := float32(i%n + 1000*round + 7*(i/n)); !(v == want) {
						done <- fmt.Errorf("process %d, round %d: element %d is %v, want %v", p, round, i, v, want)
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range ends {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	out := all[0].links[1].out
	if out == nil || out.backed == 0 {
		t.Fatal("nothing went through shared memory")
	}
	if out.backed > 4*4*n {
		t.Errorf("%d bytes are backed after %d exchanges of %d: pieces do not come back", out.backed, rounds, 4*n)
	}
	value := func(v float32) engine.Tensor {
		b := make([]float32, n)
		for i := range b {
			b[i] = v
		}
		return engine.FromF32(b, n)
	}
	send := func(e comm.Comm) {
		for i := range 5 {
			e.SendRecv(engine.Tensor{}, -1, value(float32(i)), 1)
		}
	}
	send(ends[0]) // never received
	go func() { ends[0].Run(comm.NewAllReduce(value(0))); done <- nil }()
	ends[1].Run(comm.NewAllReduce(value(0))) // behind them
	<-done
	next := connect(2)
	send(next[0])
	for i := range 5 {
		got := value(-1)
		next[1].SendRecv(got, 0, engine.Tensor{}, -1)
		for at, v := range got.F32() {
			if !(v == float32(i)) {
				t.Fatalf("message %d: element %d is %v", i, at, v)
			}
		}
	}
	out.take(1)
	if len(out.pieces) != 1 {
		t.Errorf("%d pieces are in use, want the one just taken", len(out.pieces))
	}
}
