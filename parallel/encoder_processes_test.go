package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/safetensors"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/failure"
	"patchbay/parallel/plan"
)

// encoderFile writes a small Qwen3, of two heads of keys, as a file, and returns it with its sizes and what it makes of
// a prompt on one rank.
func encoderFile(t *testing.T) (m Model, whole, embeddings int64, question []byte, want []float32) {
	t.Helper()
	set, _, err := goldenweights.Set("qwen3-a")
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Entry
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		entries = append(entries, safetensors.FromF32(name, w.F32(), w.Shape...))
	}
	path := filepath.Join(t.TempDir(), "qwen3.safetensors")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(safetensors.Write(out, nil, entries), out.Close()); err != nil {
		t.Fatal(err)
	}
	f, file, err := source.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	ops, err := testOps(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	one, err := text.Open(ops, "qwen3", file.Set(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	chunks, form := [][]tokenizer.Token{{}, {}}, text.Form{Taps: []int{0, 1, 2}}
	for i := range chunks {
		for _, id := range []int{5, 7, 33, 41, 1, 0, 2} {
			chunks[i] = append(chunks[i], tokenizer.Token{ID: id + i, Weight: 1})
		}
	}
	seen := make([]float32, set.Dim("model.embed_tokens.weight", 1)) // as a picture would be
	for i := range seen {
		seen[i] = float32(math.Sin(float64(i)))
	}
	chunks[1][3] = tokenizer.Token{Vector: seen, Weight: 1}
	states, err := one.Encode(text.Env{Ops: ops}, chunks, form)
	if err != nil {
		t.Fatal(err)
	}
	if question, err = source.Prompt(chunks, form); err != nil {
		t.Fatal(err)
	}
	w := source.Weights{Model: source.Model{File: f, Encoder: &source.Encoder{Kind: "qwen3", DType: engine.F32}}}
	embeddings = 4 * int64(set.Dim("model.embed_tokens.weight", 0)*set.Dim("model.embed_tokens.weight", 1))
	return Model{Key: w.Key(), Weights: w, WeightBytes: set.Bytes()}, one.Bytes(), embeddings, question,
		states.Context.Data
}

// TestEncodersAreCutOverProcesses: ranks of a tensor group that live in processes of their own encode a prompt together,
// and get the states of one rank; each process holds its part of the encoder alone, and what is in no tensor group
// nothing. The file is read by them: one that they do not have is left to the leader. A cancelled prompt ends, and the
// next one is encoded.
func TestEncodersAreCutOverProcesses(t *testing.T) {
	m, whole, embeddings, question, want := encoderFile(t)
	p := &processes{dir: t.TempDir()}
	e, err := NewEngine(Config{NewOps: testOps, Hosts: p})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	encode := func(ctx context.Context, text string, m Model) (answer []byte, done bool, err error) {
		split, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		err = e.Do(ctx, "encode", func(l *Workspace) error {
			if n := l.Apart(split); n != split.Tensor {
				t.Errorf("%s: %d ranks share the work", text, n)
			}
			answer, done, err = l.Task(split, 2, m, question)
			return err
		})
		return answer, done, err
	}
	for _, text := range []string{"tensor=2", "ulysses=2,tensor=2", "tensor=4", "pipe=2,tensor=2,warmup=99"} {
		answer, done, err := encode(context.Background(), text, m)
		if err != nil || !done {
			t.Fatalf("%s: done %v, %v", text, done, err)
		}
		states, err := source.Encoding(answer)
		if err != nil {
			t.Fatal(err)
		}
		got := states.Context.Data
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); len(got) != len(want) || !(d <= 1e-5) {
				t.Fatalf("%s: value %d of %d is %g, on one rank %g of %d", text, i, len(got), got[i], want[i], len(want))
			}
		}
		for i, h := range e.hosts {
			list := h.Resident()
			if i > 1 {
				if len(list) != 0 {
					t.Errorf("%s: process %d, whose rank has no part, holds %v", text, i, list)
				}
				continue
			}
			most := (whole-embeddings)/2 + (whole-embeddings)/8 // norms are everywhere
			if i == 0 {
				most += embeddings
			}
			if len(list) != 1 || list[0].Bytes < 1 || list[0].Bytes > most ||
				!strings.Contains(list[0].Key, fmt.Sprintf("#tensor%d/2", i)) {
				t.Errorf("%s: process %d holds %v, want its part alone, at most %d of %d bytes", text, i, list, most, whole)
			}
			t.Logf("%s: process %d holds %d bytes of %d", text, i, list[0].Bytes, whole)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	lost := m
	own := m.Weights.(source.Weights)
	own.File.Path += "-elsewhere"
	lost.Key, lost.Weights = own.Key(), own
	if _, done, err := encode(ctx, "tensor=2", lost); done || err != nil {
		t.Errorf("a file that the processes do not have: done %v, %v; want it left to the leader", done, err)
	}
	err = e.Do(ctx, "encode", func(l *Workspace) error {
		cancel()
		_, _, err := l.Task(plan.Plan{Data: 1, CFG: 1, Pipe: 1, Ring: 1, Ulysses: 1, Tensor: 2, Patches: 1}, 2, m, question)
		return err
	})
	var f *failure.Error
	if !errors.As(err, &f) || f.Code != failure.Cancelled {
		t.Errorf("got %v, want a cancelled prompt", err)
	}
	if _, done, err := encode(context.Background(), "tensor=2", m); !done || err != nil {
		t.Errorf("behind a cancelled prompt: done %v, %v", done, err)
	}
}
