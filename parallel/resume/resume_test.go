package resume

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"patchbay/engine"
)

// outputs returns the numbers of evaluation i: random bits, NaNs with a payload, infinities and zeros of both signs.
func outputs(i, n int) []float32 {
	out := make([]float32, n)
	bits := uint32(i)*2654435761 + 1
	for k := range out {
		bits = bits*1664525 + 1013904223
		out[k] = math.Float32frombits(bits)
	}
	special := []uint32{0x7fa00001, 0xffc12345, 0x7f800000, 0x80000000, 0}
	for k := range min(n, len(special)) {
		out[k] = math.Float32frombits(special[(k+i)%len(special)])
	}
	return out
}

// same compares by bits.
func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func folder(t *testing.T) *Folder {
	return &Folder{Root: t.TempDir(), Name: "job", Most: 1 << 30, Dropped: func(err error) { t.Error(err) }}
}

// fill writes evaluations of n numbers each, in two parts, and returns the path of the log.
func fill(f *Folder, key Key, evaluations, n int) string {
	l := f.Open(key)
	defer l.Close()
	for i := range evaluations {
		v := outputs(i, n)
		l.Add(v[:n/3], v[n/3:])
	}
	return l.path
}

// replayed returns how many evaluations a log gives back, and fails the test if one is not what was written.
func replayed(t *testing.T, l *Log, n int) int {
	t.Helper()
	for i := 0; ; i++ {
		got := l.Next(n)
		if got == nil {
			return i
		}
		if !same(got, outputs(i, n)) {
			t.Fatalf("evaluation %d came back with other bits", i)
		}
	}
}

