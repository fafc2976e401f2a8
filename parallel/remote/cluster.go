package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/parallel/hardware"
	"patchbay/parallel/process"
	"patchbay/parallel/scope"
)

// lookEvery is how often missing hosts are looked for.
const lookEvery = 2 * time.Second

// Cluster is the machines that offer themselves to this one. It implements parallel.Processes for an engine whose ranks
// run there.
type Cluster struct {
	network Network
	by      Exchange
	list    func() []string
	wrap    func(*Process) process.Process
	say     func(address string, err error)

	mu      sync.Mutex
	missing map[string]error // by address: why the host is not used; nil: it is
	started bool             // Start was called
	back    bool             // a host that is not used answers again
	survey  survey           // the last one; before any, a stored one of the same hosts
	file    string           // file of meetings; "": none
	failed  func(error)      // called if file cannot be written
	ended   chan struct{}
	looking *scope.Scope
}

// NewCluster makes a Cluster of the machines that list returns, HOST:PORT each; list is called repeatedly. wrap turns
// clients into hosts. say is called with the reason when a host can no longer be used, and with nil when it can again.
// Close ends the Cluster.
func NewCluster(n Network, by Exchange, list func() []string, wrap func(*Process) process.Process,
	say func(address string, err error),
) *Cluster {
	c := &Cluster{
		network: n, by: by, list: list, wrap: wrap, say: say, missing: map[string]error{}, ended: make(chan struct{}),
		looking: scope.New(nil),
	}
	c.looking.Every("look for hosts", lookEvery, c.ended, c.look)
	return c
}

// Close stops looking for hosts.
func (c *Cluster) Close() {
	close(c.ended)
	_ = c.looking.Wait()
}

func (c *Cluster) Changed(int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.back
}

func (c *Cluster) Missing() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.list() {
		if err := c.missing[a]; err != nil {
			out = append(out, fmt.Sprintf("host %s: %v", a, err))
		}
	}
	return out
}

func (c *Cluster) Survey() hardware.Survey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return hardware.Survey{
		Site: c.survey.Site, Remote: true, Places: c.survey.Places,
		Bandwidth: c.survey.Bandwidth, Latency: c.survey.Latency,
	}
}

// lacks records why a host cannot be used, nil if it can, and calls say if that is new.
func (c *Cluster) lacks(address string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.missing[address]
	c.missing[address] = err
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		c.say(address, err)
	case err == nil && was != nil:
		c.say(address, nil)
	}
}

// Start implements parallel.Processes: it returns the hosts that answer and reach each other.
func (c *Cluster) Start(int) ([]process.Process, error) {
	c.mu.Lock()
	c.back, c.started = false, true
	c.mu.Unlock()
	var left []string // left out because they do not reach the others
	for {
		clients := c.greet(left)
		if len(clients) == 0 && len(c.list()) == 0 {
			return nil, errors.New("no host has joined yet, or is in the list")
		}
		if len(clients) == 0 {
			return nil, fmt.Errorf("no host can be used: %s", strings.Join(c.Missing(), "; "))
		}
		speed, err := Meet(clients, c.by, true)
		if err == nil {
			m := survey{Speed: speed, At: time.Now().UTC()}
			var sites []hardware.Site
			var hosts []process.Process
			for _, cl := range clients {
				m.Hosts = append(m.Hosts, cl.host())
				m.Places, sites = append(m.Places, cl.places), append(sites, cl.site)
				hosts = append(hosts, c.wrap(cl))
			}
			m.Site = hardware.Join(sites)
			c.keep(m)
			return hosts, nil
		}
		for _, cl := range clients {
			cl.Close()
		}
		apart := (*apartError)(nil)
		if !errors.As(err, &apart) || len(clients) == 1 {
			return nil, err
		}
		c.lacks(apart.client.host(), err)
		left = append(left, apart.client.host())
	}
}

// greet connects to all hosts except those left out, at the same time, and returns those that answer: fastest device
// first, equal ones in the order of the list.
func (c *Cluster) greet(left []string) (out []*Process) {
	addresses := c.list()
	clients := make([]*Process, len(addresses))
	var all sync.WaitGroup
	for i, a := range addresses {
		if slices.Contains(left, a) {
			continue
		}
		all.Go(func() {
			var err error
			clients[i], err = c.network.lead(a)
			c.lacks(a, err)
		})
	}
	all.Wait()
	out = slices.DeleteFunc(clients, func(cl *Process) bool { return cl == nil })
	slices.SortStableFunc(out, func(a, b *Process) int { return cmp.Compare(b.site.Fastest(), a.site.Fastest()) })
	return out
}

// look checks whether hosts that are missing answer again.
func (c *Cluster) look() {
	addresses := c.list()
	c.mu.Lock()
	var ask []string
	for _, a := range addresses {
		err, asked := c.missing[a]
		if (err != nil || !asked && c.started) && !c.back {
			ask = append(ask, a)
		}
	}
	c.mu.Unlock()
	for _, a := range ask {
		conn, err := c.network.Dial(context.Background(), a, ToLook)
		if err != nil {
			continue
		}
		_ = conn.Close()
		c.mu.Lock()
		c.back = true
		c.mu.Unlock()
	}
}
