package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestCopiedStore checks that a daemon on a copy of another one's store, which has its name, refuses to serve beside it
// and says why, that the first one keeps the job it runs, and that the copy may serve once the first has ended.
func TestCopiedStore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a daemon starts three times; TestRivals of ipc/register has the rule")
	}
	program, n := harness.Build(t), natsserver.Start(t, natsserver.JetStream(t))
	s := harness.Start(t, program, "", "--nats", n.URL)
	c := s.Client()
	job := &message.RunRequest{ID: "long", Workflow: harness.DemoFlow(t, 10000)}
	if _, err := client.Submit(t.Context(), c, job); err != nil {
		t.Fatal(err)
	}
	before := s.WaitState(c, "long", message.Running)
	dir := t.TempDir()
	store := filepath.Join(dir, "store")
	if err := os.CopyFS(store, os.DirFS(s.Store)); err != nil {
		t.Fatal(err)
	}
	out, err := harness.Printed(exec.Command(program, "serve", "--socket", "off", "--store", store, "--nats", n.URL,
		"--models", harness.DemoModels(t), "--input", dir, "--output", filepath.Join(dir, "out")))
	if err == nil || !strings.Contains(string(out), "another process serves under the name of this daemon") {
		t.Fatalf("the copy: %v\n%s", err, out)
	}
	now, err := client.Status(t.Context(), c, "long")
	if err != nil || now.State != message.Running || now.Attempt != before.Attempt {
		t.Errorf("the job of the first daemon is %s in attempt %d, %v", now.State, now.Attempt, err)
	}
	if _, _, err := client.Cancel(t.Context(), c, "long"); err != nil {
		t.Fatal(err)
	}
	s.WaitState(c, "long", message.Cancelled)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	again := harness.StartIn(t, program, "", harness.DemoModels(t), store, "--nats", n.URL)
	if _, err := again.Picture("p", "", 1); err != nil {
		t.Error(err)
	}
}
