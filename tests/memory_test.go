package tests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestJobsStayWithinMemory checks that --memory bounds weights, activations, kept pictures and what the runtime holds
// together. By the kernel's figures for the worker, jobs of changing sizes exceed it by at most a tenth. Values that
// would exceed it are refused, and an idle worker gives its memory back.
func TestJobsStayWithinMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: TestAddressSpace bounds a worker")
	}
	const limit = 128 << 10 // KiB
	s := harness.Start(t, harness.Build(t), "", "--memory", "128M", "--free-after", "1s")
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	pid := s.WorkerPIDs()[0]
	c := s.Client()
	run := func(flow string) error {
		ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
		defer stop()
		end, err := client.Run(ctx, c, &message.RunRequest{Workflow: flow}, &client.Collector{})
		if err == nil && end.Error != nil {
			return end.Error
		}
		return err
	}
	for i := range 50 {
		flow := picturesOf(1, 128+96*(i*7%9), i)
		if i%10 == 0 { // sampled and decoded: activations too
			side := 128 + 64*(i/10%5+1)
			flow = sized(t, side, i)
		}
		if err := run(flow); err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
	}
	most := statusKiB(t, pid, "VmHWM")
	t.Logf("50 jobs: at most %d KiB resident, %d KiB now, of %d KiB", most, statusKiB(t, pid, "VmRSS"), limit)
	if most > limit+limit/10 {
		t.Errorf("50 jobs of changing sizes took %d KiB of --memory %d KiB", most, limit)
	}
	for name, flow := range map[string]string{
		"one picture of 64 MP": picturesOf(1, 8192, 1), "twelve of 1 MP in one job": picturesOf(12, 1024, 100),
	} {
		if e := fault.From(run(flow)); e == nil || e.Public() != fault.TooLarge {
			t.Errorf("%s: %v, want too_large", name, e)
		}
	}
	if most := statusKiB(t, pid, "VmHWM"); most > limit+limit/10 {
		t.Errorf("refused jobs took %d KiB of --memory %d KiB", most, limit)
	}
	s.Until("an idle worker gives its memory back", func() bool { return statusKiB(t, pid, "VmRSS") < limit/2 })
	if pids := s.WorkerPIDs(); len(pids) != 1 {
		t.Errorf("workers %v, want the first one only", pids)
	}
}

// TestRanksStayWithinMemory checks that --memory bounds the processes of ranks and their worker together, by the
// kernel's figures for each.
func TestRanksStayWithinMemory(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: TestAddressSpace bounds a worker")
	}
	const limit = 400 << 10 // KiB
	s := harness.Start(t, harness.Build(t), "", "--memory", "400M", "--placement", "children")
	s.Until("a worker is up", func() bool { return len(s.WorkerPIDs()) > 0 })
	pid := s.WorkerPIDs()[0]
	c := s.Client()
	for i, job := range []struct{ flow, plan string }{
		{sized(t, 256, 1), "ulysses=2"},
		{picturesOf(3, 768, 2), ""},
		{sized(t, 1152, 3), ""},
		{sized(t, 512, 4), "ulysses=2"},
	} {
		end, err := client.Run(context.Background(), c, &message.RunRequest{Workflow: job.flow, Plan: job.plan},
			&client.Collector{})
		if err == nil && end.Error != nil {
			err = end.Error
		}
		if e := fault.From(err); e != nil && (i == 0 || e.Public() != fault.OutOfMemory) {
			t.Errorf("job %d: %v", i, err)
		}
	}
	most, ranks := statusKiB(t, pid, "VmHWM"), harness.Children(pid)
	for _, rank := range ranks {
		most += statusKiB(t, rank, "VmHWM")
	}
	t.Logf("worker: %d KiB, all: %d KiB of %d", statusKiB(t, pid, "VmHWM"), most, limit)
	if len(ranks) != 2 || most > limit+limit/10 {
		t.Errorf("worker and %d ranks took %d KiB of --memory %d KiB", len(ranks), most, limit)
	}
}

