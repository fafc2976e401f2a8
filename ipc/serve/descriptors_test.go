package serve_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/array"
	"patchbay/ipc/bulk"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

// socketRig serves a rig on a socket file and dials it. The daemon has accepted the connection when it returns, so that
// descriptors counted from then on include the daemon's end.
func socketRig(t testing.TB, r *ipctest.Rig) (*client.FrameClient, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveSocket(t, path, r)
	c, err := client.DialSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := client.Models(wiretest.Context(t), c); err != nil {
		t.Fatal(err)
	}
	return c, path
}

func openFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// noneStays waits until no more descriptors are open than before. The daemon closes them while it replies.
func noneStays(t testing.TB, before int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); openFDs(t) > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were before", openFDs(t), before)
		}
	}
}

// TestTensorsThroughSharedMemory sends tensors there and back through a daemon and a worker process, and checks that
// the host and the daemon allocate nothing of a tensor's size for one in shared memory.
func TestTensorsThroughSharedMemory(t *testing.T) {
	r, child := ipctest.ChildRig(t, nil)
	c, _ := socketRig(t, r)
	ctx := wiretest.Context(t)
	if err := child.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	for _, n := range []int{wire.BulkBytes - 4, wire.BulkBytes, 8 << 20} {
		want := &wire.Tensor{Tensor: array.Tensor{DType: "u8", Shape: []int{n}, Data: wiretest.Noise(n)}}
		var out message.ExecReply
		if err := client.AskOne(ctx, c, message.VerbExec, "",
			&message.ExecRequest{Class: "Echo", Inputs: pyjson.NewObject("value", want)}, &out); err != nil {
			t.Fatal(err)
		}
		got, ok := out.Outputs[0].(*wire.Tensor)
		if !ok || !bytes.Equal(got.Data, want.Data) || got.Ref != nil {
			t.Fatalf("%d bytes: got %T of %d bytes", n, out.Outputs[0], len(got.Data))
		}
	}
	region, err := bulk.NewRegion(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	copy(region.Bytes(), wiretest.Noise(64<<20))
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	sum := pyjson.NewObject("value", &array.Tensor{DType: "u8", Shape: []int{32 << 20}, Data: region.Bytes()[32<<20:]})
	var out message.ExecReply
	held := &message.ExecRequest{Class: "Sum", Inputs: sum, Held: bulk.Held{Hold: bulk.Holding(region)}}
	if err := client.AskOne(ctx, c, message.VerbExec, "", held, &out); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&is)
	want := int64(0)
	for i := 32 << 20; i < 64<<20; i += 4096 {
		want += int64(region.Bytes()[i])
	}
	if out.Outputs[0] != want || out.Outputs[1] != int64(32<<20) {
		t.Errorf("the worker saw sum %v of %v bytes, want %d of %d", out.Outputs[0], out.Outputs[1], want, 32<<20)
	}
	if n := is.TotalAlloc - was.TotalAlloc; n > 1<<20 {
		t.Errorf("host and daemon allocated %d bytes for a tensor of 32 MiB in shared memory, want under 1 MiB", n)
	}
	region.Release()
	noneStays(t, before)
}

// TestInputsAndPicturesThroughSharedMemory checks a job with a large input and a large picture.
func TestInputsAndPicturesThroughSharedMemory(t *testing.T) {
	r, child := ipctest.ChildRig(t, nil)
	c, _ := socketRig(t, r)
	if err := child.Ready(wiretest.Context(t)); err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	for range 3 {
		_, col, end := ipctest.RunJob(t, c, &message.RunRequest{
			Workflow: messagetest.Graph("Picture 3000000"),
			Inputs:   map[string][]byte{"a.png": wiretest.Noise(2 << 20)},
		})
		if end.Type != message.EventSuccess || len(col.Files) != 1 ||
			!bytes.Equal(col.Files[0].Data, messagetest.Picture("1", 3000000).Data) {
			t.Fatalf("got %+v and %d files", end, len(col.Files))
		}
	}
	noneStays(t, before)
}

