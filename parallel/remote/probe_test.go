package remote

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// slowConn is a connection that sends no faster than a link with this latency and rate.
type slowConn struct {
	net.Conn
	latency time.Duration
	rate    float64 // bytes per second
}

func (c slowConn) Write(b []byte) (int, error) {
	time.Sleep(c.latency + time.Duration(float64(len(b))/c.rate*1e9))
	return c.Conn.Write(b)
}

// TestProbeMeasuresTheNetwork checks that no connection is measured as faster than it is, that a process's connections
// add up, that the slowest one determines the latency, and that a broken one ends the probe.
func TestProbeMeasuresTheNetwork(t *testing.T) {
	const n, rate = 3, 20e6
	latency := [n][n]time.Duration{0: {2: 4 * time.Millisecond}, 2: {0: 4 * time.Millisecond}}
	ends := [n][]io.ReadWriteCloser{}
	for i := range ends {
		ends[i] = make([]io.ReadWriteCloser, n)
	}
	for i := range n {
		for j := range i {
			a, b := net.Pipe()
			ends[i][j], ends[j][i] = slowConn{a, latency[i][j], rate}, slowConn{b, latency[j][i], rate}
		}
	}
	var got [n]Speed
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var err error
			if got[i], err = probe(i, ends[i]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i, s := range got {
		if !(s.Bandwidth > 0 && s.Bandwidth <= 2*rate*1.01) {
			t.Errorf("process %d receives %.3g bytes a second by two connections of %.3g", i, s.Bandwidth, rate)
		}
	}
	if !(got[2].Latency >= 0.004) || got[0].Latency != 0 {
		t.Errorf("latencies %v and %v: want 4 ms or more where a process asks, 0 where it is only asked", got[2].Latency,
			got[0].Latency)
	}
	a, b := net.Pipe()
	_ = b.Close()
	if _, err := probe(1, []io.ReadWriteCloser{a, nil}); err == nil {
		t.Error("a connection that is closed was measured")
	}
}
