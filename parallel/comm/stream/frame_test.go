package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/parallel/comm"
)

// Pair returns the two ends of a Unix socket.
func Pair(t *testing.T) (ends [2]net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for p, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if ends[p], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = ends[p].Close() })
	}
	return ends
}

// receive connects rank 1 of a group of two processes to m, the mesh of process 1, and receives one number of rank 0.
func receive(t *testing.T, m *Mesh, team uint64) (v float32, err error) {
	t.Helper()
	ends, err := m.Connect(comm.Group{
		Team: team, Name: "ring", Ranks: []int{0, 1}, Processes: []int{0, 1}, Deadline: time.Minute,
	}, []engine.Ops{nil, ref.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if bad, ok := recover().(error); ok {
			err = bad
		}
	}()
	got := engine.FromF32([]float32{-1}, 1)
	ends[1].SendRecv(got, 0, engine.Tensor{}, -1)
	return got.F32()[0], nil
}

// bytesOf returns a frame of rank 0 for rank 1 of a group, with a float32, as it is on its way.
func bytesOf(t *testing.T, team uint64, v float32) []byte {
	t.Helper()
	var b bytes.Buffer
	f := frame{
		group: fmt.Sprintf("%d/ring/0", team), kind: plain, to: 1, op: "SendRecv", site: "here:1",
		payload: comm.HostBytes(engine.FromF32([]float32{v}, 1), 0, 1),
	}
	if err := f.write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFramesThatAreCutOrMalformed checks that a frame whose sender dies in the middle of it, at any byte, or that
// violates the format is never taken for a message: the rank that waits for it gets an error that names the process.
func TestFramesThatAreCutOrMalformed(t *testing.T) {
	whole := bytesOf(t, 1, 5)
	changed := func(at int, b ...byte) []byte {
		own := bytes.Clone(whole)
		copy(own[at:], b)
		return own
	}
	type want struct {
		sent []byte
		text string
	}
	cases := map[string]want{
		"a long group":   {changed(0, 1, 16), "texts of 4097, 8 and 6 and a payload of 4 bytes: not this protocol"},
		"a long op":      {changed(2, 1, 16), "texts of 8, 4097 and 6"},
		"a long site":    {changed(4, 1, 16), "texts of 8, 8 and 4097"},
		"unknown kind":   {changed(6, byte(alive)+1), "a frame of kind 5"},
		"a long payload": {changed(17, 1, 1), "not this protocol"},
	}
	for n := range whole {
		text := "unexpected EOF"
		if n == 0 {
			text = "its connection has ended"
		} else if n == headLength || n == len(whole)-4 { // the end is where texts or payload begin
			text = "has ended"
		}
		cases[fmt.Sprintf("%d of %d bytes", n, len(whole))] = want{whole[:n], text}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ends := Pair(t)
			m := NewMesh(1, []io.ReadWriteCloser{ends[1], nil}, []string{"process 0", "process 1"})
			defer m.Close()
			if _, err := ends[0].Write(c.sent); err != nil {
				t.Fatal(err)
			}
			_ = ends[0].Close()
			v, err := receive(t, m, 1)
			if err == nil || !strings.Contains(err.Error(), "process 0 has gone") || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v and %v, want that process 0 has gone: %s", v, err, c.text)
			}
		})
	}
}

// TestFramesOfOldTeams checks that frames that come before their group is connected are kept for it, and that those of
// teams that are over, and their groups, are dropped.
func TestFramesOfOldTeams(t *testing.T) {
	ends := Pair(t)
	m := NewMesh(1, []io.ReadWriteCloser{ends[1], nil}, []string{"process 0", "process 1"})
	defer m.Close()
	for _, team := range []uint64{1, 2, 2, 3} {
		if _, err := ends[0].Write(bytesOf(t, team, float32(team))); err != nil {
			t.Fatal(err)
		}
	}
	for team := range uint64(3) {
		if v, err := receive(t, m, team+1); err != nil || !(v == float32(team+1)) {
			t.Errorf("team %d receives %v: %v", team+1, v, err)
		}
	}
	m.deliver(&frame{group: "4/ring/0"}) // here this team never begins
	if _, err := ends[0].Write(append(bytesOf(t, 2, 2), bytesOf(t, 5, 5)...)); err != nil {
		t.Fatal(err)
	}
	if v, err := receive(t, m, 5); err != nil || !(v == 5) {
		t.Errorf("team 5 receives %v: %v", v, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.early) != 0 || len(m.groups) != 1 || m.groups["5/ring/0"] == nil {
		t.Errorf("%d groups and early frames of %d are kept, want the group of the newest team alone", len(m.groups),
			len(m.early))
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
	_, err := readFrame(io.MultiReader(bytes.NewReader(head(1<<35)), strings.NewReader("few")))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || got > 4*maxAhead {
		t.Errorf("%d bytes for a payload of 3 that says it has %d: %v", got, 1<<35, err)
	}
	whole := bytes.Repeat([]byte{1, 2, 3, 5, 8, 13, 21}, maxAhead/7+1000)
	f, err := readFrame(io.MultiReader(bytes.NewReader(head(uint64(len(whole)))), bytes.NewReader(whole)))
	if err != nil || !bytes.Equal(f.payload, whole) {
		t.Errorf("a payload of %d bytes: %v", len(whole), err)
	}
}
