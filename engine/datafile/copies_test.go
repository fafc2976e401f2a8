package datafile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"patchbay/fault"
)

// opened writes a file, opens it, and closes it at the end of the test.
func opened(t *testing.T, path, data string) *File {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// with fills with a text, and counts how often.
func with(text string, times *atomic.Int32) func([]byte) error {
	return func(dst []byte) error {
		times.Add(1)
		copy(dst, text)
		return nil
	}
}

// TestCopiesAreShared checks that bytes are made once for all who want them at the same time, that they stay until the
// last one has released them, or longer while Keep says so, and that what failed is made anew.
func TestCopiesAreShared(t *testing.T) {
	var made atomic.Int32
	c := NewCopies("", "", nil, nil)
	take := func(name, text string) string {
		s, err := c.Take(name, len(text), nil, with(text, &made))
		if err != nil {
			t.Error(err)
		}
		return string(s.Bytes())
	}
	var users sync.WaitGroup
	for range 8 {
		users.Go(func() {
			if got := take("a", "packed"); got != "packed" {
				t.Errorf("a is %q", got)
			}
		})
	}
	users.Wait()
	for range 7 {
		c.Release("a")
	}
	if got := take("a", "others"); got != "packed" || made.Load() != 1 {
		t.Errorf("a is %q, made %d times, want the first bytes", got, made.Load())
	}
	take("b", "another")
	c.Release("a")
	c.Keep(true)
	c.Release("a") // the last one
	if got := take("a", "newer."); got != "packed" {
		t.Errorf("a is %q while copies are kept", got)
	}
	c.Release("a")
	c.Keep(false)
	if got := take("a", "newest"); got != "newest" {
		t.Errorf("a is %q after the last user has gone", got)
	}
	broken := errors.New("broken")
	if _, err := c.Take("c", 3, nil, func([]byte) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("failed with %v", err)
	}
	if got := take("c", "mended"); got != "mended" {
		t.Errorf("c is %q after it failed once", got)
	}
}

// TestCopiesAreCounted checks that memory that may not be taken is not, and that the error says how much was wanted.
func TestCopiesAreCounted(t *testing.T) {
	var made atomic.Int32
	asked := int64(0)
	c := NewCopies("", "", func(n int64) bool { asked += n; return n < 4<<20 }, nil)
	_, err := c.Take("a", 5<<20, nil, with("", &made))
	if !fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), "5 MB") || made.Load() != 0 {
		t.Errorf("5 MiB that are not free: %v, made %d times", err, made.Load())
	}
	for range 2 {
		if _, err := c.Take("b", 3<<20, nil, with("", &made)); err != nil {
			t.Error(err)
		}
	}
	if asked != 8<<20 {
		t.Errorf("%d MiB were counted, want 5 and 3", asked>>20)
	}
}

// TestCopiesInFiles checks that later processes find copies again, but not those of another program or of a file that
// was changed, which are removed; that one which was cut is made anew; and that one which is cut while it is used is
// the error of Changed.
func TestCopiesInFiles(t *testing.T) {
	var made atomic.Int32
	dir, path := filepath.Join(t.TempDir(), "cache"), filepath.Join(t.TempDir(), "model")
	expect := func(what, build string, f *File, text, want string) Span {
		t.Helper()
		c := NewCopies(dir, build, nil, func(err error) { t.Error(err) })
		s, err := c.Take("block 0", len(text), []*File{f}, with(text, &made))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(s.Bytes()); got != want || s.File() == nil {
			t.Errorf("%s: %q, want %q from a file", what, got, want)
		}
		t.Cleanup(func() { c.Release("block 0") })
		return s
	}
	list := func() (all []string) {
		all, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	f := opened(t, path, "a model")
	expect("new", "1", f, "packed", "packed")
	abandoned := filepath.Join(filepath.Dir(list()[0]), filepath.Base(list()[0])[:17]+"123.tmp")
	if err := os.WriteFile(abandoned, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(abandoned, time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	expect("again", "1", f, "others", "packed")
	expect("another model", "1", opened(t, path+"2", "a model"), "second", "second")
	expect("another program", "2", f, "newer.", "newer.")
	f = opened(t, path, "a model of more bytes")
	expect("a changed file", "2", f, "newest", "newest")
	left := list()
	if len(left) != 2 {
		t.Fatalf("left are %q, want one of each model", left)
	}
	for _, p := range left {
		if err := os.Truncate(p, 3); err != nil {
			t.Fatal(err)
		}
	}
	whole := expect("a cut copy", "2", f, "mended", "mended")
	if err := os.Truncate(whole.File().path, 2); err != nil {
		t.Fatal(err)
	}
	err := func() (err error) {
		defer Catch(&err)
		whole.Bytes()
		return nil
	}()
	if !fault.Is(err, fault.FileChanged) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a copy that is cut while it is used: %v", err)
	}
}

// TestCopiesWithoutRoom checks that copies which cannot be written are in memory, and that somebody is told.
func TestCopiesWithoutRoom(t *testing.T) {
	var made atomic.Int32
	f := opened(t, filepath.Join(t.TempDir(), "model"), "a model")
	var told error
	c := NewCopies(filepath.Join(f.path, "cache"), "", nil, func(err error) { told = err })
	s, err := c.Take("a", 6, []*File{f}, with("packed", &made))
	if err != nil || string(s.Bytes()) != "packed" || s.File() != nil {
		t.Errorf("got %q from memory: %v, %v", s.Bytes(), s.File() == nil, err)
	}
	if told == nil || !strings.Contains(told.Error(), f.path) {
		t.Errorf("told %v, want the path", told)
	}
}
