package faults

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestDoctorShowsStore checks that doctor reports how much of the job store is used and left, and after a crash that
// damaged the records which jobs are lost, done ones too, and what the server reports.
func TestDoctorShowsStore(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	s := harness.Start(t, program, "")
	doctor := func() (string, int) {
		out, err := exec.Command(program, "doctor", "--nats", s.URL, "--models", harness.DemoModels(t)).Output()
		return string(out), harness.ExitCode(t, err)
	}
	for _, id := range []string{"kept", "broken", "behind"} {
		harness.Submit(t, s.Client(), id, harness.Quick)
		s.WaitFiles(s.Client(), id)
	}
	checkEnds(t, s, "kept", "broken", "behind")
	healthy := regexp.MustCompile(`(?m)^ok    jobs     store of daemon d-\S+: \S+ (?:[KM]i)?B of 8 GiB used, ` +
		`\S+ GiB left for new jobs, 256 MiB kept for the ends of those that are there$`)
	if out, code := doctor(); code != 0 || !healthy.MatchString(out) {
		t.Errorf("doctor of a healthy store ended with %d:\n%s", code, out)
	}
	s.Kill()
	msgs := filepath.Join(s.Store, "nats", "jetstream", "$G", "streams", "KV_"+message.JobBucket, "msgs")
	blocks, err := filepath.Glob(filepath.Join(msgs, "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("no records in %s: %v", msgs, err)
	}
	for _, path := range blocks {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; ; at += 4 {
			i := bytes.Index(data[at:], []byte(`"job":"broken"`))
			if i < 0 {
				break
			}
			at += i
			data[at] ^= 0x55
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(filepath.Join(msgs, "index.db"))
	s.Launch()
	out, code := doctor()
	for _, want := range []string{
		"wrong jobs     daemon d-", "the files of its store are damaged: ", "broken",
		" has lost KV_" + message.JobBucket + ": ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor of a damaged store does not say %q", want)
		}
	}
	if code != 1 {
		t.Errorf("doctor of a damaged store ended with %d, want 1", code)
	}
	if t.Failed() {
		t.Log(out)
	}
}
