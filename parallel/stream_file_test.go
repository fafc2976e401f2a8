package parallel

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/tiny"
	"patchbay/parallel/request"
)

// modelFiles returns a function that writes a checkpoint of the tiny flux model and describes it.
func modelFiles(t *testing.T) func() (path string, m request.Model) {
	t.Helper()
	set, metadata, err := tiny.Checkpoint("flux")
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Tensor
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		data := datafile.Of(w.Elements(0, w.Len()))
		entries = append(entries, safetensors.Tensor{Name: name, DType: w.DType, Shape: w.Shape, Data: data})
	}
	return func() (path string, m request.Model) {
		path = filepath.Join(t.TempDir(), "model.safetensors")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := safetensors.Write(out, metadata, entries); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		return path, modelOf(t, path)
	}
}

// modelOf describes a checkpoint.
func modelOf(t *testing.T, path string) request.Model {
	t.Helper()
	f, file, err := source.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	w := source.Weights{Model: source.Model{File: f}, Loader: &source.Loader{}}
	return request.Model{Key: w.Key(), Weights: w, WeightBytes: w.Bytes()}
}

// TestStreamsReadTheirFile checks blocks that are read from a real file before each use: whole weights' picture, also
// where another file takes the name in the middle of a run, since the one that was opened stays. For a file that is
// written to or cut, or replaced by one of equal size and time, there is the error file_changed, which names the file
// and where it ends, after which the pool runs other requests.
func TestStreamsReadTheirFile(t *testing.T) {
	written := modelFiles(t)
	e, r := newEngine(t), tinyRequest(t, "flux", 1, 9, 8, 3)
	sample := func(m request.Model, plan string, observe request.Observe) (*request.Result, error) {
		m.Spec = r.Model.Spec
		of := *r
		of.Model, of.Plan = m, plan
		return e.Sample(context.Background(), &of, observe)
	}
	_, good := written()
	whole, err := sample(good, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, harm := range map[string]func(path string) error{
		"": func(string) error { return nil },
		"replace": func(path string) error {
			other := path + ".new"
			if err := os.WriteFile(other, make([]byte, 100), 0o600); err != nil {
				return err
			}
			return os.Rename(other, path)
		},
		"touch": func(path string) error { return os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)) },
		"cut":   func(path string) error { return os.Truncate(path, 5000) },
		"header": func(path string) error { // a model in other words, of the same size and time
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			out, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			if _, err := out.WriteAt([]byte{'!'}, 9); err != nil {
				return err
			}
			if err := out.Close(); err != nil {
				return err
			}
			return os.Chtimes(path, time.Time{}, info.ModTime())
		},
	} {
		for _, plan := range []string{"stream=on", "ulysses=2,stream=4", "ulysses=2,shard=on,stream=on"} {
			path, m := written()
			got, err := sample(m, plan, func(p request.Progress) error {
				if p.Step == 1 {
					return harm(path)
				}
				return nil
			})
			switch {
			case what == "" || what == "replace":
				if err != nil {
					t.Fatal(err)
				}
				if rel := relative(got.Latent.Data, whole.Latent.Data); !(rel <= 1e-5) {
					t.Errorf("%s: differs from one rank with whole weights by %.3g, bound 1e-5", plan, rel)
				}
			case !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), path):
				t.Errorf("%s, %s: %v, want file_changed with %s", what, plan, err, path)
			case what == "cut" && !strings.Contains(err.Error(), "now ends at byte"):
				t.Errorf("%s, %s: %v, want the byte at which the file ends", what, plan, err)
			}
			again, err := sample(good, plan, nil)
			if err != nil {
				t.Fatalf("after %q, %s: %v", what, plan, err)
			}
			if rel := relative(again.Latent.Data, whole.Latent.Data); !(rel <= 1e-5) {
				t.Errorf("after %q, %s: differs from one rank with whole weights by %.3g, bound 1e-5", what, plan, rel)
			}
		}
	}
}

