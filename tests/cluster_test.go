package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsCluster is three nats-server processes that are one cluster. The routes between them go over links that can be
// taken away.
type natsCluster struct {
	t     *testing.T
	nodes [3]*natsServer
	store [3]string // folders of JetStream's files
	links []*route
}

// route passes the connections of one pair of servers on while it is up.
type route struct {
	ends [2]int
	to   string
	l    net.Listener
	mu   sync.Mutex
	down bool
	open map[net.Conn]bool
}

// startCluster starts one and waits until JetStream takes requests.
func startCluster(t *testing.T) *natsCluster {
	c := &natsCluster{t: t}
	path, dir := natsProgram(t), t.TempDir()
	var clients, routes [3]string
	for i := range c.nodes {
		clients[i], routes[i] = freeAddress(t), freeAddress(t)
	}
	for i := range c.nodes {
		var to []string
		for k := range c.nodes {
			if k != i {
				ln := newRoute(t, i, k, routes[k])
				c.links = append(c.links, ln)
				to = append(to, fmt.Sprintf("%q", "nats://"+ln.l.Addr().String()))
			}
		}
		c.store[i] = filepath.Join(dir, fmt.Sprint("js", i))
		// what a server tells the others of itself leads nowhere, or they would go round the links
		conf := fmt.Sprintf("server_name: s%d\nlisten: %q\njetstream { store_dir: %q, sync_interval: always }\n"+
			"cluster { name: three, listen: %q, advertise: \"127.0.0.1:1\", pool_size: -1, routes: [%s] }\n",
			i, clients[i], c.store[i], routes[i], strings.Join(to, ", "))
		n := &natsServer{t: t, path: path, conf: filepath.Join(dir, fmt.Sprintf("s%d.conf", i)), url: "nats://" + clients[i]}
		if err := os.WriteFile(n.conf, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		c.nodes[i] = n
		n.start()
		t.Cleanup(n.kill)
	}
	c.until("JetStream has a leader", func(js jetstream.JetStream) bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := js.AccountInfo(ctx)
		return err == nil
	})
	return c
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newRoute(t *testing.T, from, to int, address string) *route {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &route{ends: [2]int{from, to}, to: address, l: l, open: map[net.Conn]bool{}}
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
		_, _ = io.Copy(c, s)
		_ = c.Close()
	}()
	_, _ = io.Copy(s, c)
}

// keep notes a pair of connections; false: the link is down, and they are closed.
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

// set takes the link away, or gives it back.
func (ln *route) set(down bool) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.down = down
	if down {
		for c := range ln.open {
			_ = c.Close()
		}
	}
}

// part cuts the servers of a side off from the others; with none named all are together again.
func (c *natsCluster) part(side ...int) {
	in := map[int]bool{}
	for _, i := range side {
		in[i] = true
	}
	for _, ln := range c.links {
		ln.set(in[ln.ends[0]] != in[ln.ends[1]])
	}
}

// lone takes all links away: no server has a majority.
func (c *natsCluster) lone() {
	for _, ln := range c.links {
		ln.set(true)
	}
}

// url lists the servers, that of number first in front.
func (c *natsCluster) url(first int) string {
	var out []string
	for i := range c.nodes {
		out = append(out, c.nodes[(first+i)%len(c.nodes)].url)
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

// until waits for a condition.
func (c *natsCluster) until(what string, done func(jetstream.JetStream) bool) {
	c.t.Helper()
	nc, js := c.dial()
	defer nc.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if done(js) {
			return
		}
	}
	c.t.Fatalf("waited %s in vain: %s", patience, what)
}

// info asks for the state of a stream; nil: it has no leader that answers.
func (c *natsCluster) info(js jetstream.JetStream, stream string) *jetstream.StreamInfo {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil
	}
	return s.CachedInfo()
}

// leader is the number of the server that leads a stream.
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

// whole waits until all servers have all that a stream has.
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
