package datafile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
	for _, lo := range []int{2, 6} { // before and behind the new end
		err = func() (err error) {
			defer Catch(&err)
			f.All().Slice(lo, 8).Bytes()
			return nil
		}()
		if !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "had 10 bytes and now ends at byte 4") {
			t.Errorf("read of a cut file from byte %d: %v", lo, err)
		}
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

// failing is a reader whose reads fail from a byte on, of a disk with a bad sector there.
type failing struct {
	reader
	at  int64
	err error
}

func (f *failing) ReadAt(dst []byte, offset int64) (int, error) {
	if f.err == nil || offset+int64(len(dst)) <= f.at {
		return f.reader.ReadAt(dst, offset)
	}
	n, _ := f.reader.ReadAt(dst[:max(0, f.at-offset)], offset)
	return n, f.err
}

// TestFailingDisk checks that a disk that cannot read some bytes is an error that names file, byte and cause, that
// ranges before them can be read, and that the file can be used again once the disk works.
func TestFailingDisk(t *testing.T) {
	path := written(t, "0123456789")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	disk := &failing{f.fd, 6, syscall.EIO}
	f.fd = disk
	read := func(lo, hi int) (got string, err error) {
		defer Catch(&err)
		return string(f.All().Slice(lo, hi).Bytes()), nil
	}
	for _, c := range []struct {
		lo, hi int
		want   string
	}{
		{0, 6, ""}, {2, 5, ""}, {4, 8, "at byte 6: input/output error"}, {7, 9, "at byte 7: input/output error"},
	} {
		switch got, err := read(c.lo, c.hi); {
		case c.want == "" && (err != nil || got != "0123456789"[c.lo:c.hi]):
			t.Errorf("bytes [%d, %d): %q, %v", c.lo, c.hi, got, err)
		case c.want != "" && (!fault.Is(err, fault.FileChanged) || !errors.Is(err, syscall.EIO) ||
			!strings.Contains(err.Error(), path+": "+c.want)):
			t.Errorf("bytes [%d, %d): %v, want file_changed with %s: %s", c.lo, c.hi, err, path, c.want)
		}
	}
	disk.err = nil
	if got, err := read(4, 8); got != "4567" || err != nil {
		t.Errorf("on a disk that works again: %q, %v", got, err)
	}
}

// TestHeaderUnchanged writes over a file, of which some bytes were read to parse it, and restores its time: the change
// is noticed if it touches those bytes.
func TestHeaderUnchanged(t *testing.T) {
	path := written(t, "0123456789")
	var f *File
	_, err := Parsed(path, func(s Span) (*struct{ Table[int] }, error) {
		s.Slice(0, 2).Bytes() // two ranges that are one, and another one
		s.Slice(2, 3).Bytes()
		s.Slice(6, 8).Bytes()
		f = s.File()
		return &struct{ Table[int] }{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	f.All().Bytes() // of data, when it has been parsed
	if n := len(f.header.ranges); n != 2 {
		t.Errorf("%d ranges are kept, want 2", n)
	}
	for at := range 10 {
		data := []byte("0123456789")
		if data[at]++; os.WriteFile(path, data, 0o600) != nil || os.Chtimes(path, time.Time{}, f.changed) != nil {
			t.Fatal("the file cannot be written")
		}
		if err := f.Unchanged(); err != nil {
			t.Fatalf("size and time are as before: %v", err)
		}
		err := f.HeaderUnchanged()
		if changed := at < 3 || at == 6 || at == 7; changed != fault.Is(err, fault.FileChanged) ||
			changed && !strings.Contains(err.Error(), path) || !changed && err != nil {
			t.Errorf("byte %d was changed: %v", at, err)
		}
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
