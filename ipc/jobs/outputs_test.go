package jobs

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"patchbay/ipc/message"
)

// TestNamesThatWereNotRecorded ends a daemon twice between the moments when a file gets its name and when the record
// has it, the second time after it had looked for what the first had left. There is one file, and its name is found
// again.
func TestNamesThatWereNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output"), Keep: true}
	ref := message.OutputRef{
		Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: 7,
		CRC32C: crc32.Checksum([]byte("picture"), crc32.MakeTable(crc32.Castagnoli)),
	}
	for process := range 3 {
		s, err := NewOutputs(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if process == 0 {
			err = s.Stage("job", []message.File{{Ref: ref, Data: []byte("picture")}})
		} else {
			s.Adopt("job", []message.OutputRef{ref})
		}
		if err != nil {
			t.Fatal(err)
		}
		refs, err := s.Commit("job")
		if err != nil || refs[0].Filename != "p_00001_.png" {
			t.Fatalf("process %d: the file is %+v, %v", process, refs, err)
		}
		s.Sweep()
		if process < 2 {
			continue
		}
		s.Clean("job")
		if left, err := os.ReadDir(cfg.Stage); err != nil || len(left) != 0 {
			t.Errorf("once its name is recorded, %v is left in the stage, %v", left, err)
		}
		if b, err := s.Read("job", 0); err != nil || string(b) != "picture" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
	if files, err := os.ReadDir(cfg.Output); err != nil || len(files) != 1 {
		t.Errorf("the output folder has %v, %v", files, err)
	}
}

// TestFilesAreReadMeanwhile reads a file of a job while its copies in the stage are removed: the race detector is the
// judge.
func TestFilesAreReadMeanwhile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := NewOutputs(OutputsConfig{Stage: filepath.Join(dir, "stage"), Output: filepath.Join(dir, "output")})
	if err != nil {
		t.Fatal(err)
	}
	ref := message.OutputRef{
		Node: "9", Kind: "images", Type: "output", Prefix: "p", Ext: ".png", Bytes: 7,
		CRC32C: message.Checksum([]byte("picture")),
	}
	if err := s.Stage("job", []message.File{{Ref: ref, Data: []byte("picture")}}); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	read := func() {
		if b, err := s.Read("job", 0); err != nil || string(b) != "picture" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	}
	reads.Go(read)
	if _, err := s.Commit("job"); err != nil {
		t.Error(err)
	}
	reads.Go(read)
	s.Clean("job")
	reads.Wait()
	read()
}
