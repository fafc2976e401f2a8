package remote

import (
	"fmt"
	"io"
	"time"

	"patchbay/parallel/scope"
)

// Speed is what processes measure about the connections between them.
type Speed struct {
	// bytes per second that a process receives from all others while it sends as many; 0: not measured
	Bandwidth float64 `json:"bandwidth"`
	Latency   float64 `json:"latency"` // seconds of a small message
}

// A probe is a few one-byte round trips, then bytes in both directions at once, of which the first quarter is not
// timed.
const (
	probePings = 4
	probeBytes = 1 << 20
)

// probe measures the connections of process self to the others, all at the same time, while those do the same. It skips
// connections that are nil.
func probe(self int, conns []io.ReadWriteCloser) (s Speed, err error) {
	each := make([]Speed, len(conns))
	g := scope.New(func(error) {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	for p, c := range conns {
		if c != nil {
			g.Go(fmt.Sprintf("measure the way to process %d", p), func() (err error) {
				each[p], err = probeOne(c, p < self)
				return err
			})
		}
	}
	err = g.Wait()
	for _, one := range each {
		s.Bandwidth, s.Latency = s.Bandwidth+one.Bandwidth, max(s.Latency, one.Latency)
	}
	return s, err
}

// probeOne measures one connection. One of its sides must ask, the other must not.
func probeOne(c io.ReadWriter, asks bool) (s Speed, err error) {
	buf := make([]byte, probeBytes/4)
	for i := range probePings {
		start := time.Now()
		if asks {
			_, err = c.Write(buf[:1])
		}
		if err == nil {
			_, err = io.ReadFull(c, buf[:1])
		}
		if err == nil && !asks {
			_, err = c.Write(buf[:1])
		}
		if err != nil {
			return s, err
		}
		if way := time.Since(start).Seconds() / 2; asks && (i == 0 || way < s.Latency) {
			s.Latency = way
		}
	}
	g := scope.New(nil)
	g.Go("send", func() error {
		out := make([]byte, len(buf))
		for range probeBytes / len(out) {
			if _, err := c.Write(out); err != nil {
				return err
			}
		}
		return nil
	})
	var start time.Time
	for i := range probeBytes / len(buf) {
		if _, err = io.ReadFull(c, buf); err != nil {
			break
		}
		if i == 0 {
			start = time.Now()
		}
	}
	took := time.Since(start)
	if sent := g.Wait(); err == nil {
		err = sent
	}
	s.Bandwidth = float64(probeBytes-len(buf)) / max(took.Seconds(), 1e-9)
	return s, err
}
