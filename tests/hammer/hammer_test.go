package hammer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// tame returns a target that never fails.
func tame() *Target[int] {
	return &Target[int]{
		Name: "FuzzTame", Flag: true, Seeds: []Input{{Data: []byte("a\x00b")}, {Data: []byte(`{"k": [1, 2]}`), Flag: true}},
		Parse: func(in Input) (int, error) {
			if len(in.Data)%2 == 0 {
				return 0, fmt.Errorf("even at byte %d of %q", len(in.Data), in.Data)
			}
			return len(in.Data), nil
		},
		Bound: func(in Input) int64 { return 4<<10 + 16*int64(len(in.Data)) },
	}
}

// TestRunCountsAndBounds checks that Run makes every execution of a correct target and keeps inputs within maxInput.
func TestRunCountsAndBounds(t *testing.T) {
	target := tame()
	target.Check = func(in Input, n int, refused error) error {
		if len(in.Data) > maxInput || refused == nil && n != len(in.Data) {
			return fmt.Errorf("an input of %d bytes gave %d", len(in.Data), n)
		}
		return nil
	}
	target.Run(t, 5001)
}

// TestExecuteFinds checks that execute reports each fault that a target can have.
func TestExecuteFinds(t *testing.T) {
	var sink []byte
	for what, plant := range map[string]func(*Target[int]){
		"panic: planted": func(g *Target[int]) { g.Parse = func(Input) (int, error) { panic("planted") } },
		"make the parser allocate": func(g *Target[int]) {
			g.Parse = func(Input) (int, error) { sink = make([]byte, 1<<20); return 0, nil }
		},
		"the wrong answer": func(g *Target[int]) {
			g.Check = func(Input, int, error) error { return errors.New("the wrong answer") }
		},
		"the wrong way of refusing": func(g *Target[int]) {
			g.Parse = func(Input) (int, error) { return 0, errors.New("no") }
			g.Check = func(_ Input, _ int, refused error) error { return fmt.Errorf("the wrong way of refusing: %w", refused) }
		},
	} {
		target := tame()
		plant(target)
		_, _, err := target.execute(target.Seeds[0], newMeter(), new(sync.RWMutex), false)
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %q", err, what)
		}
	}
	_ = sink
}

// TestKeptInputsAreRead checks that inputs written in Go's corpus format are read back unchanged.
func TestKeptInputsAreRead(t *testing.T) {
	t.Chdir(t.TempDir())
	target := tame()
	want := map[string]bool{}
	for _, in := range []Input{{Data: []byte("\x00\xff\"\\\n`)")}, {Data: []byte("é)\r"), Flag: true}, {Data: []byte{}}} {
		if _, err := target.keep(in); err != nil {
			t.Fatal(err)
		}
		want[fmt.Sprint(in)] = true
	}
	got, err := readCorpus("testdata/fuzz/" + target.Name)
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %d inputs, %v; want %d", len(got), err, len(want))
	}
	for _, in := range got {
		if !want[fmt.Sprint(in)] {
			t.Errorf("read %v, which was not written", in)
		}
	}
}

// TestMutatorRepeatsItself checks that a seed always gives the same inputs, that another seed gives other inputs, and
// that most inputs differ from those they were made from.
func TestMutatorRepeatsItself(t *testing.T) {
	seeds := tame().Seeds
	run := func(seed uint64) (out [][]byte, changed int) {
		m := mutator{rnd: rand.New(rand.NewPCG(seed, 0)), corpus: seeds}
		for range 2000 {
			in := m.mutate()
			out = append(out, bytes.Clone(in.Data))
			if !bytes.Equal(in.Data, seeds[0].Data) && !bytes.Equal(in.Data, seeds[1].Data) {
				changed++
			}
		}
		return out, changed
	}
	a, changed := run(1)
	b, _ := run(1)
	c, _ := run(2)
	same := func(x, y [][]byte) bool { return bytes.Equal(bytes.Join(x, []byte{'|'}), bytes.Join(y, []byte{'|'})) }
	if !same(a, b) || same(a, c) || changed < 1800 {
		t.Errorf("the same seed repeats: %v, another differs: %v, %d of 2000 inputs changed",
			same(a, b), !same(a, c), changed)
	}
}