// TestTornTail cuts a log at every byte: what is whole before comes back, and what is added after that too.
func TestTornTail(t *testing.T) {
	const n, evaluations = 7, 3
	f, key := folder(t), Key{1}
	path := fill(f, key, evaluations, n)
	full, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head, each = len(magic) + len(key), frameSize + 4*n
	if len(full) != head+evaluations*each {
		t.Fatalf("%d bytes, want %d", len(full), head+evaluations*each)
	}
	for cut := range len(full) + 1 {
		if err := os.WriteFile(path, full[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		l := f.Open(key)
		got := replayed(t, l, n)
		if want := max(cut-head, 0) / each; got != want {
			t.Fatalf("cut at byte %d of %d: %d evaluations came back, want %d", cut, len(full), got, want)
		}
		for i := got; i < evaluations; i++ {
			l.Add(outputs(i, n))
		}
		l.Close()
		if again, err := os.ReadFile(path); err != nil || !slices.Equal(again, full) {
			t.Fatalf("cut at byte %d: what was missing was added, and the file differs from one that was never cut", cut)
		}
	}
}

// TestDamage flips a bit of every byte: no evaluation comes back from there on, and a changed key or length gives none.
func TestDamage(t *testing.T) {
	const n, evaluations = 5, 3
	f, key := folder(t), Key{2}
	path := fill(f, key, evaluations, n)
	full, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head, each = len(magic) + len(key), frameSize + 4*n
	for at := range full {
		damaged := slices.Clone(full)
		damaged[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		l := f.Open(key)
		got := replayed(t, l, n)
		if want := max(at-head, 0) / each; got != want {
			t.Fatalf("byte %d is damaged: %d evaluations came back, want %d", at, got, want)
		}
		l.Close()
	}
	damaged := slices.Clone(full)
	damaged[head+each+frameSize] ^= 1 // in the second of three: what follows it is of another run from now on
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	l := f.Open(key)
	replayed(t, l, n)
	l.Add(outputs(1, n))
	l.Close()
	if got := replayed(t, f.Open(key), n); got != 2 {
		t.Errorf("%d evaluations came back after the second was written again, want 2", got)
	}
	swapped := slices.Concat(full[:head], full[head+each:head+2*each], full[head:head+each]) // whole, in another order
	if err := os.WriteFile(path, swapped, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := replayed(t, f.Open(key), n); got != 0 {
		t.Errorf("%d evaluations came back in another order, want none", got)
	}
}

// TestOtherRuns checks that a log answers only its own key and size, and that a file under another run's name is not
// believed.
func TestOtherRuns(t *testing.T) {
	f := folder(t)
	path := fill(f, Key{3}, 4, 6)
	if got := replayed(t, f.Open(Key{4}), 6); got != 0 {
		t.Errorf("another key got %d evaluations", got)
	}
	l := f.Open(Key{3})
	if got := l.Next(5); got != nil {
		t.Error("5 numbers were wanted and an evaluation of 6 came back")
	}
	if got := l.Next(6); got != nil {
		t.Error("the log had ended, and one more evaluation came back")
	}
	l.Close()
	if err := os.Rename(path, f.Open(Key{5}).path); err != nil {
		t.Fatal(err)
	}
	if got := replayed(t, f.Open(Key{5}), 6); got != 0 {
		t.Errorf("a file of another run gave %d evaluations", got)
	}
}

// TestNothing checks that a nil log keeps nothing.
func TestNothing(t *testing.T) {
	var l *Log
	l.Add(outputs(0, 3))
	if l.Next(3) != nil {
		t.Error("no log has an evaluation")
	}
	l.Close()
}

// TestBound checks that the oldest files go first where all take more than the bound, and that a log that alone would
// be larger ends and keeps what it has.
func TestBound(t *testing.T) {
	const n = 100
	f := folder(t)
	one := int64(len(magic) + len(Key{}) + 2*(frameSize+4*n))
	f.Most = 3 * one
	var paths []string
	for i := range 3 {
		of := *f
		of.Name = fmt.Sprint("job", i)
		paths = append(paths, fill(&of, Key{byte(i)}, 2, n))
	}
	for i, p := range []int{1, 0, 2} { // the file of job1 is the oldest, then that of job0
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(paths[p], at, at); err != nil {
			t.Fatal(err)
		}
	}
	exists := func() (out []bool) {
		for _, p := range paths {
			_, err := os.Stat(p)
			out = append(out, err == nil)
		}
		return out
	}
	paths = append(paths, fill(f, Key{9}, 1, n))
	if got := exists(); !slices.Equal(got, []bool{true, false, true, true}) {
		t.Errorf("files that exist: %v, want all but the oldest", got)
	}
	paths[3] = fill(f, Key{9}, 100, n)
	if got := exists(); !slices.Equal(got, []bool{false, false, false, true}) {
		t.Errorf("files that exist: %v, want only the largest", got)
	}
	if info, err := os.Stat(paths[3]); err != nil || info.Size() > f.Most || info.Size() < f.Most-frameSize-4*n {
		t.Errorf("%v, %v; want a file as large as the bound of %d permits", info.Size(), err, f.Most)
	}
	if got := replayed(t, f.Open(Key{9}), n); got != 5 && got != 6 {
		t.Errorf("%d evaluations came back, want what fits", got)
	}
}

// TestRemoved checks that a log whose file was removed meanwhile ends and makes no other.
func TestRemoved(t *testing.T) {
	f := folder(t)
	l := f.Open(Key{1})
	l.Add(outputs(0, 4))
	if err := os.RemoveAll(filepath.Dir(l.path)); err != nil {
		t.Fatal(err)
	}
	l.Add(outputs(1, 4))
	if _, err := os.Stat(filepath.Dir(l.path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there again (%v)", err)
	}
}

// TestBadDisk checks that a folder that cannot be made and a full disk drop the log, once, and say why.
func TestBadDisk(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var causes []error
	f := &Folder{Root: file, Name: "job", Most: 1 << 30, Dropped: func(err error) { causes = append(causes, err) }}
	l := f.Open(Key{1})
	if l.Next(3) != nil {
		t.Error("there is no log, and it has an evaluation")
	}
	l.Add(outputs(0, 3))
	l.Add(outputs(1, 3))
	if len(causes) != 1 {
		t.Errorf("a folder that cannot be made: dropped with %v, want one cause", causes)
	}
	causes, f.Root = nil, filepath.Join(dir, "full")
	l = f.Open(Key{1})
	l.Add(outputs(0, 3))
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	l.file = full
	l.Add(outputs(1, 3))
	l.Add(outputs(2, 3))
	if len(causes) != 1 || replayed(t, f.Open(Key{1}), 3) != 0 {
		t.Errorf("a full disk: dropped with %v, want one cause and no file", causes)
	}
}

// TestSpare checks that a log which would take what is left to others is dropped with its file.
func TestSpare(t *testing.T) {
	f := folder(t)
	var cause error
	f.Dropped = func(err error) { cause = err }
	path := fill(f, Key{1}, 2, 10)
	f.Spare = math.MaxInt64 / 2
	l := f.Open(Key{1})
	if got := replayed(t, l, 10); got != 2 {
		t.Errorf("%d evaluations came back, want 2", got)
	}
	l.Add(outputs(2, 10))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || !errors.Is(cause, syscall.ENOSPC) {
		t.Errorf("the file is there (%v), dropped for %v; want it removed for want of space", err, cause)
	}
}

// BenchmarkAdd is what an evaluation costs of the demo at 128 x 128 (16 KiB a prediction, two of them) and of FLUX at
// 1024 x 1024, with one: 1 MiB.
func BenchmarkAdd(b *testing.B) {
	for name, n := range map[string]int{"32KiB": 1 << 13, "1MiB": 1 << 18} {
		b.Run(name, func(b *testing.B) {
			f := &Folder{Root: b.TempDir(), Name: "job", Most: 200 << 20, Dropped: func(err error) { b.Error(err) }}
			v := outputs(1, n)
			b.SetBytes(int64(engine.F32.Size() * len(v)))
			var l *Log
			for i := 0; b.Loop(); i++ {
				if i%50 == 0 { // a run of 50 steps
					l.Close()
					l = f.Open(Key{byte(i / 50 % 3)})
				}
				l.Add(v)
			}
			l.Close()
		})
	}
}

// BenchmarkNext is what replaying it costs.
func BenchmarkNext(b *testing.B) {
	const n = 1 << 18
	f := &Folder{Root: b.TempDir(), Name: "job", Most: 1 << 30}
	fill(f, Key{}, 50, n)
	b.SetBytes(int64(engine.F32.Size() * n))
	var l *Log
	for i := 0; b.Loop(); i++ {
		if i%50 == 0 {
			l.Close()
			l = f.Open(Key{})
		}
		if l.Next(n) == nil {
			b.Fatal("an evaluation is missing")
		}
	}
	l.Close()
}