// TestAddressSpace checks that a limit of address space (ulimit -v) that a daemon could not live with is refused. Under
// one that it can live with, the daemon keeps its jobs to what is left, so that neither it nor its worker ever dies of
// it.
func TestAddressSpace(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	// Under some 1.7 GB the Go runtime may die before main: it cannot map a stack for one of its first threads.
	refused := exec.Command("sh", "-c", `ulimit -v 2000000; exec "$@"`, "sh", program, "serve", "--store", t.TempDir())
	out, _ := harness.Printed(refused)
	if refused.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "ulimit -v unlimited") {
		t.Errorf("under 2 GB serve ended with %d:\n%s", refused.ProcessState.ExitCode(), out)
	}
	s := harness.Start(t, program, `ulimit -v 2400000; exec "$@"`)
	c := s.Client()
	ctx, stop := context.WithTimeout(context.Background(), 2*harness.Patience)
	defer stop()
	for i := range 6 {
		end, err := client.Run(ctx, c, &message.RunRequest{Workflow: sized(t, 128+64*i, i)}, &client.Collector{})
		if err != nil || end.Type != message.EventSuccess {
			t.Fatalf("picture %d: %+v %v", i, end, err)
		}
	}
	end, err := client.Run(ctx, c, &message.RunRequest{Workflow: picturesOf(1, 8192, 1)}, &client.Collector{})
	if err == nil && end.Error != nil {
		err = end.Error
	}
	if e := fault.From(err); e == nil || e.Public() != fault.TooLarge {
		t.Errorf("one picture of 64 MP: %v, want too_large", e)
	}
	if pids := s.WorkerPIDs(); len(pids) != 1 {
		t.Errorf("workers %v, want the first one only", pids)
	}
}

// TestAddressSpaceOfRanks checks that ranks in their own processes run under a limit of address space, and that none of
// them dies of it.
func TestAddressSpaceOfRanks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: TestAddressSpace bounds a worker")
	}
	s := harness.Start(t, harness.Build(t), `ulimit -v 4000000; exec "$@"`, "--placement", "children")
	c := s.Client()
	ctx, stop := context.WithTimeout(context.Background(), 2*harness.Patience)
	defer stop()
	for i, plan := range []string{"ulysses=2", "ring=2,ulysses=2", "tensor=4"} {
		job := &message.RunRequest{Workflow: sized(t, 512, i), Plan: plan}
		end, err := client.Run(ctx, c, job, &client.Collector{})
		if err != nil || end.Type != message.EventSuccess {
			t.Fatalf("%s: %+v %v\n%s", plan, end, err, s.Log)
		}
		if rec := s.WaitState(c, end.Job, message.Done); rec.Attempt != 1 {
			t.Errorf("%s was done in attempt %d", plan, rec.Attempt)
		}
	}
	if ranks := harness.Children(s.WorkerPIDs()[0]); len(ranks) != 4 {
		t.Errorf("%d ranks run", len(ranks))
	}
}

// picturesOf returns a workflow of n plain pictures that are inverted and shown.
func picturesOf(n, side, color int) string {
	flow := ""
	for i := range n {
		flow += fmt.Sprintf(`,"%d":{"class_type":"EmptyImage","inputs":{"width":%d,"height":%d,"batch_size":1,"color":%d}},
			"%d":{"class_type":"ImageInvert","inputs":{"image":["%[1]d",0]}},
			"%[6]d":{"class_type":"PreviewImage","inputs":{"images":["%[5]d",0]}}`, 3*i+1, side, side, color+i, 3*i+2, 3*i+3)
	}
	return "{" + flow[1:] + "}"
}

// sized returns the demo in one step, side pixels wide and high.
func sized(t *testing.T, side, seed int) string {
	flow := harness.DemoFlow(t, 1)
	for field, v := range map[string]int{"width": side, "height": side, "seed": seed} {
		flow = regexp.MustCompile(`"`+field+`": *\d+`).ReplaceAllString(flow, fmt.Sprintf(`"%s": %d`, field, v))
	}
	return flow
}

// statusKiB reads a field of /proc/PID/status.
func statusKiB(t *testing.T, pid int, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in the status of %d", field, pid)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