// TestCopiesOutliveThePool checks Config.Copies in a folder: ranks read the blocks that they bring from there, to the
// bits of whole weights, a later pool finds them again and packs none, and one of another model at the same path does
// not.
func TestCopiesOutliveThePool(t *testing.T) {
	written, r := modelFiles(t), tinyRequest(t, "flux", 1, 9, 8, 2)
	path, _ := written()
	dir := t.TempDir()
	sample := func(plan string) []float32 {
		t.Helper()
		e, err := NewPool(Config{NewOps: testOps, Copies: datafile.NewCopies(dir, "", nil, func(err error) { t.Error(err) })})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		of := *r
		of.Model, of.Plan = modelOf(t, path), plan
		of.Model.Spec = r.Model.Spec
		got, err := e.Sample(context.Background(), &of, nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Latent.Data
	}
	list := func() map[string]time.Time {
		all, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		times := map[string]time.Time{}
		for _, path := range all {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			times[path] = info.ModTime()
		}
		return times
	}
	whole, files := sample(""), 0
	for _, c := range []struct {
		plan string
		more int // files, of units that no plan before has brought
	}{
		{"stream=on", 7},
		{"ulysses=2,stream=4", 0},
		{"pipe=2,patches=2,warmup=2,stream=on", 0},
		{"tensor=2,stream=on", 14},
		{"ulysses=2,shard=on,stream=on", 14},
	} {
		first := sample(c.plan)
		after := list()
		if files += c.more; len(after) != files {
			t.Errorf("%s: %d files in the folder, want %d", c.plan, len(after), files)
		}
		if rel := relative(first, whole); !(rel <= 1e-5) {
			t.Errorf("%s: differs from one rank with whole weights by %.3g, bound 1e-5", c.plan, rel)
		}
		if at := firstDifference(sample(c.plan), first); at >= 0 {
			t.Errorf("%s: element %d differs in the pool that finds the copies", c.plan, at)
		}
		if !maps.Equal(list(), after) {
			t.Errorf("%s: the second pool wrote files", c.plan)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(data) - 4000; i < len(data); i++ {
		data[i] ^= 1
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if firstDifference(sample("stream=on"), whole) < 0 {
		t.Error("the changed file makes the same picture: its copies are those of the file before")
	}
	if n := len(list()); n != 7 {
		t.Errorf("%d files are left, want those of the changed file", n)
	}
}

// TestFilesChangeUnderRankProcesses checks that a model file which is written to or cut while ranks of other processes
// and hosts read blocks from it is the error file_changed with its name, and the byte at which it ends; that another
// file which takes its name changes nothing; and that the same processes run the next request.
func TestFilesChangeUnderRankProcesses(t *testing.T) {
	written, r := modelFiles(t), tinyRequest(t, "flux", 1, 9, 8, 6)
	far, h := newHosts(t)
	p := &processes{dir: t.TempDir()}
	children, err := NewPool(Config{NewOps: testOps, Processes: p})
	if err != nil {
		t.Fatal(err)
	}
	defer children.Close()
	_, good := written()
	for k, e := range []*Pool{far, children} {
		sample := func(m request.Model, observe request.Observe) (*request.Result, error) {
			of := *r
			m.Spec, of.Plan = r.Model.Spec, "ulysses=2,stream=4"
			of.Model = m
			return e.Sample(context.Background(), &of, observe)
		}
		want, err := sample(good, nil)
		if err != nil {
			t.Fatal(err)
		}
		started := slices.Clone(p.pids)
		for _, c := range []struct {
			what, says string
			harm       func(path string) error
		}{
			{"replaced", "", func(path string) error {
				if err := os.WriteFile(path+".new", make([]byte, 100), 0o600); err != nil {
					return err
				}
				return os.Rename(path+".new", path)
			}},
			{"touched", "was changed while it was read", func(path string) error {
				return os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour))
			}},
			{"cut", "now ends at byte 5000", func(path string) error { return os.Truncate(path, 5000) }},
		} {
			path, m := written()
			got, err := sample(m, func(p request.Progress) error {
				if p.Step == 1 {
					return c.harm(path)
				}
				return nil
			})
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%d, %s: %v", k, c.what, err)
			case c.says == "":
				if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
					t.Errorf("%d, %s: element %d differs from the file that was opened", k, c.what, at)
				}
			case !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), c.says):
				t.Errorf("%d, %s: %v, want file_changed with %s and %q", k, c.what, err, path, c.says)
			}
			again, err := sample(good, nil)
			if err != nil {
				t.Fatalf("%d, after one that was %s: %v", k, c.what, err)
			}
			if at := firstDifference(again.Latent.Data, want.Latent.Data); at >= 0 {
				t.Errorf("%d, after one that was %s: element %d differs", k, c.what, at)
			}
		}
		if !slices.Equal(p.pids, started) || h.starts != 1 {
			t.Errorf("%d: processes %v were %v, hosts were started %d times, want once", k, p.pids, started, h.starts)
		}
	}
}
