package faults

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// TestRouting checks two daemons on one NATS server, of which only one has the model files: the other one hands their
// jobs back without using an attempt, its clients get the files all the same, and when the one with the files is gone
// such jobs are refused.
func TestRouting(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	n := natsserver.Start(t, natsserver.JetStream(t))
	bare := t.TempDir()
	has := harness.Start(t, program, "", "--nats", n.URL)
	lacks := harness.StartOn(t, program, "", bare, "--nats", n.URL)
	has.Until("both workers are up", func() bool { return len(has.WorkerPIDs())+len(lacks.WorkerPIDs()) == 2 })
	c := has.Client()

	dir := t.TempDir()
	flow := filepath.Join(dir, "flow.json")
	if err := os.WriteFile(flow, []byte(chaosFlow(t, 0)), 0o644); err != nil {
		t.Fatal(err)
	}
	has.Until("the daemons know of each other", func() bool {
		_, err := client.Submit(context.Background(), harness.Dial(t, lacks),
			&message.RunRequest{ID: "first", Workflow: harness.DemoFlow(t, 1)})
		return err == nil
	})
	has.WaitState(c, "first", message.Done)
	out, err := harness.Printed(exec.Command(program, "run", flow, "--id", "far", "--socket", lacks.Socket, "--out", dir))
	if err != nil {
		t.Fatalf("run on the daemon without files: %v\n%s\n%s", err, out, lacks.Log)
	}
	if !bytes.Equal(onlyPicture(t, dir, 0), onlyPicture(t, has.Out, 0)) {
		t.Error("the picture that came back is not the one in the output folder of the daemon that made it")
	}
	name, err := os.ReadFile(filepath.Join(has.Store, "daemon-name"))
	if err != nil {
		t.Fatal(err)
	}
	if rec := has.WaitState(c, "far", message.Done); rec.Attempt != 1 || rec.Owner != string(name) ||
		len(rec.Files) == 0 || rec.Files[0].Hash == "" || rec.Memory == 0 {
		t.Errorf("got %+v, want one attempt by %s and the files it needed", rec, name)
	}

	harness.Submit(t, c, "long", harness.DemoFlow(t, 5000))
	has.WaitState(c, "long", message.Running)
	for _, id := range []string{"w1", "w2", "w3"} {
		harness.Submit(t, c, id, harness.DemoFlow(t, 2))
	}
	harness.Submit(t, c, "anywhere", harness.Quick) // waits behind them and needs no files
	if rec := has.WaitState(c, "anywhere", message.Done); rec.Owner == string(name) {
		t.Error("the job without files was run by the busy daemon")
	}
	for _, id := range []string{"w1", "w2", "w3"} {
		if rec, err := harness.Status(c, id); err != nil || rec.State != message.Queued || rec.Attempt != 0 {
			t.Errorf("%s is %s in attempt %d, %v; want queued", id, rec.State, rec.Attempt, err)
		}
	}
	harness.Cancel(t, c, "long")
	for _, id := range []string{"w1", "w2", "w3"} {
		if rec := has.WaitState(c, id, message.Done); rec.Attempt != 1 || rec.Owner != string(name) {
			t.Errorf("%s took %d attempts on %s", id, rec.Attempt, rec.Owner)
		}
	}

	if err := has.Stop(); err != nil {
		t.Fatal(err)
	}
	lc := lacks.Client()
	var refusal *fault.Error
	lacks.Until("the job is refused", func() bool {
		_, err := client.Submit(context.Background(), lc, &message.RunRequest{Workflow: harness.DemoFlow(t, 3)})
		return errors.As(err, &refusal)
	})
	if text := refusal.Error(); !strings.Contains(text, "demo_flux.safetensors") || strings.Contains(text, bare) ||
		refusal.Status() != 422 {
		t.Errorf("got %d %s\nwant a refusal that names the file and not the folder %s", refusal.Status(), text, bare)
	}
	lacks.Until("the log names the folder", func() bool { return strings.Contains(lacks.Log.String(), bare) })
	out, err = harness.Printed(exec.Command(program, "run", flow, "--nats", n.URL))
	if code := harness.ExitCode(t, err); code != 2 || strings.Contains(string(out), bare) {
		t.Errorf("run ended with code %d, want 2 without the folder:\n%s", code, out)
	}
}

// TestRoutingByContents checks that when two daemons have different files under one name, the job goes to the daemon
// that it was checked against.
func TestRoutingByContents(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	n := natsserver.Start(t, natsserver.JetStream(t))
	other := t.TempDir()
	damageModels(t, harness.DemoModels(t), other)
	a := harness.Start(t, program, "", "--nats", n.URL)
	b := harness.StartOn(t, program, "", other, "--nats", n.URL)
	a.Until("both workers are up", func() bool { return len(a.WorkerPIDs())+len(b.WorkerPIDs()) == 2 })
	name, err := os.ReadFile(filepath.Join(a.Store, "daemon-name"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if _, err := client.Submit(context.Background(), harness.Dial(t, a),
			&message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		if rec := a.WaitState(a.Client(), chaosID(i), message.Done); rec.Owner != string(name) || rec.Attempt != 1 {
			t.Errorf("job %d took %d attempts on %s, want one on %s", i, rec.Attempt, rec.Owner, name)
		}
	}
}

// damageModels copies a models folder and makes every model file a byte longer, and so another file.
func damageModels(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".safetensors" {
			return err
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte{0})
		return errors.Join(err, f.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}
