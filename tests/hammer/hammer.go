// Package hammer runs parsers of untrusted bytes on millions of mutated inputs.
//
// Go's coverage-guided fuzzing finds its way into a parser by counting branches, and that limits it to a few thousand
// executions a second. This is the other half: a small seeded mutator and no instrumentation, so that ten million
// executions of a parser take minutes. A Target is the body of a fuzz target in two parts, Parse and Check. Fuzz
// registers it with Go's fuzzing and Run hammers it, so both run the same code on the same seeds and on the corpus in
// testdata/fuzz.
//
// The memory that Parse allocates is bounded. Every execution is measured with the cheap counter of package
// runtime/metrics, which reads too high while other goroutines allocate and too low by at most a few spans that the
// allocator has not accounted for yet. An input that seems to need too much, and every sampleEvery-th input, is run
// again alone and measured exactly.
//
// There is a little feedback: an input refused for a reason not seen before joins the corpus of its worker, and so does
// an accepted one now and then. Half of all inputs are made from accepted ones. The seed and the number of processors
// determine a run. `go test` always uses the same seed; with the build tag soak it comes from the clock.
package hammer

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Input is the input of a parser.
type Input struct {
	Data []byte
	Flag bool // selects one of two encodings, for targets that take a flag
}

// Target is one parser and what must hold for it.
type Target[T any] struct {
	Name  string  // of the fuzz target, and of its folder in testdata/fuzz
	Flag  bool    // the fuzz target takes a bool after the bytes
	Seeds []Input // the initial corpus, with the files in testdata/fuzz
	// Parse is the parser. It must not change its input; what it returns may alias it.
	Parse func(Input) (T, error)
	// Check reports what is wrong with the result of Parse. A nil Check checks nothing.
	Check func(in Input, out T, refused error) error
	// Bound returns how many bytes Parse may allocate for an input. A nil Bound measures nothing: Parse starts
	// goroutines.
	Bound func(Input) int64
	// Mend makes a mutated input plausible again, for example its checksums. Half of the inputs are mended; nil mends
	// none.
	Mend func([]byte) []byte
}

const (
	sampleEvery = 256         // every such input is measured exactly
	patience    = time.Minute // limit of one execution, on a loaded machine
)

// Fuzz registers seeds and body with Go's fuzzing.
func (t *Target[T]) Fuzz(f *testing.F) {
	for _, s := range t.Seeds {
		if t.Flag {
			f.Add(s.Data, s.Flag)
		} else {
			f.Add(s.Data)
		}
	}
	m := newMeter()
	one := func(tt *testing.T, in Input) {
		if _, _, err := t.execute(in, m, new(sync.RWMutex), false); err != nil {
			tt.Fatal(err)
		}
	}
	if t.Flag {
		f.Fuzz(func(tt *testing.T, data []byte, flag bool) { one(tt, Input{data, flag}) })
		return
	}
	f.Fuzz(func(tt *testing.T, data []byte) { one(tt, Input{Data: data}) })
}

