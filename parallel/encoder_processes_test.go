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
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/golden"
)

// encoderFile writes a small Qwen3 with two key heads to a file. It returns the model, bare and with an adapter, the
// bytes of all weights and of the embeddings, a prompt, and what both models make of it on one rank.
func encoderFile(t *testing.T) (m, with request.Model, whole, embeddings int64, question []byte, want,
	adapted []float32,
) {
	t.Helper()
	set, _, err := goldenweights.Set("qwen3-a")
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Tensor
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		entries = append(entries, safetensors.Tensor{Name: name, DType: w.DType, Shape: w.Shape, Data: datafile.Of(w.Data)})
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
	one, err := text.OpenPart(ops, "qwen3", file.Set(), nil, 0, 1, 0)
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
	seen := make([]float32, set.Dim("model.embed_tokens.weight", 1)) // like an image embedding
	for i := range seen {
		seen[i] = float32(math.Sin(float64(i)))
	}
	chunks[1][3] = tokenizer.Token{Vector: seen, Weight: 1}
	states, err := one.Encode(text.Env{Ops: ops}, chunks, form)
	if err != nil {
		t.Fatal(err)
	}
	want = states.Context.Data
	if question, err = source.Prompt(chunks, form); err != nil {
		t.Fatal(err)
	}
	const k, o = "model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.o_proj" // cut by rows and by columns
	var low []weights.LowRank
	for _, name := range []string{k, o} {
		out, in := set.Dim(name+".weight", 0), set.Dim(name+".weight", 1)
		pair := func(what string, shape ...int) weights.Stored {
			data := make([]byte, 4*shape[0]*shape[1])
			engine.Narrow(data, golden.Input(name+what, shape[0]*shape[1]), engine.F32)
			return weights.Stored{DType: engine.F32, Shape: shape, Data: data}
		}
		low = append(low, weights.LowRank{Name: name, Scale: 0.1, Down: pair("down", 3, in), Up: pair("up", out, 3)})
	}
	other, err := one.Adapt(ops, low)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	states, err = other.Encode(text.Env{Ops: ops}, chunks, form)
	if err != nil {
		t.Fatal(err)
	}
	adapted = states.Context.Data
	w := source.Weights{Model: source.Model{File: f, Encoder: &source.Encoder{Kind: "qwen3", DType: engine.F32}}}
	embeddings = 4 * int64(set.Dim("model.embed_tokens.weight", 0)*set.Dim("model.embed_tokens.weight", 1))
	m = request.Model{Key: w.Key(), Weights: w, WeightBytes: set.Bytes()}
	w.Adapters = []source.Adapter{{ID: "more", Name: "more", Own: low}}
	with = request.Model{Key: w.Key(), Weights: w, WeightBytes: set.Bytes()}
	return m, with, one.Bytes(), embeddings, question, want, adapted
}

// TestEncodersAreCutOverProcesses checks that ranks of a tensor group in processes of their own encode a prompt
// together with the states of one rank, that each process holds only its part of the encoder, and that ranks outside
// the group hold nothing. The processes read the file themselves: a file that they lack is left to the leader. A
// canceled prompt ends, and the next one is encoded.
func TestEncodersAreCutOverProcesses(t *testing.T) {
	m, with, whole, embeddings, question, want, adapted := encoderFile(t)
	p := &processes{dir: t.TempDir()}
	e, err := NewPool(Config{NewOps: testOps, Processes: p})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	encode := func(ctx context.Context, text string, m request.Model) (answer []byte, done bool, err error) {
		split, err := plan.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		err = e.Do(ctx, "encode", func(l *Workspace) error {
			if n := l.RemoteTaskRanks(split); n != split.Tensor {
				t.Errorf("%s: %d ranks share the work", text, n)
			}
			answer, done, err = l.Task(split, 2, m, question)
			return err
		})
		return answer, done, err
	}
	equal := func(text string, m request.Model, want []float32) {
		t.Helper()
		answer, done, err := encode(context.Background(), text, m)
		if err != nil || !done {
			t.Fatalf("%s: done %v, %v", text, done, err)
		}
		states, err := source.Encoding(answer)
		if err != nil {
			t.Fatal(err)
		}
		got := states.Context.Data
		limit := 0.0 // sums in another order differ by parts of the largest values, whatever they add up to
		for _, v := range want {
			limit = max(limit, 1e-5*math.Abs(float64(v)))
		}
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); len(got) != len(want) || !(d <= limit) {
				t.Fatalf("%s: value %d of %d is %g, on one rank %g of %d", text, i, len(got), got[i], want[i], len(want))
			}
		}
	}
	equal("tensor=2", with, adapted)
	for _, h := range e.whole.processes {
		h.Evict("")
	}
	for _, text := range []string{"tensor=2", "ulysses=2,tensor=2", "tensor=4", "pipe=2,tensor=2,warmup=99"} {
		equal(text, m, want)
		for i, h := range e.whole.processes {
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
	elsewhere := m.Weights.(source.Weights)
	elsewhere.File.Path += "-elsewhere"
	lost.Key, lost.Weights = elsewhere.Key(), elsewhere
	if _, done, err := encode(ctx, "tensor=2", lost); done || err != nil {
		t.Errorf("a file that the processes do not have: done %v, %v; want it left to the leader", done, err)
	}
	err = e.Do(ctx, "encode", func(l *Workspace) error {
		cancel()
		_, _, err := l.Task(plan.Plan{Data: 1, CFG: 1, Pipe: 1, Ring: 1, Ulysses: 1, Tensor: 2, Patches: 1}, 2, m, question)
		return err
	})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Cancelled {
		t.Errorf("got %v, want a cancelled prompt", err)
	}
	if _, done, err := encode(context.Background(), "tensor=2", m); !done || err != nil {
		t.Errorf("behind a cancelled prompt: done %v, %v", done, err)
	}
	r := benchRequest(t, 192, 16)
	r.Plan = "tensor=2"
	r.Model.Weights = named{r.Model.Weights, "192"}
	first, err := e.Sample(context.Background(), r, nil) // on the ranks that have encoded
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Sample(context.Background(), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := first.Stats.Traffic[0][plan.AxisTensor], again.Stats.Traffic[0][plan.AxisTensor]; a.Bytes != b.Bytes {
		t.Errorf("a request behind a prompt is charged with %d bytes, the next with %d", a.Bytes, b.Bytes)
	}
}
