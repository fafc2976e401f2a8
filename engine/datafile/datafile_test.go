package datafile

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
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

// stored returns the contents as openPacked reads them, the planes picked byte by byte.
func stored(t *testing.T, contents []byte, header int) []byte {
	t.Helper()
	planes := bytes.Clone(contents[:header])
	whole := (len(contents) - header) / 4 * 4
	for plane := range 4 {
		for i := range whole {
			if i%4 == plane {
				planes = append(planes, contents[header+i])
			}
		}
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(append(planes, contents[header+whole:]...)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFilesInPlanes checks that a file that is stored compressed reads as what it stands for, in every range; that its
// header is read without the rest; and that damage, or a file that only looks like one, is refused.
func TestFilesInPlanes(t *testing.T) {
	const header = 8 + 5
	contents := append(binary.LittleEndian.AppendUint64(nil, 5), "headr"...)
	for i := range 43 { // 10 words, and 3 bytes that are left
		contents = append(contents, byte(7*i+1))
	}
	good := stored(t, contents, header)
	f, err := Open(written(t, string(good)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if f.Size() != int64(len(contents)) {
		t.Fatalf("%d bytes, want %d", f.Size(), len(contents))
	}
	for lo := range contents {
		for hi := lo; hi <= len(contents); hi++ {
			if got := f.All().Slice(lo, hi).Bytes(); !bytes.Equal(got, contents[lo:hi]) {
				t.Fatalf("bytes [%d, %d) are %v, want %v", lo, hi, got, contents[lo:hi])
			}
		}
	}
	if err := f.Unchanged(); err != nil {
		t.Error(err)
	}

	damaged := bytes.Clone(good)
	damaged[len(damaged)-8] ^= 1 // the checksum, behind the data
	f, err = Open(written(t, string(damaged)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	read := func(lo, hi int) (err error) {
		defer Catch(&err)
		f.All().Slice(lo, hi).Bytes()
		return nil
	}
	if err := read(0, header); err != nil {
		t.Errorf("the header alone: %v", err)
	}
	if err := read(0, header+1); !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("data with a wrong checksum: %v", err)
	}

	larger := bytes.Clone(good)
	binary.LittleEndian.PutUint32(larger[len(larger)-4:], largestPacked+1)
	liar := stored(t, append(binary.LittleEndian.AppendUint64(nil, 1<<62), contents...), header)
	binary.LittleEndian.PutUint32(liar[len(liar)-4:], 4)
	for name, b := range map[string][]byte{
		"a length that no file has": liar, "cut in its header": good[:20], "magic alone": good[:2], "too large": larger,
		"no header": stored(t, []byte("no header at all"), 0),
	} {
		got, err := Unpacked(written(t, string(b)))
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: %v, and not the bytes of the file", name, err)
		}
	}
}
