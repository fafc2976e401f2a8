package faults

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/tests/harness"
)

// TestClockJumps sets the clocks of a daemon and its workers forward and back by an hour and by a day while jobs run,
// wait, have deadlines and retry pauses, and a handle has a lease. It checks that only elapsed time counts: nothing
// ends early, late or twice.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("NOT RUN: the clock of a process can be set on amd64 only")
	}
	s := harness.Start(t, harness.Build(t), "", "--workers", "2", "--keep-for", "2h", "--keep-results", "2h")
	c := s.Client()
	run := func(id string, steps, ttl, deadline int) {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		flow := harness.Quick
		if steps > 0 {
			flow = strings.Replace(harness.DemoFlow(t, steps), `"seed": 1`, `"seed": 1`+fmt.Sprint(len(id)), 1)
		}
		if _, err := client.Submit(ctx, c, &message.RunRequest{
			ID: id, Workflow: flow, QueueTTLMS: ttl, DeadlineMS: deadline,
		}); err != nil {
			t.Fatalf("submit %s: %v", id, err)
		}
	}
	hold := func(inputs string) string {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		var r message.ExecReply
		o, err := wire.Decode([]byte(inputs), wire.JSON, wire.DefaultLimits())
		if err == nil {
			err = client.AskOne(ctx, c, message.VerbExec, "", o, &r)
		}
		if err != nil || len(r.Outputs) != 1 {
			t.Fatalf("exec %s: %v %v", inputs, r.Outputs, err)
		}
		b, _ := wire.Encode(r.Outputs[0], wire.JSON)
		return string(b)
	}
	clip := hold(`{"class_type":"DualCLIPLoader","inputs":{"clip_name1":"demo_clip.safetensors",` +
		`"clip_name2":"demo_t5.safetensors","type":"flux"},"lease_ms":600000}`)
	const hour = 3600
	for _, to := range []int64{24 * hour, 0} {
		setClocks(s, to)
		hold(fmt.Sprintf(`{"class_type":"CLIPTextEncode","inputs":{"text":"a heart","clip":%s}}`, clip))
	}
	run("running", 10_000, 0, 0)
	s.WaitState(c, "running", message.Running)
	s.Until("both workers are up", func() bool { return len(s.WorkerPIDs()) == 2 })
	for _, pid := range s.WorkerPIDs() {
		harness.Throttle(t, pid)
	}
	var steps atomic.Int64 // the last step reported
	follower := s.Client()
	go func() {
		for t.Context().Err() == nil { // on a busy machine a silent stream may be given up
			_, _ = client.Follow(t.Context(), follower, "running", 0, false, &client.Collector{
				Event: func(ev message.Event) {
					if n, err := strconv.ParseInt(fmt.Sprint(ev.Data["value"]), 10, 64); err == nil {
						steps.Store(max(n, steps.Load()))
					}
				},
			})
			time.Sleep(100 * time.Millisecond)
		}
	}()
	for i, to := range []int64{hour, 0, 24 * hour, 0} {
		n := fmt.Sprint(i)
		run("deadline"+n, 10_000, 0, 1500)
		s.Until("deadline"+n+" has begun", func() bool { // its deadline may end it before it is seen running
			rec, err := harness.Status(c, "deadline"+n)
			return err == nil && rec.Attempt > 0
		})
		run("late"+n, 0, 300, 0)
		run("patient"+n, 0, 20*60*1000, 0)
		setClocks(s, to)
		s.WaitState(c, "late"+n, message.Expired)
		if rec := s.WaitState(c, "deadline"+n, message.Failed); rec.Error == nil || rec.Error.Public() != fault.Deadline {
			t.Errorf("the job with a deadline ended with %v", rec.Error)
		}
		s.WaitFiles(c, "patient"+n)
		before := steps.Load()
		s.Until("steps are told after the jump", func() bool { return steps.Load() > before })
		run("patient"+n, 0, 20*60*1000, 0) // its receipt still holds
		if err := client.Retry(context.Background(), c, "late"+n); err != nil {
			t.Errorf("retry after the jump: %v", err)
		}
		s.WaitFiles(c, "late"+n)
	}
	rec := s.WaitState(c, "running", message.Running)
	if rec.Attempt != 1 {
		t.Errorf("the job that ran through all is in attempt %d", rec.Attempt)
	}
	for _, pid := range s.WorkerPIDs() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	setClocks(s, -24*hour) // in the pause before the next attempt
	s.Until("it runs again", func() bool {
		rec, err := harness.Status(c, "running")
		return err == nil && rec.State == message.Running && rec.Attempt == 2
	})
	s.Kill()
	s.Launch() // the clock is a day ahead of the one that the store was written with
	setClocks(s, -24*hour)
	c = s.Client()
	s.Until("it runs after a start on another day", func() bool {
		rec, err := harness.Status(c, "running")
		return err == nil && rec.State == message.Running && rec.Attempt == 3
	})
	run("second", 10_000, 0, 0)
	s.WaitState(c, "second", message.Running)
	run("waiting", 0, 0, 0)
	s.Kill()
	s.Launch() // and now a day behind
	c = s.Client()
	harness.Cancel(t, c, "running")
	s.WaitState(c, "running", message.Cancelled)
	s.WaitFiles(c, "waiting")
	harness.Cancel(t, c, "second")
	for i := range 4 {
		s.WaitFiles(c, fmt.Sprint("patient", i)) // nothing was forgotten
	}
}