func memfd(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err == nil && seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestHostileDescriptors sends what no honest host sends. Each is refused with its reason, no descriptor stays open,
// and the connection goes on.
func TestHostileDescriptors(t *testing.T) {
	r := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	_, path := socketRig(t, r)
	file, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const seal = unix.F_SEAL_SHRINK
	good, loose, empty := memfd(t, 1<<20, seal), memfd(t, 1<<20, 0), memfd(t, 0, seal)
	huge := memfd(t, wire.MaxRegion+1, seal)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer wire.CloseFDs(pipe[:])
	many := make([]int, wire.MaxFDs+1)
	for i := range many {
		many[i] = good
	}
	ref := func(bytes, fd, offset int) *wire.Tensor {
		return &wire.Tensor{
			Tensor: array.Tensor{DType: "u8", Shape: []int{bytes}},
			Ref:    &wire.Ref{Kind: wire.RefShm, Bytes: bytes, FD: fd, Offset: offset},
		}
	}
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fc := wire.ConnOf(nc)
	defer fc.Close()
	w := wire.NewFrameWriter(fc)
	ask := func(fds []int, op string, value any) string {
		t.Helper()
		body, err := wire.EncodeMsgpack(map[string]any{
			"op": op, "tag": 1, "class_type": "Echo",
			"inputs": map[string]any{"value": value},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Send(fds, [][]byte{body}); err != nil {
			t.Fatal(err)
		}
		reply, err := wire.ReadFrame(fc)
		if err != nil {
			t.Fatal(err)
		}
		return string(reply)
	}
	if got := ask(nil, message.VerbPing, 1); !strings.Contains(got, "pid") { // the connection was accepted
		t.Fatalf("ping: %q", got)
	}
	before := openFDs(t)
	for name, row := range map[string]struct {
		fds   []int
		op    string
		value any
		want  string
	}{
		"good":                    {[]int{good}, message.VerbExec, ref(1<<20, 0, 0), "outputs"},
		"good twice":              {[]int{good}, message.VerbExec, []any{ref(4, 0, 0), ref(8, 0, 1<<20-8)}, "outputs"},
		"no seal":                 {[]int{loose}, message.VerbExec, ref(4, 0, 0), "F_SEAL_SHRINK"},
		"a file":                  {[]int{int(file.Fd())}, message.VerbExec, ref(4, 0, 0), "no memfd"},
		"a pipe":                  {[]int{pipe[0]}, message.VerbExec, ref(4, 0, 0), "no memfd"},
		"empty":                   {[]int{empty}, message.VerbExec, ref(4, 0, 0), "memfd of 0 bytes"},
		"too large":               {[]int{huge}, message.VerbExec, ref(4, 0, 0), "want 1 to"},
		"lying size":              {[]int{good}, message.VerbExec, ref(1<<20+1, 0, 0), "has 1048576"},
		"lying offset":            {[]int{good}, message.VerbExec, ref(1<<20, 0, 1), "has 1048576"},
		"offset past the end":     {[]int{good}, message.VerbExec, ref(4, 0, 1<<40), "has 1048576"},
		"one too many":            {[]int{good, good}, message.VerbExec, ref(4, 0, 0), "nothing refers to number 1"},
		"one too few":             {[]int{good}, message.VerbExec, ref(4, 1, 0), "the frame brought 1"},
		"none":                    {nil, message.VerbExec, ref(4, 0, 0), "the frame brought 0"},
		"no reference":            {[]int{good}, message.VerbExec, 1, "nothing refers"},
		"a verb that takes none":  {[]int{good}, message.VerbModels, 1, "nothing refers"},
		"more than a frame takes": {many, message.VerbExec, ref(4, 0, 0), "more than 16"},
		"shape and bytes differ": {
			[]int{good},
			message.VerbExec,
			&wire.Tensor{
				Tensor: array.Tensor{DType: "f32", Shape: []int{3}},
				Ref:    &wire.Ref{Kind: wire.RefShm, Bytes: 8},
			}, "needs 12 bytes, got 8",
		},
		"bytes below zero": {
			[]int{good},
			message.VerbExec,
			map[string]any{wire.RefKey: &wire.Ref{Kind: wire.RefShm, Bytes: -1}},
			"want 1 to",
		},
		"an unknown kind": {
			[]int{good},
			message.VerbExec,
			map[string]any{wire.RefKey: &wire.Ref{Kind: "smb", Bytes: 4}},
			"the kinds are",
		},
		"stream over a socket": {
			nil, message.VerbExec,
			map[string]any{wire.RefKey: &wire.Ref{Kind: wire.RefStream, Bytes: 4, ID: "x"}},
			"NATS",
		},
	} {
		if got := ask(row.fds, row.op, row.value); !strings.Contains(got, row.want) {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
	noneStays(t, before)
	if err := unix.Ftruncate(good, 1); err == nil {
		t.Error("a sealed memfd was truncated")
	}
	// A host that goes away in the middle of a frame with a descriptor.
	if _, _, err := fc.WriteMsgUnix([]byte{0, 1, 0, 0, 0x81}, unix.UnixRights(good), nil); err != nil {
		t.Fatal(err)
	}
	_ = fc.Close()
	for end := time.Now().Add(time.Minute); openFDs(t) > before-2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were before the connection", openFDs(t), before-2)
		}
	}
}

// BenchmarkTensorThroughSharedMemory sends a 64 MiB tensor from a host through the daemon into a worker process that
// touches every page of it. "in place": it lies in shared memory; "copied": the client copies it there.
func BenchmarkTensorThroughSharedMemory(b *testing.B) {
	for _, way := range []string{"in place", "copied"} {
		b.Run(way, func(b *testing.B) {
			r, child := ipctest.ChildRig(b, nil)
			c, _ := socketRig(b, r)
			if err := child.Ready(b.Context()); err != nil {
				b.Fatal(err)
			}
			data, held := make([]byte, 64<<20), bulk.Held{}
			if way == "in place" {
				region, err := bulk.NewRegion(64 << 20)
				if err != nil {
					b.Fatal(err)
				}
				defer region.Release()
				data, held.Hold = region.Bytes(), bulk.Holding(region)
			}
			copy(data, wiretest.Noise(64<<20))
			body := &message.ExecRequest{
				Class: "Sum", Held: held,
				Inputs: pyjson.NewObject("value", &array.Tensor{DType: "f32", Shape: []int{16, 1024, 1024}, Data: data}),
			}
			b.SetBytes(64 << 20)
			for b.Loop() {
				if err := client.AskOne(b.Context(), c, message.VerbExec, "", body, &struct{}{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
