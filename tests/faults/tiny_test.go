package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestTinyJobs sends many jobs that compute nothing, more than are remembered, and checks that once the daemon has
// forgotten the first of them, what it and its worker hold no longer grows.
func TestTinyJobs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: 600 jobs; TestMetrics counts a few")
	}
	s := harness.Start(t, harness.Build(t), "", "--sync", "interval", "--keep-jobs", "100", "--log", "info",
		"--metrics", "127.0.0.1:0")
	c := s.Client()
	run := func(from, to int) {
		for i := from; i < to; i++ {
			ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
			col := &client.Collector{}
			end, err := client.Run(ctx, c, &message.RunRequest{ID: fmt.Sprintf("t%05d", i), Workflow: harness.Quick}, col)
			cancel()
			if err != nil || end == nil || end.Type != message.EventSuccess || len(col.Files) != 1 {
				t.Fatalf("job %d: %+v, %v, %d files", i, end, err, len(col.Files))
			}
		}
	}
	// The daemon's heap is read as its collector's goal, twice the live heap: resident memory depends on when that
	// runs.
	now := func() (daemon, worker harness.Count, goroutines int) {
		daemon, worker = harness.Census(s.Cmd.Process.Pid), harness.Census(s.WorkerPIDs()[0])
		daemon.Resident = int64(metric(t, s, "go_memstats_next_gc_bytes"))
		return daemon, worker, metric(t, s, "go_goroutines")
	}
	run(0, tinyJobs/3)
	daemon, worker, routines := now()
	run(tinyJobs/3, tinyJobs)
	s.Until("the goroutines of the last jobs have ended", func() bool {
		_, _, n := now()
		return n <= routines+4
	})
	const grain = 24 << 20 // twice a block of a stream that the store holds, and what a worker's collector leaves
	later, child, last := now()
	for name, at := range map[string][2]harness.Count{"daemon": {daemon, later}, "worker": {worker, child}} {
		was, is := at[0], at[1]
		t.Logf("%s after %d and %d jobs: %d and %d MiB, %d and %d descriptors", name, tinyJobs/3, tinyJobs, was.Resident>>20,
			is.Resident>>20, was.Files, is.Files)
		if is.Resident > was.Resident+grain || is.Files > was.Files+4 {
			t.Errorf("%s: %d bytes and %d descriptors grew to %d and %d", name, was.Resident, was.Files, is.Resident, is.Files)
		}
	}
	t.Logf("goroutines of the daemon: %d and %d", routines, last)
	if len(s.WorkerPIDs()) != 1 {
		t.Errorf("workers %v, want the first one", s.WorkerPIDs())
	}
}

// metric reads one number of the daemon's metrics page.
func metric(t *testing.T, s *harness.Server, name string) int {
	t.Helper()
	var now struct{ Metrics string }
	text, err := os.ReadFile(filepath.Join(s.Store, "daemon.json"))
	if err == nil {
		err = json.Unmarshal(text, &now)
	}
	if err != nil || now.Metrics == "" {
		t.Fatalf("the daemon does not say where its metrics are: %s, %v", text, err)
	}
	address := "http://" + now.Metrics + "/metrics"
	r, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(f)
		}
	}
	t.Fatalf("%s has no %s", address, name)
	return 0
}