// Run executes the target n times on all processors, starting with the corpus. It writes an input that fails to
// testdata/fuzz, where `go test` finds it from then on. PATCHBAY_HAMMER_SEED repeats a run.
func (t *Target[T]) Run(tb *testing.T, n int) {
	tb.Helper()
	corpus, err := readCorpus(filepath.Join("testdata", "fuzz", t.Name))
	if err != nil {
		tb.Fatal(err)
	}
	corpus = append(corpus, t.Seeds...)
	if len(corpus) == 0 {
		tb.Fatalf("%s has no seeds", t.Name)
	}
	seed := uint64(repeated)
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	if s := os.Getenv("PATCHBAY_HAMMER_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			tb.Fatalf("PATCHBAY_HAMMER_SEED: %v", err)
		}
	}
	workers := make([]*worker[T], runtime.GOMAXPROCS(0))
	var alone sync.RWMutex
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a heap this small would be collected all the time
	began := time.Now()
	for i := range workers {
		w := &worker[T]{
			t: t, n: n * (i + 1) / len(workers), alone: &alone, stop: &stop, meter: newMeter(),
			reasons: map[uint64]bool{},
		}
		w.n -= n * i / len(workers)
		w.mutator = mutator{rnd: rand.New(rand.NewPCG(seed, uint64(i))), corpus: append([]Input(nil), corpus...)}
		w.fixed = len(corpus)
		for _, in := range corpus {
			w.longest = max(w.longest, 256, min(len(in.Data), 1024))
		}
		workers[i] = w
		wg.Go(w.run)
	}
	done := make(chan struct{})
	go t.watch(workers, done, seed)
	wg.Wait()
	close(done)
	took := time.Since(began)
	total := tally{}
	for i, w := range workers {
		total.add(&w.tally)
		if w.fault != nil {
			path, err := t.keep(w.failing)
			if err != nil {
				path = err.Error()
			}
			tb.Errorf("%s, seed %d, worker %d, execution %d: %v\ninput (flag %v): %.600q\nkept as %s", t.Name, seed, i, w.done,
				w.fault, w.failing.Flag, w.failing.Data, path)
		}
	}
	if total.done != n && !tb.Failed() {
		tb.Errorf("%s: %d executions, want %d", t.Name, total.done, n)
	}
	tb.Logf("%s: %d executions in %.1f s (%.0f/s) on %d processors, seed %d, corpus %d; "+
		"accepted %.1f %%, refused for %d reasons; measured alone %d, at most %d bytes allocated for an input of %d",
		t.Name, total.done, took.Seconds(), float64(total.done)/took.Seconds(), len(workers), seed, len(corpus),
		100*float64(total.accepted)/float64(max(total.done, 1)), total.reasons, total.exact, total.most, total.mostFor)
}

// tally counts what a worker did.
type tally struct {
	done, accepted, exact, reasons int
	most                           int64 // bytes allocated, measured exactly
	mostFor                        int   // length of that input
}

func (a *tally) add(b *tally) {
	a.done, a.accepted, a.exact, a.reasons = a.done+b.done, a.accepted+b.accepted, a.exact+b.exact,
		max(a.reasons, b.reasons)
	if b.most > a.most {
		a.most, a.mostFor = b.most, b.mostFor
	}
}

// worker is one goroutine that executes the target.
type worker[T any] struct {
	tally
	mutator
	t       *Target[T]
	n       int
	alone   *sync.RWMutex // read-locked while parsing, locked to measure one input alone
	stop    *atomic.Bool
	meter   *meter
	fixed   int // entries of the initial corpus
	longest int // of those in bytes, clamped to 256..1024
	reasons map[uint64]bool
	since   atomic.Int64 // start of the current execution, Unix nanoseconds; 0: none
	now     Input
	fault   error
	failing Input
}

// learned limits how many accepted and how many refused inputs join the corpus of a worker.
const learned = 512

func (w *worker[T]) run() {
	for w.done < w.n && !w.stop.Load() {
		if w.done < w.fixed {
			w.now = w.corpus[w.done]
		} else {
			w.now = w.mutate()
			if w.t.Mend != nil && w.rnd.IntN(2) == 0 {
				w.now.Data = w.t.Mend(w.now.Data)
			}
			if w.t.Flag && w.rnd.IntN(32) == 0 {
				w.now.Flag = !w.now.Flag
			}
		}
		w.since.Store(time.Now().UnixNano())
		refused, used, err := w.t.execute(w.now, w.meter, w.alone, w.done%sampleEvery == 0)
		w.since.Store(0)
		w.done++
		if used >= 0 {
			if w.exact++; used > w.most {
				w.most, w.mostFor = used, len(w.now.Data)
			}
		}
		if err != nil {
			w.fault, w.failing = err, Input{bytes.Clone(w.now.Data), w.now.Flag}
			w.stop.Store(true)
			return
		}
		if refused == nil {
			w.accepted++
		}
		w.learn(refused)
	}
	w.tally.reasons = len(w.reasons)
}

// learn adds the current input to the corpus if it was refused for a new reason, or at random if it was accepted.
func (w *worker[T]) learn(refused error) {
	if refused == nil {
		// inputs that grew by repetition cost time and tell little
		if w.done > w.fixed && (w.rnd.IntN(64) != 0 || len(w.now.Data) > w.longest) {
			return
		}
		in := Input{bytes.Clone(w.now.Data), w.now.Flag}
		if len(w.good) < learned {
			w.good = append(w.good, in)
			return
		}
		w.good[w.rnd.IntN(learned)] = in
		return
	}
	r := reason(refused)
	if w.reasons[r] || len(w.reasons) >= learned {
		return
	}
	w.reasons[r] = true
	w.corpus = append(w.corpus, Input{bytes.Clone(w.now.Data), w.now.Flag})
}

