package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// natsCluster is a cluster of three nats-server processes. The routes between them go over links that can be cut.
type natsCluster struct {
	t       *testing.T
	nodes   [3]*natsserver.Server
	store   [3]string // JetStream's store folders
	monitor [3]string // addresses of the servers' HTTP monitoring
	links   []*route
}

// route relays connections from one server, or from a daemon, to another server while it is up.
type route struct {
	ends [2]int // it dials from the first server to the second; -1: a daemon
	to   string
	l    net.Listener
	mu   sync.Mutex
	down bool
	held [2]bool       // nothing arrives at that end, but connections stay open: a cable that is cut and comes back
	news chan struct{} // closed and replaced when down or held change
	open map[net.Conn]bool
}

// serverDisk is where a server keeps its files, and its sync_interval.
type serverDisk struct{ dir, sync string }

// startCluster starts a cluster and waits until JetStream takes requests. Servers without an entry in disks keep their
// files in a folder of the test and sync every write.
func startCluster(t *testing.T, disks ...serverDisk) *natsCluster {
	return startClusterWith(t, "", disks...)
}

// startClusterWith is startCluster with extra added to the cluster block of the configuration.
func startClusterWith(t *testing.T, extra string, disks ...serverDisk) *natsCluster {
	c := &natsCluster{t: t}
	dir := t.TempDir()
	var clients, routes, monitors [3]net.Listener // they reserve the ports until the servers start
	for i := range c.nodes {
		clients[i], routes[i], monitors[i] = natsserver.FreePort(t), natsserver.FreePort(t), natsserver.FreePort(t)
		c.monitor[i] = monitors[i].Addr().String()
	}
	for i := range c.nodes {
		var to []string
		for k := range c.nodes {
			if k != i {
				ln := newRoute(t, i, k, routes[k].Addr().String())
				c.links = append(c.links, ln)
				to = append(to, fmt.Sprintf("%q", "nats://"+ln.l.Addr().String()))
			}
		}
		disk := serverDisk{dir, "always"}
		if i < len(disks) {
			disk = disks[i]
		}
		c.store[i] = filepath.Join(disk.dir, fmt.Sprint("js", i))
		// the address that a server advertises leads nowhere, or the others would bypass the links
		conf := fmt.Sprintf("server_name: s%d\nlisten: %q\nhttp: %q\njetstream { store_dir: %q, sync_interval: %q }\n"+
			"cluster { name: three, listen: %q, advertise: \"127.0.0.1:1\", pool_size: -1, %s routes: [%s] }\n",
			i, clients[i].Addr().String(), c.monitor[i], c.store[i], disk.sync, routes[i].Addr().String(), extra,
			strings.Join(to, ", "))
		c.nodes[i] = natsserver.New(t, filepath.Join(dir, fmt.Sprintf("s%d.conf", i)), clients[i].Addr().String(), conf)
	}
	for i, n := range c.nodes {
		_ = clients[i].Close()
		_ = routes[i].Close()
		_ = monitors[i].Close()
		n.Start()
	}
	c.ready()
	return c
}

// ready waits until JetStream keeps three copies: a new leader may not know the other servers yet, and a daemon that
// starts then would get one copy.
func (c *natsCluster) ready() {
	c.t.Helper()
	c.until("JetStream keeps three copies", func(js jetstream.JetStream) bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: "READY", Subjects: []string{"ready"}, Replicas: len(c.nodes), Storage: jetstream.MemoryStorage,
		})
		return err == nil && js.DeleteStream(ctx, "READY") == nil
	})
}

// applied reports whether each server itself has the given number of messages a subject in the configuration of a
// stream: the leader alone answers an update, the others learn of it up to a heartbeat later.
func (c *natsCluster) applied(stream string, perSubject int64) bool {
	for _, monitor := range c.monitor {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+monitor+"/jsz?streams=true&config=true", nil)
		if err != nil {
			c.t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		var js struct {
			Accounts []struct {
				Streams []struct {
					Name   string                 `json:"name"`
					Config jetstream.StreamConfig `json:"config"`
				} `json:"stream_detail"`
			} `json:"account_details"`
		}
		err = json.NewDecoder(answer.Body).Decode(&js)
		_ = answer.Body.Close()
		found := false
		for _, account := range js.Accounts {
			for _, s := range account.Streams {
				found = found || s.Name == stream && s.Config.MaxMsgsPerSubject == perSubject
			}
		}
		if err != nil || !found {
			return false
		}
	}
	return true
}

func newRoute(t *testing.T, from, to int, address string) *route {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &route{ends: [2]int{from, to}, to: address, l: l, news: make(chan struct{}), open: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); ln.set(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go ln.serve(c)
		}
	}()
	return ln
}

