package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// machine is a `patchbay host` process.
type machine struct {
	t       *testing.T
	program string
	args    []string
	address string
	cmd     *exec.Cmd
	log     *harness.Output
}

// startMachine starts a host with its own models folder.
func startMachine(t *testing.T, program, key, models string, args ...string) *machine {
	t.Helper()
	free := natsserver.FreePort(t) // which no connection takes while the host is down
	m := &machine{t: t, program: program, address: free.Addr().String()}
	_ = free.Close()
	m.args = append([]string{"host", "--cluster-key", key, "--models", models, "--patience", "5s"}, args...)
	t.Cleanup(m.kill)
	m.start()
	return m
}

// start starts the host, or restarts it at the same address.
func (m *machine) start() {
	m.t.Helper()
	m.log = &harness.Output{}
	m.cmd = exec.Command(m.program, append(m.args, "--listen", m.address)...)
	m.cmd.Stderr = m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	for limit := time.Now().Add(harness.Patience); ; time.Sleep(10 * time.Millisecond) {
		if strings.Contains(m.log.String(), `"address":"`+m.address) {
			return
		}
		if time.Now().After(limit) {
			m.t.Fatalf("a host is not ready: %s", m.log)
		}
	}
}

func (m *machine) kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// TestHosts checks a daemon with --hosts that runs its ranks on two machines, each with its own models folders.
// Pictures are bit-identical to those of one process. A machine that is killed costs its job an attempt. The next
// attempt runs on the other machine, and the first is used again when it is back. A file that differs or is missing on
// one is named.
func TestHosts(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	models := filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(models, os.DirFS(harness.DemoModels(t))); err != nil {
		t.Fatal(err)
	}
	a, b := startMachine(t, program, key, harness.DemoModels(t)), startMachine(t, program, key, models)
	local := harness.Start(t, program, "")
	s := harness.Start(t, program, "", "--hosts", a.address+","+b.address, "--cluster-key", key, "--patience", "5s")
	for seed, plan := range []string{"cfg=2", "ulysses=2", ""} {
		id := fmt.Sprint("bits", len(plan))
		want, err := local.Picture(id, plan, seed)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Picture(id, plan, seed)
		if err != nil {
			t.Fatalf("%q: %v\n%s", plan, err, s.Log)
		}
		if !bytes.Equal(got, want) || len(got) == 0 {
			t.Errorf("%q: the picture has not the bits of one process", plan)
		}
	}
	machineKilled(s, b)
	b.start()
	seed := 10
	s.Until("the host is used again", func() bool {
		seed++
		if _, err := s.Picture(fmt.Sprint("again", seed), "ulysses=2", seed); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(b.log.String(), "a leader has come")
	})
	file := filepath.Join(models, "diffusion_models", "demo_flux.safetensors")
	changed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed[len(changed)-1] ^= 1
	if err := os.WriteFile(file, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	refusesFile(s, "other", b, "is another file than the leader's", models)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refusesFile(s, "missing", b, "is not in its models folders", models)
}

// refusesFile checks that a job whose model is another file on one machine, or missing there, fails with an error that
// names both, without the folders of that machine.
func refusesFile(s *harness.Server, id string, m *machine, want, folder string) {
	s.T.Helper()
	_, err := s.Picture(id, "ulysses=2", 1000+len(id))
	if err == nil {
		s.T.Fatalf("%s: it ran", id)
	}
	for _, text := range []string{"host " + m.address, "diffusion_models/demo_flux.safetensors", want} {
		if !strings.Contains(err.Error(), text) {
			s.T.Errorf("got %v, want %q in it", err, text)
		}
	}
	if strings.Contains(err.Error(), folder) {
		s.T.Errorf("%v tells of folders of another machine", err)
	}
}

// machineKilled checks that a job on two machines, one of which is killed, is done by the other in the same attempt.
func machineKilled(s *harness.Server, m *machine) {
	s.T.Helper()
	c := s.Client()
	ctx, end := context.WithTimeout(context.Background(), harness.Patience)
	defer end()
	long := &message.RunRequest{ID: "k", Workflow: harness.DemoFlow(s.T, 60), Plan: "ulysses=2"}
	if _, err := client.Submit(ctx, c, long); err != nil {
		s.T.Fatal(err)
	}
	moving := make(chan struct{})
	var once sync.Once
	ended := make(chan error, 1)
	go func() {
		_, err := client.Follow(ctx, c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
			if ev.Type == message.EventProgress {
				once.Do(func() { close(moving) })
			}
		}})
		ended <- err
	}()
	<-moving
	m.kill()
	if err := <-ended; err != nil {
		s.T.Fatal(err)
	}
	rec := s.WaitState(c, "k", message.Done)
	warnings := fmt.Sprint(rec.Metrics["warnings"])
	if rec.Attempt != 1 || !strings.Contains(warnings, "host "+m.address+" has gone") {
		s.T.Errorf("attempt %d, warnings %s; want the first, and one that names host %s", rec.Attempt, warnings, m.address)
	}
}

// TestHostsOfTwoDaemons checks that daemons on one NATS server, with a host each, share its queue: jobs run side by
// side, one on each, and their pictures are bit-identical to those of one process.
func TestHostsOfTwoDaemons(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: TestHosts has one daemon with two hosts")
	}
	program, n := harness.Build(t), natsserver.Start(t, natsserver.JetStream(t))
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := harness.Printed(exec.Command(program, "host", "--new-key", key)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var daemons []*harness.Server
	for range 2 {
		m := startMachine(t, program, key, harness.DemoModels(t), "--ranks", "2")
		daemons = append(daemons, harness.Start(t, program, "", "--nats", n.URL, "--hosts", m.address, "--cluster-key", key,
			"--patience", "5s"))
	}
	c, owners := daemons[0].Client(), map[string]bool{}
	for i := range 2 {
		job := &message.RunRequest{ID: fmt.Sprint("long", i), Workflow: harness.DemoFlow(t, 400+i), Plan: "ulysses=2"}
		if _, err := client.Submit(t.Context(), c, job); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		owners[daemons[0].WaitState(c, fmt.Sprint("long", i), message.Running).Owner] = true
	}
	if len(owners) != 2 {
		t.Errorf("two jobs run at daemons %v, want one at each", owners)
	}
	for i := range 2 {
		id := fmt.Sprint("long", i)
		if _, _, err := client.Cancel(t.Context(), c, id); err != nil {
			t.Fatal(err)
		}
		daemons[0].WaitState(c, id, message.Cancelled)
	}
	local := harness.Start(t, program, "")
	for i, d := range daemons {
		got, err := d.Picture(fmt.Sprint("far", i), "ulysses=2", i)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Log)
		}
		want, err := local.Picture(fmt.Sprint("here", i), "ulysses=2", i)
		if err != nil || !bytes.Equal(got, want) || len(got) == 0 {
			t.Errorf("picture %d has not the bits of one process, %v", i, err)
		}
	}
}