// reason hashes the text of an error without quoted parts and numbers.
func reason(err error) uint64 {
	h := fnv.New64a()
	quoted := false
	text := err.Error()
	for i := range min(len(text), 160) {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted, c >= '0' && c <= '9', c >= 0x80:
		default:
			_, _ = h.Write([]byte{c}) // a hash does not fail
		}
	}
	return h.Sum64()
}

// execute runs the target once. used is the number of bytes that Parse allocated if that was measured exactly, else -1.
// A panic is returned as an error.
func (t *Target[T]) execute(in Input, m *meter, alone *sync.RWMutex, exactly bool) (refused error,
	used int64, err error,
) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	out, about, refused := t.parse(in, m, alone)
	used = -1
	if t.Bound != nil && (exactly || about > t.Bound(in)) {
		least := int64(-1)
		for range 3 { // others in the process may allocate too: take the least of three
			n := t.measure(in, alone)
			if least < 0 || n < least {
				least = n
			}
			if least <= t.Bound(in) {
				break
			}
		}
		if used = least; used > t.Bound(in) {
			return refused, used, fmt.Errorf("%d bytes of input make the parser allocate %d, at most %d are allowed",
				len(in.Data), used, t.Bound(in))
		}
	}
	if t.Check != nil {
		err = t.Check(in, out, refused)
	}
	return refused, used, err
}

func (t *Target[T]) parse(in Input, m *meter, alone *sync.RWMutex) (out T, about int64, refused error) {
	alone.RLock()
	defer alone.RUnlock()
	before := m.allocated()
	out, refused = t.Parse(in)
	return out, m.allocated() - before, refused
}

// measure returns how many bytes Parse allocates while no other worker parses.
func (t *Target[T]) measure(in Input, alone *sync.RWMutex) int64 {
	alone.Lock()
	defer alone.Unlock()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = t.Parse(in)
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// meter reads how many bytes the process has allocated.
type meter struct{ sample [1]metrics.Sample }

func newMeter() *meter {
	m := &meter{}
	m.sample[0].Name = "/gc/heap/allocs:bytes"
	return m
}

func (m *meter) allocated() int64 {
	metrics.Read(m.sample[:])
	return int64(m.sample[0].Value.Uint64())
}

// watch panics with the stacks of all goroutines when an execution lasts longer than patience.
func (t *Target[T]) watch(workers []*worker[T], done <-chan struct{}, seed uint64) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		for i, w := range workers {
			began := w.since.Load()
			if began == 0 || time.Since(time.Unix(0, began)) < patience {
				continue
			}
			path, err := t.keep(w.now)
			if err != nil {
				path = err.Error()
			}
			debug.SetTraceback("all")
			panic(fmt.Sprintf("%s, seed %d, worker %d: an input is being parsed for %s; kept as %s", t.Name, seed,
				i, patience, path))
		}
	}
}

// keep writes an input in Go's corpus format to a file that is named after its hash.
func (t *Target[T]) keep(in Input) (string, error) {
	text := fmt.Sprintf("%s\n[]byte(%s)\n", corpusHeader, strconv.Quote(string(in.Data)))
	if t.Flag {
		text += fmt.Sprintf("bool(%v)\n", in.Flag)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // a hash does not fail
	dir := filepath.Join("testdata", "fuzz", t.Name)
	path := filepath.Join(dir, fmt.Sprintf("%016x", h.Sum64()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// corpusHeader is the first line of a file in Go's corpus format.
const corpusHeader = "go test fuzz v1"

// readCorpus reads the files of a corpus folder: a line with []byte("...") and perhaps one with bool(...).
func readCorpus(dir string) ([]Input, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	var out []Input
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		in := Input{}
		for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n")[1:] {
			text, isBytes := strings.CutPrefix(line, "[]byte(")
			if !isBytes {
				in.Flag = line == "bool(true)"
				continue
			}
			s, err := strconv.Unquote(strings.TrimSuffix(text, ")"))
			if err != nil {
				return nil, fmt.Errorf("corpus file %s: %w", path, err)
			}
			in.Data = []byte(s)
		}
		out = append(out, in)
	}
	return out, nil
}
