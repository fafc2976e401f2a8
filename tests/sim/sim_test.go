package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// traces is where runs that fail leave their traces. The disks of servers are in memory where the system has such a
// folder.
var traces = os.TempDir()

const memory = "/dev/shm"

// setting returns a number from the environment, or the usual one.
func setting(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// TestSimulation runs the job stores, tables, dispatchers and outputs of two daemons on a real NATS server within one
// bubble of virtual time, while links are cut, daemons crash, the server stops or is killed and workers die, and
// judges what is left. SIM_SEEDS is the number of runs (30 unless given), SIM_FROM the seed of the first. A seed
// decides which faults come when, but not the order of goroutines: a run that fails leaves its trace behind.
func TestSimulation(t *testing.T) {
	seeds, from := setting("SIM_SEEDS", 30), setting("SIM_FROM", 1)
	began, total, runs := time.Now(), map[string]int{}, 0
	ats.Register() // the ticker of this clock must be made outside of the bubble, or its virtual time stands still
	for seed := from; seed < from+seeds && !t.Failed(); seed++ {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			now := time.Now()
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(now)) // nats-server expires messages by the clock outside of the bubble
				w := simulate(t, planOf(uint64(seed)))
				for kind, n := range w.counts {
					total[kind] += n
				}
				report(t, w, seed)
			})
		})
		// nats.go keeps timers in a pool, and one that was made in a bubble cannot be used in the next: two collections
		// empty a sync.Pool
		runtime.GC()
		runtime.GC()
		runs++
	}
	t.Logf("%d runs of %d jobs in %s: %v", runs, jobsPerSeed, time.Since(began).Round(time.Second), total)
}

// report fails the test if the run has violated something, and keeps its trace.
func report(t *testing.T, w *world, seed int) {
	if len(w.bad) == 0 {
		return
	}
	name := filepath.Join(traces, fmt.Sprintf("patchbay-sim-%d.trace", seed))
	if err := os.WriteFile(name, []byte(w.trace.String()), 0o600); err != nil {
		t.Error(err)
	}
	t.Errorf("the trace is in %s; `make sim SEEDS=20 FROM=%d` tries again", name, seed)
	for _, bad := range w.bad[:min(len(w.bad), 20)] {
		t.Error(bad)
	}
	job := anyJob.FindString(w.bad[0])
	for line := range strings.Lines(w.trace.String()) {
		if !anyJob.MatchString(line) || strings.Contains(line, job) { // faults, and what happened to the first job
			t.Log(strings.TrimSpace(line))
		}
	}
}

var anyJob = regexp.MustCompile(`j\d{6}`)

// virtual is how much virtual time no run needs.
const virtual = 2 * time.Hour

// simulate runs one world to its end and judges it.
func simulate(t *testing.T, p plan) *world {
	w := newWorld(t, p)
	late := time.AfterFunc(virtual, func() { panic("the run does not end; its seed is the last one that began") })
	defer late.Stop()
	o := newOracle(w)
	var nodes []*node
	for _, name := range names {
		n := &node{w: w, name: name, oracle: o}
		n.start()
		nodes = append(nodes, n)
	}
	var all sync.WaitGroup
	for _, s := range p.steps {
		switch {
		case s.kind == submits:
			c := client{w: w, oracle: o, nodes: nodes, job: s.job, id: idOf(s.job), dice: p.dice("client", s.job)}
			all.Go(func() { c.run(s) })
		case s.job == 0:
			all.Go(func() { w.harm(s, nodes) })
		}
	}
	all.Wait()
	w.note("the plan is at its end")
	o.judge(nodes)
	for _, n := range nodes {
		n.crash()
	}
	w.stopServer(false)
	return w
}

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1) // fewer orders of goroutines for one seed
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		_ = os.Setenv("TMPDIR", memory)
	}
	os.Exit(m.Run())
}
