package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
)

// TestResumeBytes checks the values of --resume-bytes, and that a worker keeps evaluations in a folder of the store.
func TestResumeBytes(t *testing.T) {
	for text, want := range map[string]int64{"2G": 2 << 30, "off": 0, "12X": -1, "0": -1} {
		c := Config{
			Queue: QueueDurable, Sync: SyncAlways, Store: "s", Attempts: 3, KeepJobs: 1, ResumeBytes: text, Version: "v1",
		}
		err := c.checkJobs()
		if want < 0 {
			if err == nil || !strings.Contains(err.Error(), "--resume-bytes") || !strings.Contains(err.Error(), "off") {
				t.Errorf("%s: got %v, want a refusal that names the flag and off", text, err)
			}
			continue
		}
		f, failed := c.resume(zerolog.Nop())
		if err != nil || failed != nil || (f != nil) != (want > 0) {
			t.Fatalf("%s: %v, %v, %v", text, f, err, failed)
		}
		if f != nil && (f.Most != want || f.Root != filepath.Join("s", "resume") || !strings.HasPrefix(f.Build, "v1 ")) {
			t.Errorf("%s: got %+v", text, f)
		}
		c.Queue = queueMemory
		if f, err := c.resume(zerolog.Nop()); f != nil || err != nil {
			t.Errorf("%s: jobs end with the daemon, and %+v (%v) is kept of them", text, f, err)
		}
	}
}

// TestSweepEvaluations checks that only the folders of open jobs are left.
func TestSweepEvaluations(t *testing.T) {
	d := &daemon{
		cfg:  &Config{Queue: QueueDurable, Store: t.TempDir(), ResumeBytes: "1G"},
		jobs: jobs.New(jobs.Config{}),
	}
	for _, job := range []string{"runs", "ended", "unknown"} {
		if job != "unknown" {
			if _, err := d.jobs.Begin(job, jobs.KindSample, "w"); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(d.cfg.resumeRoot(), job), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d.jobs.Finish(t.Context(), "ended", nil, nil)
	left := func() (names []string) {
		entries, err := os.ReadDir(d.cfg.resumeRoot())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if d.sweepEvaluations(); !slices.Equal(left(), []string{"runs"}) {
		t.Errorf("left are %v, want the job that runs", left())
	}
	d.cfg.ResumeBytes = resumeOff
	if d.sweepEvaluations(); len(left()) != 0 {
		t.Errorf("with %s, %v are left", resumeOff, left())
	}
	d.evaluations().Forget("..")
	if _, err := os.Stat(d.cfg.Store); err != nil {
		t.Errorf("a job whose id leads out of the folder: %v", err)
	}
}
