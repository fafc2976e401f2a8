package source

import (
	"os"
	"path/filepath"
	"testing"

	"patchbay/engine/datafile"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/models/weights/goldenweights"
)

// TestLoadedNetIsControl checks that what a Loader returns for the file of a control net is still a dit.Control.
func TestLoadedNetIsControl(t *testing.T) {
	set, _, err := goldenweights.Set("cn-qwen-a")
	if err != nil {
		t.Fatal(err)
	}
	var entries []safetensors.Tensor
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		entries = append(entries, safetensors.Tensor{Name: name, DType: w.DType, Shape: w.Shape, Data: datafile.Of(w.Data)})
	}
	path := filepath.Join(t.TempDir(), "net.safetensors")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(out, map[string]string{"config": `{"axes_dims_rope": [8, 16, 16]}`}, entries); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	f, file, err := Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	l := &Loader{}
	for range 2 { // the second load shares the weights of the first
		m, err := l.Load(ref.New(), Model{File: f}, dit.Held{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		n, ok := dit.As[dit.Control](m)
		if !ok {
			t.Fatalf("%T is no dit.Control", m)
		}
		if feeds := n.Feeds(n.Spec()); len(feeds) == 0 {
			t.Error("the net feeds no block")
		}
	}
}

// weight counts how often it is closed.
type weight struct{ closed int }

func (w *weight) Close() { w.closed++ }

// TestSharedDoesNotWaitForALoad checks that loaded values can be taken, pinned and released while another is loading.
func TestSharedDoesNotWaitForALoad(t *testing.T) {
	var s Shared
	first := &weight{}
	get := func(v *weight) func() (*weight, error) { return func() (*weight, error) { return v, nil } }
	_, release, err := Take(&s, "a 1", get(first))
	if err != nil {
		t.Fatal(err)
	}
	second, free, err := Take(&s, "b 1", func() (*weight, error) {
		again, more, err := Take(&s, "a 1", get(nil))
		if err != nil || again != first {
			t.Errorf("a second user got %v, %v", again, err)
		}
		unpin := s.Pin("a ")
		for _, f := range []func(){release, more, more} {
			f()
			if first.closed != 0 {
				t.Error("closed while it was pinned")
			}
		}
		unpin()
		if first.closed != 1 {
			t.Errorf("closed %d times, want once", first.closed)
		}
		return &weight{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if free(); second.closed != 1 || len(s.held) > 0 {
		t.Errorf("closed %d times, %d values are left", second.closed, len(s.held))
	}
}