func (ln *route) serve(c net.Conn) {
	defer ln.close(c)
	s, err := net.Dial("tcp", ln.to)
	if err != nil || !ln.keep(c, s) {
		return
	}
	defer ln.close(s)
	go func() {
		ln.pass(0, c, s)
		_ = c.Close()
	}()
	ln.pass(1, s, c)
}

// pass copies data from in to out, which is end number to, while both connections last. Data and the end of the
// connection are delayed while they are held.
func (ln *route) pass(to int, out, in net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		for ln.wait(to) {
		}
		if _, failed := out.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}

// wait reports whether data for an end is held. If it is, wait returns at the next change.
func (ln *route) wait(to int) bool {
	ln.mu.Lock()
	held, news := ln.held[to] && !ln.down, ln.news
	ln.mu.Unlock()
	if held {
		<-news
	}
	return held
}

// hold holds the data for either end, or releases it.
func (ln *route) hold(first, second bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.held = [2]bool{first, second}
	close(ln.news)
	ln.news = make(chan struct{})
}

// keep registers a pair of connections. If the link is down, it closes them and returns false.
func (ln *route) keep(pair ...net.Conn) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	for _, c := range pair {
		if ln.down {
			_ = c.Close()
			continue
		}
		ln.open[c] = true
	}
	return !ln.down
}

func (ln *route) close(c net.Conn) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	delete(ln.open, c)
	_ = c.Close()
}

// set cuts the link or restores it.
func (ln *route) set(down bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.down = down
	close(ln.news)
	ln.news = make(chan struct{})
	if down {
		for c := range ln.open {
			_ = c.Close()
		}
	}
}

// part cuts the servers of side off from the others. Without arguments it connects all of them again.
func (c *natsCluster) part(side ...int) {
	in := map[int]bool{}
	for _, i := range side {
		in[i] = true
	}
	for _, ln := range c.links {
		ln.set(in[ln.ends[0]] != in[ln.ends[1]])
	}
}

// lone cuts all links, so that no server has a majority.
func (c *natsCluster) lone() {
	for _, ln := range c.links {
		ln.set(true)
	}
}

// hold cuts one or both directions of a server's links: mute, the others do not hear it; deaf, it does not hear them.
func (c *natsCluster) hold(server int, mute, deaf bool) {
	for _, ln := range c.links {
		switch server {
		case ln.ends[0]:
			ln.hold(deaf, mute)
		case ln.ends[1]:
			ln.hold(mute, deaf)
		}
	}
}

// url lists the URLs of the servers, beginning with server number first.
func (c *natsCluster) url(first int) string {
	var out []string
	for i := range c.nodes {
		out = append(out, c.nodes[(first+i)%len(c.nodes)].URL)
	}
	return strings.Join(out, ",")
}

// dial connects to whichever server can be reached.
func (c *natsCluster) dial() (*nats.Conn, jetstream.JetStream) {
	c.t.Helper()
	nc, err := nats.Connect(c.url(0), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		c.t.Fatal(err)
	}
	return nc, js
}

// until polls a condition for at most patience.
func (c *natsCluster) until(what string, done func(jetstream.JetStream) bool) {
	c.t.Helper()
	nc, js := c.dial()
	defer nc.Close()
	for end := time.Now().Add(harness.Patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if done(js) {
			return
		}
	}
	c.t.Fatalf("waited %s in vain: %s", harness.Patience, what)
}

// info returns the state of a stream, or nil if no leader answers.
func (c *natsCluster) info(js jetstream.JetStream, stream string) *jetstream.StreamInfo {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil
	}
	return s.CachedInfo()
}

// leader returns the number of the server that leads a stream.
func (c *natsCluster) leader(stream string) int {
	c.t.Helper()
	out := -1
	c.until(stream+" has a leader", func(js jetstream.JetStream) bool {
		if in := c.info(js, stream); in != nil && in.Cluster != nil && in.Cluster.Leader != "" {
			_, _ = fmt.Sscanf(in.Cluster.Leader, "s%d", &out)
		}
		return out >= 0
	})
	return out
}

// whole waits until all replicas of a stream are current.
func (c *natsCluster) whole(stream string) {
	c.t.Helper()
	c.until(stream+" is on all servers", func(js jetstream.JetStream) bool {
		in := c.info(js, stream)
		if in == nil || in.Cluster == nil || len(in.Cluster.Replicas) != 2 {
			return false
		}
		for _, r := range in.Cluster.Replicas {
			if r.Offline || !r.Current {
				return false
			}
		}
		return true
	})
}
