package parallel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/parallel/comm/trial"
	"patchbay/parallel/remote"
)

// TestExchangesOfHostsAreClocked checks that every exchange between ranks of two hosts takes as long as the cable
// between them, and one within a host does not. If a host goes away, the measurement ends and names it. The hosts then
// serve the next leader.
func TestExchangesOfHostsAreClocked(t *testing.T) {
	const delay = 25 * time.Millisecond
	models := &hosts{t: t}
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	cables := []*cable{newCable(t, station(t, n, models)), newCable(t, station(t, n, models))}
	list := []string{cables[0].address(), cables[1].address()}
	for _, way := range cables {
		way.set(func() { way.delay = delay })
	}
	b, err := remote.NewBench(n, list, remote.ByBest)
	if err != nil {
		t.Fatal(err)
	}
	if b.Ranks() != 4 || b.NCCL() {
		t.Fatalf("%d ranks, by NCCL: %v", b.Ranks(), b.NCCL())
	}
	took := func(exchange string, who ...int) float64 {
		t.Helper()
		runs := 3
		if who[0]/2 == who[len(who)-1]/2 {
			runs = 30 // on one host: on a busy machine a few may take as long as the cable, not all
		}
		times, err := b.Time(who, trial.Trial{Exchange: exchange, Bytes: 4096, Warmup: 1, Runs: runs, Row: 1})
		if err != nil || len(times) != runs {
			t.Fatalf("%s of %v: %v, %v", exchange, who, times, err)
		}
		return slices.Min(times)
	}
	for _, exchange := range trial.Exchanges() {
		got, least := took(exchange, 0, 1, 2, 3), delay.Seconds()
		if exchange == "pipeline message" { // it closely follows the message that signals the meeting
			least = 1e-9
		}
		if !(got >= least) {
			t.Errorf("%s of all takes %.3g s over a cable of %v", exchange, got, delay)
		}
	}
	for a := range 4 {
		for c := a + 1; c < 4; c++ {
			got, far := took(trial.Ring, a, c), a/2 != c/2
			if far != (got >= delay.Seconds()) || !(got > 0) {
				t.Errorf("ranks %d and %d, on two hosts: %v, take %.3g s; the cable has %v", a, c, far, got, delay)
			}
			if name := b.Name(c); name != fmt.Sprintf("%s rank %d", list[c/2], c%2) {
				t.Errorf("rank %d is called %q", c, name)
			}
		}
	}
	for _, bad := range []trial.Trial{
		{Exchange: "shout", Bytes: 4096, Runs: 1, Row: 1},
		{Exchange: trial.Ring, Bytes: 4, Runs: 1, Row: 1},
		{Exchange: trial.Ring, Bytes: 2 << 30, Runs: 1, Row: 1},
		{Exchange: trial.Ring, Bytes: 4096, Row: 1},
	} {
		if times, err := b.Time([]int{0, 2}, bad); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%+v: %v, %v", bad, times, err)
		}
	}
	time.AfterFunc(4*delay, cables[1].cut)
	_, err = b.Time([]int{0, 2}, trial.Trial{Exchange: trial.Ring, Bytes: 4096, Runs: 1000, Row: 1})
	if err == nil || !strings.Contains(err.Error(), "host "+list[1]) {
		t.Errorf("a host has gone: %v", err)
	}
	b.Close()
	cables[0].set(func() { cables[0].delay = 0 })
	for i := range 2 { // hosts whose leader leaves during an exchange serve the next one
		if b, err = remote.NewBench(n, list[:1], remote.ByBest); err != nil {
			t.Fatal(err)
		}
		took(trial.Ring, 0, 1)
		if i == 0 {
			time.AfterFunc(4*delay, b.Close)
			long := trial.Trial{Exchange: trial.Ring, Bytes: 1 << 20, Runs: trial.MostRuns, Row: 64}
			if _, err := b.Time([]int{0, 1}, long); err == nil {
				t.Error("a leader that has gone is served")
			}
		}
	}
	b.Close()
}

// TestHostsThatCannotBeMeasured checks that all hosts are required, and that the error names each that is missing.
func TestHostsThatCannotBeMeasured(t *testing.T) {
	models := &hosts{t: t}
	n := remote.Network{Key: farKey(t, "a"), Build: "1.0"}
	later := n
	later.Build = "1.1"
	there, other := station(t, n, models), station(t, later, models)
	for by, want := range map[remote.Exchange][]string{
		remote.ByHost: {
			"host " + other + ": it runs version 1.1", "host 127.0.0.1:1: connect: connection refused",
		},
		remote.ByNCCL: {"host " + there + " does not meet the others: it has no NCCL to exchange by"},
	} {
		list := []string{there, other, "127.0.0.1:1"}
		if by == remote.ByNCCL {
			list = []string{there, station(t, n, models)}
		}
		b, err := remote.NewBench(n, list, by)
		if err == nil {
			b.Close()
			t.Errorf("%v meet", list)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %q", err, part)
			}
		}
	}
}
