package value

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/fault"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/parallel"
)

// openEncoder opens the only part of an encoder.
func openEncoder(ops engine.Ops, e *encoder, dtype engine.DType, room int64) (*opened[text.Net], error) {
	return openNet(e.file, "clip", func(file *weights.File) (text.Net, error) {
		return text.OpenPart(ops, e.kind, e.set(file, dtype), e.config, 0, 1, room)
	})
}

// TestEncodersReadTheirFile checks encoders that may take less than their weights: their file stays open until they are
// closed, the states are those of whole ones, and a file that is written to meanwhile is file_changed.
func TestEncodersReadTheirFile(t *testing.T) {
	demo, err := safetensors.Open("../../examples/demo/text_encoders/demo_t5.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Tensor // with its two layers three times
	for _, name := range demo.Names() {
		w, _ := demo.Entry(name)
		list = append(list, w)
		var layer int
		var rest string
		if _, err := fmt.Sscanf(name, "encoder.block.%d.%s", &layer, &rest); err != nil || strings.Contains(rest, "bias") {
			continue
		}
		for i := layer + 2; i < 6; i += 2 {
			w.Name = fmt.Sprintf("encoder.block.%d.%s", i, rest)
			list = append(list, w)
		}
	}
	path := filepath.Join(t.TempDir(), "t5.safetensors")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(safetensors.Write(f, nil, list), f.Close(), demo.Close()); err != nil {
		t.Fatal(err)
	}
	isOpen := func() bool {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("NOT RUN: this system does not list open files")
		}
		return slices.ContainsFunc(list, func(e os.DirEntry) bool {
			target, err := os.Readlink("/proc/self/fd/" + e.Name())
			return err == nil && target == path
		})
	}
	file, opened, err := source.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	e := &encoder{kind: "t5", name: "t5", file: file}
	pool, err := parallel.NewPool(parallel.Config{NewOps: func(int, int) (engine.Ops, error) { return ref.New(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	chunks := [][]tokenizer.Token{{{ID: 5, Weight: 1}, {ID: 7, Weight: 1}, {ID: 1, Weight: 1}}}
	var whole text.Encoding
	for _, room := range []int64{0, 1 << 20} {
		err := pool.Do(t.Context(), "encoder", func(l *parallel.Workspace) error {
			part, err := openEncoder(l.Ops, e, l.DType, room)
			if err != nil {
				return err
			}
			defer part.Close()
			if brings := room > 0; brings != isOpen() || brings != part.net.Brings() {
				t.Errorf("in %d bytes: the file is open: %v", room, isOpen())
			}
			got, err := part.net.Encode(envOf(l), chunks, text.Form{})
			if err != nil {
				return err
			}
			if room == 0 {
				whole = got
			} else if !slices.Equal(got.Context.Data, whole.Context.Data) || len(whole.Context.Data) == 0 {
				t.Error("layers from the file give other states")
			}
			if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
				return err
			}
			defer func() { _ = os.Chtimes(path, time.Time{}, time.Unix(0, file.Changed)) }()
			_, err = part.net.Encode(envOf(l), chunks, text.Form{})
			if changed := fault.Is(err, fault.FileChanged) && strings.Contains(err.Error(), path); changed != (room > 0) {
				t.Errorf("in %d bytes, of a file that was written to: %v", room, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if isOpen() {
			t.Errorf("in %d bytes: the file of a closed encoder is open", room)
		}
	}
	e.file.Hash = "another"
	err = pool.Do(t.Context(), "encoder", func(l *parallel.Workspace) error {
		_, err := openEncoder(l.Ops, e, l.DType, 1<<20)
		return err
	})
	if !fault.Is(err, fault.FileChanged) || errors.Is(err, os.ErrNotExist) || isOpen() {
		t.Errorf("a file that is another one: %v; it is open: %v", err, isOpen())
	}
}
