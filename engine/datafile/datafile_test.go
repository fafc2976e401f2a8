package datafile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
)

func written(t *testing.T, data string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCutFile checks that reading a range that is no longer in the file is an error that names file and place, for the
// reader of a header and for one of data.
func TestCutFile(t *testing.T) {
	path := written(t, "0123456789")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if got := f.All().Slice(2, 5).Slice(1, 3).Bytes(); string(got) != "34" {
		t.Fatalf("bytes 3 and 4 are %q", got)
	}
	if err := os.Truncate(path, 4); err != nil {
		t.Fatal(err)
	}
	err = func() (err error) {
		defer Catch(&err)
		f.All().Slice(2, 8).Bytes()
		return nil
	}()
	if !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "had 10 bytes and now ends at byte 4") {
		t.Errorf("read of a cut file: %v", err)
	}
	if err := f.Unchanged(); err == nil {
		t.Error("the cut file counts as unchanged")
	}
	_, err = Parsed(path, func(s Span) (*struct{ Table[int] }, error) {
		if err := os.Truncate(path, 1); err != nil {
			t.Fatal(err)
		}
		s.Bytes()
		return nil, nil
	})
	if !fault.Is(err, fault.FileChanged) {
		t.Errorf("header of a file that is cut meanwhile: %v", err)
	}
}

// TestOtherPanics checks that Catch hides no bug.
func TestOtherPanics(t *testing.T) {
	defer func() {
		if v := recover(); v != "bug" {
			t.Errorf("recovered %v", v)
		}
	}()
	var err error
	defer Catch(&err)
	panic("bug")
}

func TestSpans(t *testing.T) {
	f, err := Open(written(t, "0123456789"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, s := range []Span{f.All(), Of([]byte("0123456789"))} {
		scratch := make([]byte, 4)
		part, dst := s.Slice(3, 7), make([]byte, 2)
		part.Read(dst, 1)
		if got := part.View(&scratch); string(got) != "3456" || string(dst) != "45" || part.Len() != 4 {
			t.Errorf("bytes 3 to 7 are %q, 4 and 5 %q", got, dst)
		}
		var all bytes.Buffer
		piece := make([]byte, 8)
		n, err := part.ReadAt(piece, 1)
		all.Write(piece[:n])
		if err == nil || all.String() != "456" {
			t.Errorf("ReadAt from byte 1 gives %q, %v", all.String(), err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a range outside is not refused")
				}
			}()
			part.Slice(2, 5)
		}()
	}
}