// setClocks sets the clocks of the daemon and its living workers to the given seconds ahead of the machine's.
func setClocks(s *harness.Server, seconds int64) {
	s.T.Helper()
	for _, pid := range append(harness.Children(s.Cmd.Process.Pid), s.Cmd.Process.Pid) {
		err := setClock(pid, seconds)
		for errors.Is(err, io.EOF) && !memoryGone(pid) { // it has just begun to run another program
			err = setClock(pid, seconds)
		}
		if err != nil && pid != s.Cmd.Process.Pid && memoryGone(pid) { // a worker that has ended, or is ending
			continue
		}
		if errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.EIO) {
			s.T.Skipf("NOT RUN: this kernel does not let a process write to its child: %v", err)
		}
		if err != nil {
			s.T.Fatalf("the clock of process %d: %v", pid, err)
		}
	}
}

// memoryGone reports whether a process has ended, or has already released its memory while ending.
func memoryGone(pid int) bool {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err != nil || len(maps) == 0
}

// setClock makes the real-time clock of a process run the given number of seconds ahead of the machine's. Go programs
// call the code that the kernel maps into every process (the vDSO), not the C library, which is what libfaketime
// replaces. setClock overwrites its clock_gettime with a jump to code that asks the kernel and adds. The monotonic
// clock is unchanged.
func setClock(pid int, seconds int64) error {
	harness.Turns.Lock()
	defer harness.Turns.Unlock()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	var from, to int64
	for _, line := range strings.Split(string(maps), "\n") {
		if strings.HasSuffix(line, "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return err
			}
		}
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = mem.Close() }()
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return err
	}
	at := map[string]int64{}
	for _, s := range symbols {
		at[s.Name] = int64(s.Value)
	}
	// nothing here calls gettimeofday, so the new code replaces it
	clock, room := at["__vdso_clock_gettime"], at["__vdso_gettimeofday"]
	if clock == 0 || room == 0 {
		return fmt.Errorf("its vDSO has no clock_gettime")
	}
	code := []byte{
		0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
		0x75, 13, // jne to ret
		0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, seconds
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0xc3, // ret
	}
	binary.LittleEndian.PutUint64(code[13:], uint64(seconds))
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(room-clock-5))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	if _, err := mem.WriteAt(code, from+room); err != nil {
		return err
	}
	_, err = mem.WriteAt(jump, from+clock)
	return err
}
