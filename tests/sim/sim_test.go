package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/tests/bubble"
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

// seeds is how many runs there are unless SIM_SEEDS says so: those of `make test`, and of test-all. `make soak` has
// 5,000.
func seeds() int {
	if testing.Short() {
		return 100
	}
	return 500
}

// TestSimulation runs the job stores, tables, dispatchers and outputs of two daemons on a real NATS server within one
// bubble of virtual time, while things go wrong as a plan says, and judges what is left. SIM_SEEDS is the number of
// runs, SIM_FROM the seed of the first; with SIM_LOSSES=1 disks lose what was written, and
// with SIM_TWINS=1 two daemons have one name. A seed decides the plan, but not the order of goroutines: a run that
// fails leaves its trace behind, and unless SIM_SHRINK is 0, the shortest plan that fails still.
func TestSimulation(t *testing.T) {
	seeds, from := setting("SIM_SEEDS", seeds()), setting("SIM_FROM", 1)
	began, total, runs := time.Now(), map[string]int{}, 0
	for seed := from; seed < from+seeds && !t.Failed(); seed++ {
		w := run(t, planOf(uint64(seed)))
		for kind, n := range w.counts {
			total[kind] += n
		}
		if runs++; len(w.bad) > 0 {
			report(t, w)
		}
	}
	faults := 0
	for kind, n := range total {
		if slices.Contains(ofWorld, kind) || slices.Contains(ofWorkers, kind) {
			faults += n
		}
	}
	t.Logf("%d runs, %d jobs, %d faults in %s, %.4f hours of a processor: %v", runs, total[submits], faults,
		time.Since(began).Round(time.Second), processor().Hours(), total)
}

// processor returns the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// run runs a plan in a bubble.
func run(t *testing.T, p plan) (w *world) {
	bubble.Part(t, fmt.Sprint("seed", p.seed), func(t *testing.T) { w = simulate(t, p) })
	return w
}

// mended are plans that have failed, as short as they became.
var mended = map[string]plan{
	// another daemon tells the end of a job that is done, and its files get no names when its daemon is back
	"names after the end": {seed: 2, steps: []step{
		{kind: crash, at: 6702 * time.Millisecond, n: 5, what: messages[1], lasts: 10369 * time.Millisecond},
		{kind: submits, at: 7048 * time.Millisecond, job: 37},
		{kind: submits, at: 7714 * time.Millisecond, job: 21},
	}},
}

// TestMended runs the plans that have failed.
func TestMended(t *testing.T) {
	for name, p := range mended {
		for range tries {
			for _, bad := range run(t, p).bad {
				t.Errorf("%s: %s", name, bad)
			}
		}
	}
}

// report fails the test for what a run has violated, and shows the shortest plan with which that happens, and how.
func report(t *testing.T, w *world) {
	t.Errorf("seed %d fails; `make sim SEEDS=20 FROM=%d` tries it and the next ones", w.plan.seed, w.plan.seed)
	for _, bad := range w.bad[:min(len(w.bad), 10)] {
		t.Error(bad)
	}
	t.Logf("the trace is in %s", w.keep(t))
	if setting("SIM_SHRINK", 1) > 0 {
		p := shrink(w.plan, func(p plan) bool {
			small := run(t, p)
			if len(small.bad) > 0 {
				w = small
			}
			return len(small.bad) > 0
		})
		t.Logf("the shortest plan that fails has %d steps of %d:", len(w.plan.steps), len(planOf(p.seed).steps))
		if len(w.plan.steps) <= shown {
			for _, s := range w.plan.steps {
				t.Log(s)
			}
		}
		t.Logf("its trace is in %s; what it says of faults and of the first job:", w.keep(t))
	}
	job, lines := anyJob.FindString(w.bad[0]), []string(nil)
	for line := range strings.Lines(w.trace.String()) {
		if !anyJob.MatchString(line) || strings.Contains(line, job) {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	for _, line := range lines[max(0, len(lines)-shown):] {
		t.Log(line)
	}
}

// shown is how many steps of a plan, and how many of the last lines of a trace, a failure shows: the file has all.
const shown = 60

// keep writes the trace to a file, whose name it returns.
func (w *world) keep(t *testing.T) string {
	name := filepath.Join(traces, fmt.Sprintf("patchbay-sim-%d-%d.trace", w.plan.seed, len(w.plan.steps)))
	if err := os.WriteFile(name, []byte(w.trace.String()), 0o600); err != nil {
		t.Error(err)
	}
	return name
}

var anyJob = regexp.MustCompile(`j\d{6}`)

// virtual is how much virtual time no run needs.
const virtual = time.Hour

// simulate runs one world to its end and judges it.
func simulate(t *testing.T, p plan) *world {
	w := newWorld(t, p)
	late := time.AfterFunc(virtual, func() {
		panic(fmt.Sprintf("seed %d does not end, since these go on: %v; its trace is in %s", p.seed, w.goOn, w.keep(t)))
	})
	defer late.Stop()
	o := newOracle(w)
	var nodes []*node
	for _, name := range names {
		n := &node{w: w, name: name, dir: name, oracle: o, turn: make(chan struct{}, 1)}
		n.browser = newBrowser(n)
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
	w.end()
	w.readers.Wait()
	for _, n := range nodes {
		n.browser.CloseIdleConnections()
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
