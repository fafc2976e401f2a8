package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
	"patchbay/tests/race"
)

// Pair returns the two ends of a Unix socket.
func Pair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for p, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[p] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends
}

// exchanged exchanges payloads of size bytes between two meshes and compares what arrives.
func exchanged(t *testing.T, all [2]*Mesh, size int) {
	t.Helper()
	n, done := size/4, make(chan error, 2)
	for p, m := range all {
		ops := make([]engine.Ops, 2)
		ops[p] = ref.New()
		list, err := m.Connect(comm.Group{
			Team: 1, Name: "ring", Ranks: []int{0, 1}, Processes: []int{0, 1}, Deadline: time.Minute,
		}, ops)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			src, dst := make([]float32, n), make([]float32, 2*n)
			for round := range 4 {
				for i := range src {
					src[i] = float32(i%1000 + 1000*round + 7*p)
				}
				list[p].Run(comm.NewAllGather(engine.FromF32(dst, 2*n), engine.FromF32(src, n), []int{n, n}))
				for i, v := range dst {
					if want := float32(i%n%1000 + 1000*round + 7*(i/n)); !(v == want) {
						done <- fmt.Errorf("process %d, round %d: element %d is %v, want %v", p, round, i, v, want)
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range all {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// unlimited resets, after the test, the runtime's memory limit, which a ledger sets.
func unlimited(t *testing.T) {
	t.Cleanup(func() { debug.SetMemoryLimit(math.MaxInt64) })
}

// left returns the bytes that a ledger can still give, rounded down to MiB.
func left(l *engine.Ledger) int64 {
	debug.FreeOSMemory()
	low, high := int64(0), int64(1<<14)
	for low+1 < high {
		if mid := (low + high) / 2; l.Spare(mid << 20) {
			low = mid
		} else {
			high = mid
		}
	}
	return low << 20
}

// TestSharedMemoryIsCounted checks that memory backing shared payloads is charged to the sender's ledger and returned
// when the connection closes, and that payloads go through the socket if the ledger has none.
func TestSharedMemoryIsCounted(t *testing.T) {
	unlimited(t)
	l := engine.NewLedger(8<<30, 0, nil)
	all := meet(t, [2]*engine.Ledger{l, nil})
	payload := make([]byte, 64<<20)
	before := left(l)
	for range 4 {
		if at := all[0].links[1].out.put(payload); at == 0 {
			t.Fatal("there is no room for a payload")
		}
	}
	if took := before - left(l); took < 256<<20 || took > 288<<20 { // and what the heap holds
		t.Errorf("4 payloads of %d bytes took %d of the ledger", len(payload), took)
	}
	if out := all[1].links[0].out; out.put(payload) == 0 {
		t.Error("a process that counts nothing has no room")
	}
	all[0].Close()
	all[1].Close()
	if lost := before - left(l); lost > 32<<20 {
		t.Errorf("%d bytes did not come back", lost)
	}

	none := engine.NewLedger(1<<20, 0, nil) // less than this process uses
	debug.SetMemoryLimit(math.MaxInt64)
	all = meet(t, [2]*engine.Ledger{none, none})
	defer all[0].Close()
	defer all[1].Close()
	exchanged(t, all, 100_000)
	for p, m := range all {
		if out := m.links[1-p].out; out == nil || out.backed != 0 {
			t.Errorf("process %d has shared memory that its ledger has not given", p)
		}
	}
}

// meet connects two processes, here both this one, by shared memory that these ledgers count.
func meet(t *testing.T, of [2]*engine.Ledger) [2]*Mesh {
	t.Helper()
	return meetUnder(t, of, func(*testing.T) {})
}

// meetUnder is meet under limits that are set once the two have been connected.
func meetUnder(t *testing.T, of [2]*engine.Ledger, limit func(*testing.T)) (m [2]*Mesh) {
	t.Helper()
	ends, results := Pair(t), make(chan error, 2)
	limit(t)
	var conns [2][]io.ReadWriteCloser
	for p := range ends {
		conns[p] = make([]io.ReadWriteCloser, 2)
		conns[p][1-p] = ends[p]
		go func() { results <- Share(conns[p], of[p]) }()
	}
	for range conns {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	for p := range m {
		m[p] = NewMesh(p, conns[p], []string{"process 0", "process 1"})
	}
	return m
}

// limitedCase is the environment variable that makes TestSharedUnderLimits run one case in its own process.
const limitedCase = "PATCHBAY_TEST_LIMIT"

// limits are the conditions that may keep a process from sharing memory: what a case sets once two processes are
// connected, and how many bytes of address space each direction may then have.
var limits = map[string]struct {
	set         func(t *testing.T)
	ledger      int64 // of each process; 0: no ledger
	least, most int
}{
	"ulimit -v": {func(t *testing.T) {
		setLimit(t, unix.RLIMIT_AS, mappedNow(t)+1200<<20)
	}, 640 << 20, 32 << 20, 40 << 20},
	"ulimit -v, who maps the second has none": {func(t *testing.T) {
		setLimit(t, unix.RLIMIT_AS, mappedNow(t)+700<<20)
	}, 8 << 30, 0, 0},
	"ulimit -v, nobody counts": {func(t *testing.T) {
		setLimit(t, unix.RLIMIT_AS, mappedNow(t)+1200<<20)
	}, 0, 0, 0},
	"ulimit -f":    {func(t *testing.T) { setLimit(t, unix.RLIMIT_FSIZE, 64<<20+5) }, 0, 64 << 20, 64 << 20},
	"ulimit -f 0":  {func(t *testing.T) { setLimit(t, unix.RLIMIT_FSIZE, 0) }, 0, 0, 0},
	"no file":      {func(t *testing.T) { setLimit(t, unix.RLIMIT_NOFILE, uint64(freeFiles(t)[0])) }, 0, 0, 0},
	"no file more": {func(t *testing.T) { setLimit(t, unix.RLIMIT_NOFILE, uint64(freeFiles(t)[2])) }, 0, 0, 0},
	"none":         {func(*testing.T) {}, 8 << 30, sharedBytes, sharedBytes},
}

// TestSharedUnderLimits checks that processes that may not map, create or open the shared memory exchange through less
// of it or through the socket, and keep address space for everything else.
func TestSharedUnderLimits(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: many processes that exchange as those of the other tests do")
	}
	name := os.Getenv(limitedCase)
	if name == "" {
		for name := range limits {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestSharedUnderLimits$", "-test.v")
			cmd.Env = append(os.Environ(), limitedCase+"="+name)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "directions of") {
				t.Errorf("%s: %v\n%.3000s", name, err, out)
			}
		}
		return
	}
	limit := limits[name]
	var ledgers [2]*engine.Ledger
	if limit.ledger > 0 {
		ledgers = [2]*engine.Ledger{engine.NewLedger(limit.ledger, 0, nil), engine.NewLedger(limit.ledger, 0, nil)}
	}
	before := left(ledgers[0])
	all := meetUnder(t, ledgers, limit.set)
	defer all[1].Close()
	if took := before - left(ledgers[0]); name == "ulimit -v" && took < 2*int64(limit.least) {
		t.Errorf("both directions take %d of the ledger, want %d or more: addresses count", took, 2*limit.least)
	}
	for p, m := range all {
		has := 0
		if out := m.links[1-p].out; out != nil {
			has = len(out.data)
		}
		if has < limit.least || has > limit.most {
			t.Errorf("process %d sends through %d bytes of shared memory, want %d to %d", p, has, limit.least, limit.most)
		}
		t.Logf("directions of %d bytes", has)
	}
	exchanged(t, all, 4<<20)
	all[0].Close()
	if lost := before - left(ledgers[0]); lost > 48<<20 { // the heap holds some
		t.Errorf("%d bytes of the ledger did not come back", lost)
	}
	if limitOf(unix.RLIMIT_AS) < math.MaxInt64 && limit.ledger < 8<<30 && !raced { // dies if no address space is left
		for i := range 3 {
			held := make([]byte, 128<<20)
			held[i<<20] = 1
			defer func() { _ = held[0] }()
		}
	}
}

func setLimit(t *testing.T, resource int, n uint64) {
	t.Helper()
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		t.Fatal(err)
	}
}

// mappedNow returns the bytes of address space that this process has mapped.
func mappedNow(t *testing.T) uint64 {
	t.Helper()
	var pages uint64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// freeFiles returns the numbers of the next three descriptors.
func freeFiles(t *testing.T) (list [3]int) {
	t.Helper()
	for i := range list {
		fd, err := unix.Dup(2)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		list[i] = fd
	}
	return list
}

// TestMalformedShares checks that invalid descriptors or words from another process are refused without leaking a
// descriptor, and that a process that has no memory, or cannot map ours, is served through the socket.
func TestMalformedShares(t *testing.T) {
	memory := func(size int64, seals int) func(t *testing.T) []int {
		return func(t *testing.T) []int {
			fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING)
			if err == nil {
				err = unix.Ftruncate(fd, size)
			}
			if err == nil {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			}
			if err != nil {
				t.Fatal(err)
			}
			return []int{fd}
		}
	}
	const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	good := memory(sharedBytes, sealed)
	none := func(*testing.T) []int { return nil }
	for name, c := range map[string]struct {
		files func(t *testing.T) []int
		word  []byte
		want  string
	}{
		"good":               {good, []byte{1}, ""},
		"small":              {memory(sharedStep, sealed), []byte{1}, ""},
		"has none":           {none, []byte{1}, ""},
		"maps none":          {good, []byte{0}, ""},
		"can be taken away":  {memory(sharedBytes, unix.F_SEAL_GROW), []byte{1}, "not the memory of a connection"},
		"too small":          {memory(4096, sealed), []byte{1}, "not the memory of a connection"},
		"empty":              {memory(0, sealed), []byte{1}, "not the memory of a connection"},
		"too large":          {memory(sharedBytes+sharedStep, sealed), []byte{1}, "not the memory of a connection"},
		"cannot be written":  {memory(sharedBytes, sealed|unix.F_SEAL_WRITE), []byte{1}, "operation not permitted"},
		"two":                {func(t *testing.T) []int { return append(good(t), good(t)...) }, []byte{1}, "2 descriptors"},
		"another word":       {good, []byte{7}, "7 for whether it shares memory"},
		"gone before a word": {good, nil, "EOF"},
		"a pipe": {func(t *testing.T) []int {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(p[1])
			return p[:1]
		}, []byte{1}, "not the memory of a connection"},
	} {
		t.Run(name, func(t *testing.T) {
			ends := Pair(t)
			before := openFiles(t)
			files := c.files(t)
			if _, _, err := ends[1].WriteMsgUnix([]byte{0}, unix.UnixRights(files...), nil); err != nil {
				t.Fatal(err)
			}
			_, _ = ends[1].Write(c.word)
			if c.word == nil {
				_ = ends[1].CloseWrite()
			}
			conns := []io.ReadWriteCloser{nil, ends[0]}
			err := Share(conns, nil)
			for _, fd := range files {
				_ = unix.Close(fd)
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			conn := conns[1].(*near)
			if err == nil && ((conn.out == nil) != (c.word[0] == 0) || (conn.in == nil) != (len(files) == 0)) {
				t.Errorf("sends through %v and takes from %v", conn.out != nil, conn.in != nil)
			}
			_ = conn.Close()
			if after := openFiles(t); after != before-1 { // without the end just closed
				t.Errorf("%d files are open, before there were %d", after, before)
			}
		})
	}
}

// openFiles returns the number of descriptors that this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestPlacesOutsideSharedMemory checks that a frame breaks the protocol, and keeps no reference, if its payload is not
// within its sender's shared memory or the sender has none.
func TestPlacesOutsideSharedMemory(t *testing.T) {
	in, err := newShared(room{bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer in.drop()
	for _, c := range []struct {
		place  int
		length uint64
		in     *shared
		want   string
	}{
		{ringBytes + pieceHead, 8, in, ""},
		{1 << 19, 1 << 19, in, ""},
		{1 << 20, 0, in, ""},
		{pieceHead, 8, nil, "from who shares none"},
		{ringBytes, 8, in, fmt.Sprintf("at %d of 1048576", ringBytes)},
		{1<<19 + 1, 8, in, "at 524289 of 1048576"},
		{8, 8, in, "at 8 of 1048576"},
		{1 << 20, 1, in, "of 1 bytes at 1048576"},
		{1 << 19, 1 << 20, in, "of 1048576 bytes at 524288"},
		{1 << 21, 0, in, "at 2097152 of"},
		{-pieceHead, 8, in, "of 8 bytes at 18446744073709551552"},
		{1 << 19, 1 << 35, in, "of 34359738368 bytes"},
		{1 << 19, 1 << 37, in, "a payload of 137438953472 bytes"},
	} {
		var head strings.Builder
		if err := (&frame{kind: plain, place: c.place}).write(&head); err != nil {
			t.Fatal(err)
		}
		text := []byte(head.String())
		binary.LittleEndian.PutUint64(text[12:], c.length)
		f, err := readFrame(strings.NewReader(string(text)), c.in)
		if c.want == "" && err == nil && uint64(len(f.payload)) == c.length {
			f.in.drop()
			continue
		}
		if c.want == "" || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d bytes at %d: got %v, want %q", c.length, c.place, err, c.want)
		}
	}
	if in.users != 1 {
		t.Errorf("%d hold the memory, want its maker alone", in.users)
	}
}

// TestAnnouncedBytesAreNotBelieved checks that memory is allocated for what has arrived and one piece more, not for
// the announced size, and that a payload of several pieces arrives whole.
func TestAnnouncedBytesAreNotBelieved(t *testing.T) {
	head := func(payload uint64) []byte {
		b := (&frame{kind: plain}).head()
		binary.LittleEndian.PutUint64(b[12:], payload)
		return b
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readFrame(io.MultiReader(bytes.NewReader(head(1<<35)), strings.NewReader("few")), nil)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || got > 4*maxAhead {
		t.Errorf("%d bytes for a payload of 3 that says it has %d: %v", got, 1<<35, err)
	}
	whole := bytes.Repeat([]byte{1, 2, 3, 5, 8, 13, 21}, maxAhead/7+1000)
	f, err := readFrame(io.MultiReader(bytes.NewReader(head(uint64(len(whole)))), bytes.NewReader(whole)), nil)
	if err != nil || !bytes.Equal(f.payload, whole) {
		t.Errorf("a payload of %d bytes: %v", len(whole), err)
	}
}
