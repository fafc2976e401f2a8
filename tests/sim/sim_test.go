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

// jobsPerSeed is how many jobs each run submits.
const jobsPerSeed = 40

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
				w := simulate(t, uint64(seed))
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

// simulate runs one world to its end and judges it.
func simulate(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	o := newOracle(w)
	var nodes []*node
	for _, name := range []string{"A", "B"} {
		n := &node{w: w, name: name, oracle: o}
		n.start()
		nodes = append(nodes, n)
	}
	submitted := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() { harm(w, nodes, submitted) })
	(&clients{w, o, nodes}).submit(jobsPerSeed)
	w.note("all jobs are submitted")
	close(submitted)
	chaos.Wait()
	o.judge(nodes)
	for _, n := range nodes {
		n.crash()
	}
	w.stopServer(false)
	return w
}

// harm does harm until submitted is closed, and leaves everything up.
func harm(w *world, nodes []*node, submitted <-chan struct{}) {
	for {
		select {
		case <-submitted:
			return
		case <-time.After(w.between(100*time.Millisecond, 2*time.Second)):
		}
		n := nodes[w.below(len(nodes))]
		switch k := w.below(10); {
		case k < 4:
			if links := w.open(); len(links) > 0 {
				l := links[w.below(len(links))]
				w.happened("cut", "one link")
				l.cut()
			}
		case k < 6:
			d := w.between(100*time.Millisecond, 20*time.Second)
			w.happened("away", "%s for %s", n.name, d)
			n.away(d)
		case k < 8:
			w.happened("crash", "%s", n.name)
			n.crash()
			time.Sleep(w.between(0, 20*time.Second))
			n.start()
			w.note("%s is up again", n.name)
		default:
			killed := w.chance(.5)
			w.happened("server", "killed %v", killed)
			w.stopServer(killed)
			time.Sleep(w.between(0, 8*time.Second))
			w.startServer()
			w.note("the server is up again")
		}
	}
}

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1) // fewer orders of goroutines for one seed
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		_ = os.Setenv("TMPDIR", memory)
	}
	os.Exit(m.Run())
}
