package sim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	ipcclient "patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/bubble"
)

// harm does what a step of the plan has in store for the world, and leaves everything up.
func (w *world) harm(s step, nodes []*node) {
	defer w.waits(s.String())()
	time.Sleep(s.at)
	n := nodes[s.node]
	if !w.await(s, n) {
		return
	}
	w.happened(s)
	switch s.kind {
	case cut:
		if links := w.linksOf(n); s.n == 0 && len(links) > 0 {
			links[w.plan.dice(s).IntN(len(links))].cut()
		}
	case away:
		n.away(s.lasts)
	case crash, ahead:
		if n.crash() {
			time.Sleep(s.lasts)
			if s.kind == ahead {
				n.turnClock()
			}
			n.start()
			w.note("%s is up again", n.name)
		}
	case ends:
		if n.terminate() {
			time.Sleep(s.lasts)
			n.start()
			w.note("%s is up again", n.name)
		}
	case full:
		w.fill(s)
	case pauses:
		n.turn <- struct{}{}
		n.pause(true)
		time.Sleep(s.lasts)
		n.pause(false)
		<-n.turn
	case twin:
		other := w.twin(n)
		for end := time.Now().Add(s.lasts); time.Now().Before(end) && other.tryStart() != nil; {
			time.Sleep(time.Second)
		}
		time.Sleep(s.lasts)
		other.crash()
	case forget:
		w.turn <- struct{}{}
		earlier := filepath.Join(w.base, "earlier")
		bubble.Copy(w.disk, earlier)
		time.Sleep(s.lasts)
		w.stopServer(true)
		_ = os.RemoveAll(w.disk)
		_ = os.Rename(earlier, w.disk)
		w.server.Start()
		if w.fills.Load() == 0 { // the earlier disk may have been full
			w.limit("KV_"+message.JobBucket, unlimited)
			w.limit("KV_"+message.RequestBucket, unlimited)
		}
		<-w.turn
	case stop, kill, damage:
		w.turn <- struct{}{}
		w.stopServer(s.kind != stop)
		time.Sleep(s.lasts)
		if s.kind == damage {
			w.spoil(s)
		}
		w.server.Start()
		w.note("the server is up again")
		<-w.turn
	}
}

// pause tells the daemon to begin no job, or to go on, as often as it takes.
func (n *node) pause(paused bool) {
	for {
		if !paused {
			n.setPaused(time.Time{})
		}
		conn, err := n.dial()
		if err == nil {
			c := ipcclient.NewFrameClient(conn, conn, conn.Close)
			ctx, cancel := context.WithTimeout(context.Background(), answered)
			_, err = ipcclient.Pause(ctx, c, paused)
			cancel()
			_ = c.Close()
		}
		n.w.note("%s is told to pause, %v: %v", n.name, paused, err)
		if err == nil && paused {
			n.setPaused(time.Now())
		}
		if err == nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// fill allows the records or the requests no more room for a while.
func (w *world) fill(s step) {
	name := "KV_" + []string{message.JobBucket, message.RequestBucket}[w.plan.dice(s).IntN(2)]
	w.fills.Add(1)
	defer w.fills.Add(-1)
	w.limit(name, func(info jetstream.StreamInfo) int64 { return int64(info.State.Bytes) + 1000 })
	w.trouble()
	time.Sleep(s.lasts)
	w.limit(name, unlimited)
	w.trouble()
}

func unlimited(jetstream.StreamInfo) int64 { return -1 }

// limit changes how many bytes a stream may have.
func (w *world) limit(name string, most func(jetstream.StreamInfo) int64) {
	nc, err := nats.Connect("nats://sim", nats.InProcessServer(way{w, nil}), nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true)) // the server may be away
	if err != nil {
		panic(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		panic(err)
	}
	for try := range 60 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		stream, err := js.Stream(ctx, name)
		if err == nil {
			cfg := stream.CachedInfo().Config
			cfg.MaxBytes = most(*stream.CachedInfo())
			_, err = js.UpdateStream(ctx, cfg)
		}
		cancel()
		w.note("%s has room for %d bytes: %v", name, most(jetstream.StreamInfo{}), err)
		if err == nil || errors.Is(err, jetstream.ErrStreamNotFound) {
			return
		}
		time.Sleep(time.Duration(try) * 100 * time.Millisecond)
	}
	w.violated("the limit of %s cannot be changed", name)
}

// spoil cuts off the ends of some files with messages on the server's disk, or changes some of their bytes.
func (w *world) spoil(s step) {
	dice := w.plan.dice(s)
	_ = filepath.WalkDir(w.disk, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".blk" || dice.IntN(3) > 0 {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) == 0 {
			return err
		}
		if dice.IntN(2) == 0 {
			b = b[:len(b)-min(len(b), dice.IntN(4096))]
		} else {
			b[dice.IntN(len(b))] ^= byte(1 + dice.IntN(255))
		}
		w.note("damage to %s", strings.TrimPrefix(path, w.disk))
		return os.WriteFile(path, b, 0o600)
	})
}

// patience is how long a step waits for the message that it counts.
const patience = 20 * time.Second

// await waits for the moment of a step: a message of a daemon, whose link ends with it. It reports false if there is no
// such message.
func (w *world) await(s step, n *node) bool {
	if s.n == 0 {
		return true
	}
	f := &fuse{node: n, what: s.what, left: s.n, lost: s.lost, burnt: make(chan struct{}), act: func() {}}
	switch s.kind {
	case away:
		f.act = func() { n.away(s.lasts) }
	case crash, ahead:
		f.act = n.die
	}
	w.mu.Lock()
	w.fuses[f] = true
	w.mu.Unlock()
	select {
	case <-f.burnt:
		return true
	case <-time.After(patience):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.fuses, f)
	return false
}
