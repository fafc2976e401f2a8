package tests

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/tests/natsserver"
)

// TestRouting checks two daemons on one NATS server, of which only one has the model files: the other one hands their
// jobs back without using an attempt, its clients get the files all the same, and when the one with the files is gone
// such jobs are refused.
func TestRouting(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT RUN with -short: starts nats-server")
	}
	program := buildProgram(t)
	n := natsserver.Start(t, natsserver.JetStream(t))
	bare := t.TempDir()
	has := startServer(t, program, "", "--nats", n.URL)
	lacks := startServerOn(t, program, "", bare, "--nats", n.URL)
	has.until("both workers are up", func() bool { return len(has.workerPIDs())+len(lacks.workerPIDs()) == 2 })
	c := has.client()

	dir := t.TempDir()
	flow := filepath.Join(dir, "flow.json")
	if err := os.WriteFile(flow, []byte(chaosFlow(t, 0)), 0o644); err != nil {
		t.Fatal(err)
	}
	has.until("the daemons know of each other", func() bool {
		_, err := client.Submit(context.Background(), dialSocket(t, lacks),
			&message.RunRequest{ID: "first", Workflow: demoFlow(t, 1)})
		return err == nil
	})
	has.waitState(c, "first", message.Done)
	out, err := exec.Command(program, "run", flow, "--id", "far", "--socket", lacks.socket, "--out", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("run on the daemon without files: %v\n%s\n%s", err, out, lacks.log)
	}
	if !bytes.Equal(onlyPicture(t, dir, 0), onlyPicture(t, has.out, 0)) {
		t.Error("the picture that came back is not the one in the output folder of the daemon that made it")
	}
	name, err := os.ReadFile(filepath.Join(has.store, "daemon-name"))
	if err != nil {
		t.Fatal(err)
	}
	if rec := has.waitState(c, "far", message.Done); rec.Attempt != 1 || rec.Owner != string(name) ||
		len(rec.Files) == 0 || rec.Files[0].Hash == "" || rec.Memory == 0 {
		t.Errorf("got %+v, want one attempt by %s and the files it needed", rec, name)
	}

	submit(t, c, "long", demoFlow(t, 5000))
	has.waitState(c, "long", message.Running)
	for _, id := range []string{"w1", "w2", "w3"} {
		submit(t, c, id, demoFlow(t, 2))
	}
	submit(t, c, "anywhere", quick) // waits behind them and needs no files
	if rec := has.waitState(c, "anywhere", message.Done); rec.Owner == string(name) {
		t.Error("the job without files was run by the busy daemon")
	}
	for _, id := range []string{"w1", "w2", "w3"} {
		if rec, err := status(c, id); err != nil || rec.State != message.Queued || rec.Attempt != 0 {
			t.Errorf("%s is %s in attempt %d, %v; want queued", id, rec.State, rec.Attempt, err)
		}
	}
	cancel(t, c, "long")
	for _, id := range []string{"w1", "w2", "w3"} {
		if rec := has.waitState(c, id, message.Done); rec.Attempt != 1 || rec.Owner != string(name) {
			t.Errorf("%s took %d attempts on %s", id, rec.Attempt, rec.Owner)
		}
	}

	if err := has.stop(); err != nil {
		t.Fatal(err)
	}
	lc := lacks.client()
	var refusal *wire.Error
	lacks.until("the job is refused", func() bool {
		_, err := client.Submit(context.Background(), lc, &message.RunRequest{Workflow: demoFlow(t, 3)})
		return errors.As(err, &refusal)
	})
	if text := refusal.Error(); !strings.Contains(text, "demo_flux.safetensors") || strings.Contains(text, bare) ||
		refusal.Status != 422 {
		t.Errorf("got %d %s\nwant a refusal that names the file and not the folder %s", refusal.Status, text, bare)
	}
	lacks.until("the log names the folder", func() bool { return strings.Contains(lacks.log.String(), bare) })
	out, err = exec.Command(program, "run", flow, "--nats", n.URL).CombinedOutput()
	if code := exitCode(t, err); code != 2 || strings.Contains(string(out), bare) {
		t.Errorf("run ended with code %d, want 2 without the folder:\n%s", code, out)
	}
}

// TestRoutingByContents checks that when two daemons have different files under one name, the job goes to the daemon
// that it was checked against.
func TestRoutingByContents(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT RUN with -short: starts nats-server")
	}
	program := buildProgram(t)
	n := natsserver.Start(t, natsserver.JetStream(t))
	other := t.TempDir()
	damageModels(t, demoModels(t), other)
	a := startServer(t, program, "", "--nats", n.URL)
	b := startServerOn(t, program, "", other, "--nats", n.URL)
	a.until("both workers are up", func() bool { return len(a.workerPIDs())+len(b.workerPIDs()) == 2 })
	name, err := os.ReadFile(filepath.Join(a.store, "daemon-name"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if _, err := client.Submit(context.Background(), dialSocket(t, a),
			&message.RunRequest{ID: chaosID(i), Workflow: chaosFlow(t, i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		if rec := a.waitState(a.client(), chaosID(i), message.Done); rec.Owner != string(name) || rec.Attempt != 1 {
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

func dialSocket(t testing.TB, s *server) client.Client {
	t.Helper()
	c, err := client.DialSocket(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
