package plan

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/forecast"
	"patchbay/parallel/plan"
	"patchbay/tests/scratch"
)

// answer returns what plan reports with these flags.
func answer(t *testing.T, flags ...string) (r report, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(flags, "--json"))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	if err := cmd.Execute(); err != nil {
		return r, err
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// TestNetsCount compares what nets add to a plan with the sizes of released files: InstantX' union net for FLUX.1 has
// 6.60 GB, Shakker's second 4.28, DiffSynth's nets for Qwen-Image 2.27. Time grows by at least the share of the copied
// blocks' products, and a plan that fits without them may not fit with them.
func TestNetsCount(t *testing.T) {
	for _, c := range []struct {
		model, plan, flag, net string
		ranks                  float64 // that share the net's weights
		gb, slower             float64
	}{
		{"flux-dev", "ulysses=2", "--control", "5+10", 1, 6.60, 1.2},
		{"flux-dev", "ulysses=2", "--control", "6", 1, 4.28, 1.1},
		{"flux-dev", "tensor=2", "--control", "5+10", 2, 6.60, 1.2},
		{"flux-dev", "pipe=2,patches=4", "--control", "5+10", 1, 6.60, 1.3},
		{"qwen-image", "ulysses=2", "--patch", "blocks", 1, 2.27, 1.04},
	} {
		flags := []string{"--model", c.model, "--devices", "2xH100-nvlink", "--plan", c.plan}
		bare, err := answer(t, flags...)
		if err != nil {
			t.Fatal(err)
		}
		with, err := answer(t, append(flags, c.flag, c.net)...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ranks * gb(with.Memory.Weights-bare.Memory.Weights); !(math.Abs(got/c.gb-1) <= 0.02) {
			t.Errorf("%s with %s %s: %.2f GB of weights more, the file has %.2f", c.model, c.plan, c.net, got, c.gb)
		}
		more := (with.Seconds - bare.Seconds) / 28
		if c.model == "qwen-image" {
			more = (with.Seconds - bare.Seconds) / 50
		}
		if !(with.Seconds > c.slower*bare.Seconds && with.Seconds < 2*bare.Seconds) ||
			!(math.Abs(with.StepSeconds-bare.StepSeconds-more) <= 1e-6*more) {
			t.Errorf("%s with %s %s: %.3g s, a step %.3g, without %.3g, %.3g", c.model, c.plan, c.net, with.Seconds,
				with.StepSeconds, bare.Seconds, bare.StepSeconds)
		}
		if sum := with.Ranks[0]; !(math.Abs(sum.Compute+sum.Exchange+sum.Send+sum.Idle-with.Seconds) <= 1e-6) {
			t.Errorf("%s with %s %s: the parts of a rank's %.6g s are %+v", c.model, c.plan, c.net, with.Seconds, sum)
		}
		if len(with.Nets) != 1 || with.Nets[0] != c.net {
			t.Errorf("%s %s: nets %v are told", c.plan, c.net, with.Nets)
		}
	}
	fits := []string{"--model", "flux-dev", "--devices", "2x4090-pcie", "--plan", "pipe=2,shard=on"}
	if _, err := answer(t, fits...); err != nil {
		t.Error(err)
	}
	if _, err := answer(t, append(fits, "--control", "5+10", "--control", "6")...); err == nil ||
		!strings.Contains(err.Error(), "are free on 4090") {
		t.Errorf("11 GB of nets beside 16 of the model on 24: %v", err)
	}
}

// written writes a recorded set of weights to a file and returns its path.
func written(t *testing.T, dir, name string) string {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Tensor
	for _, n := range set.Names() {
		st, _ := set.Get(n)
		entries = append(entries, safetensors.Tensor{Name: n, DType: st.DType, Shape: st.Shape, Data: datafile.Of(st.Data)})
	}
	text := string(config)
	if name == "cn-fun-a" || name == "cn-qwen-a" { // what names and shapes do not tell
		text = `{"axes_dims_rope": [8, 16, 16]}`
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, map[string]string{"config": text}, entries); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name+".safetensors")
	scratch.Write(t, path, b.Bytes())
	return path
}

// TestBorrowedTensorsCount checks nets that start with tensors of their model. They copy these
// (TestNetsHaveWhatTheyBorrow), so the tensors count beside the net's file: as stored in the model's file, divided over
// the ranks of a tensor group, and beside a released model as its weights are stored.
func TestBorrowedTensorsCount(t *testing.T) {
	dir := t.TempDir()
	const fun, sd35 = 120, 192 // widths
	for net, c := range map[string]struct {
		model, borrows string
		released       int64 // parameters, for text states of 3584 columns and pooled vectors of 2048
	}{
		"cn-fun-a": {
			"qwen-a", "img_in. txt_in. txt_norm. time_text_embed.", (64+1)*fun + 3584 + (3584+1)*fun + (256+1+fun+1)*fun,
		},
		"cn-sd35-canny-a": {"sd3-b", "y_embedder.", (2048 + 1 + sd35 + 1) * sd35},
		"cn-qwen-a":       {"qwen-a", "", 0},
	} {
		model, file := written(t, dir, c.model), written(t, dir, net)
		set, _, err := goldenweights.Set(c.model)
		if err != nil {
			t.Fatal(err)
		}
		borrowed := int64(0)
		for _, name := range set.Names() {
			for _, begin := range strings.Fields(c.borrows) {
				if s, _ := set.Get(name); strings.HasPrefix(name, begin) {
					borrowed += 4 * int64(s.Len())
				}
			}
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if (borrowed == 0) != (c.borrows == "") {
			t.Fatalf("%s borrows %d bytes", net, borrowed)
		}
		for text, ranks := range map[string]int64{"ulysses=2": 1, "pipe=2": 1, "tensor=2": 2} {
			flags := []string{"--model", model, "--devices", "2xH100-nvlink", "--size", "256x256", "--plan", text}
			bare, err := answer(t, flags...)
			if err != nil {
				t.Fatal(err)
			}
			with, err := answer(t, append(flags, "--control", file)...)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := with.Memory.Weights-bare.Memory.Weights, (info.Size()+borrowed)/ranks; got != want {
				t.Errorf("%s %s: %d bytes of weights more, want %d", net, text, got, want)
			}
		}
		released := Flags{Model: model, controls: []string{file}}
		m, err := released.open()
		if err != nil {
			t.Fatal(err)
		}
		released.opened = nil
		w := forecast.Workload{Spec: m.Spec, Y: 32, X: 32, Text: []int{9}}
		if err := released.nets(&w, 2); err != nil {
			t.Fatal(err)
		}
		if got, want := w.Nets[0].Bytes, info.Size()+2*c.released; got != want {
			t.Errorf("%s beside a released model: %d bytes, want %d", net, got, want)
		}
	}
}

// TestRowsInFrontOfTheTextCount checks that the rows that a USO projector puts in front of the text, as many as its
// file says, count in a plan, as they run through the blocks (TestPrefixesAreForecast compares that with the executor).
// The projector has no weights beside the model's.
func TestRowsInFrontOfTheTextCount(t *testing.T) {
	dir := t.TempDir()
	model, one, two := written(t, dir, "kontext-a"), written(t, dir, "uso-a"), written(t, dir, "uso-b")
	flags := []string{"--model", model, "--devices", "2xH100-nvlink", "--size", "256x256"}
	for _, text := range []string{"ulysses=2", "pipe=2,patches=2"} {
		bare, err := answer(t, append(flags, "--plan", text)...)
		if err != nil {
			t.Fatal(err)
		}
		for count, patches := range [][]string{1: {"--patch", one}, 2: {"--patch", one, "--patch", two}} {
			with, err := answer(t, append(append(flags, "--plan", text), patches...)...)
			if err != nil {
				t.Fatal(err)
			}
			f := Flags{Model: model, Devices: "2xH100-nvlink", Size: "256x256", Batch: 1, Warmup: 1}
			s, err := f.Search()
			if err != nil {
				t.Fatal(err)
			}
			s.Prefix = 3 * 4 * count // layers of the encoder, rows of each
			p, err := plan.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			want, err := s.Predict(p)
			if err != nil {
				t.Fatal(err)
			}
			if with.Memory != want.Best.Memory || with.Seconds != want.Simulation.Seconds ||
				(with.Memory.Session <= bare.Memory.Session) != (count == 0) || with.Memory.Weights != bare.Memory.Weights {
				t.Errorf("%s with %d projectors: %.6g s and %+v, want %.6g s and %+v; %+v without", text, count, with.Seconds,
					with.Memory, want.Simulation.Seconds, want.Best.Memory, bare.Memory)
			}
		}
	}
	if _, err := answer(t, "--model", "flux-dev", "--devices", "2xH100-nvlink", "--patch", one); err == nil ||
		!strings.Contains(err.Error(), "makes rows of 120 values in front of a text, the flux model of width 3072") {
		t.Errorf("a projector for a model of width 120 beside FLUX.1: %v", err)
	}
}

// TestNetsOfFiles checks that a net's file counts by its own shapes, which are those of the plain word too.
func TestNetsOfFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) string { return written(t, dir, name) }
	model, patch := write("qwen-a"), write("diffsynth-a")
	flags := []string{"--model", model, "--devices", "2xH100-nvlink", "--size", "256x256", "--plan", "ulysses=2"}
	bare, err := answer(t, flags...)
	if err != nil {
		t.Fatal(err)
	}
	file, err := answer(t, append(flags, "--patch", patch)...)
	if err != nil {
		t.Fatal(err)
	}
	word, err := answer(t, append(flags, "--patch", "blocks")...)
	if err != nil {
		t.Fatal(err)
	}
	// the file has a header; a net without a file counts in the type of the model's, which is f32
	ofFile, ofWord := file.Memory.Weights-bare.Memory.Weights, word.Memory.Weights-bare.Memory.Weights
	if share := float64(ofFile) / float64(ofWord); !(share >= 1 && share <= 1.03) || ofWord <= 0 {
		t.Errorf("the file adds %d bytes of weights, its shapes %d", ofFile, ofWord)
	}
	if !(math.Abs(file.Seconds/word.Seconds-1) <= 1e-9) || file.Memory.Session != word.Memory.Session ||
		!(file.Seconds > bare.Seconds) {
		t.Errorf("%.6g s and %d bytes by the file, %.6g and %d by the word, %.6g without", file.Seconds,
			file.Memory.Session, word.Seconds, word.Memory.Session, bare.Seconds)
	}
	for want, more := range map[string][]string{
		"is for qwenimage models of width 120, the model is flux": {"--model", "flux-dev", "--patch", patch},
		"no model patches run here for flux":                      {"--model", "flux-dev", "--patch", "blocks"},
		"no control nets run here beside pixart":                  {"--model", "pixart-sigma", "--control", "5"},
		"want at least one block, and at most 19 and 38":          {"--model", "flux-dev", "--control", "5+39"},
		"as in 5+10":          {"--model", "flux-dev", "--control", "union"},
		`or "blocks"`:         {"--model", "qwen-image", "--patch", "diffsynth"},
		"not a control net":   {"--model", "qwen-image", "--control", model},
		"leave out --control": {"--check", "--control", "5"},
	} {
		if _, err := answer(t, append([]string{"--devices", "2xH100-nvlink"}, more...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want a refusal with %q", more, err, want)
		}
	}
}
