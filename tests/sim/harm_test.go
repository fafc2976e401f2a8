package sim

import (
	"time"
)

// harm does what a step of the plan has in store for the world, and leaves everything up.
func (w *world) harm(s step, nodes []*node) {
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
	case crash:
		if n.crash() {
			time.Sleep(s.lasts)
			n.start()
			w.note("%s is up again", n.name)
		}
	case stop, kill:
		w.turn <- struct{}{}
		w.stopServer(s.kind == kill)
		time.Sleep(s.lasts)
		w.startServer()
		w.note("the server is up again")
		<-w.turn
	}
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
	case crash:
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
