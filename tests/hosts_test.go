package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/tests/natsserver"
)

// machine is a `patchbay host` process.
type machine struct {
	t       *testing.T
	program string
	args    []string
	address string
	cmd     *exec.Cmd
	log     *output
}

// startMachine starts a host with its own models folder.
func startMachine(t *testing.T, program, key, models string, args ...string) *machine {
	t.Helper()
	m := &machine{t: t, program: program, address: "127.0.0.1:0"}
	m.args = append([]string{"host", "--cluster-key", key, "--models", models, "--patience", "5s"}, args...)
	t.Cleanup(m.kill)
	m.start()
	return m
}

// start starts the host, or restarts it at the same address.
func (m *machine) start() {
	m.t.Helper()
	m.log = &output{}
	m.cmd = exec.Command(m.program, append(m.args, "--listen", m.address)...)
	m.cmd.Stderr = m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	ready := regexp.MustCompile(`"address":"([^"]+)"`)
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if found := ready.FindStringSubmatch(m.log.String()); found != nil {
			m.address = found[1]
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
	program := buildProgram(t)
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := exec.Command(program, "host", "--new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	models := filepath.Join(t.TempDir(), "models")
	if err := os.CopyFS(models, os.DirFS(demoModels(t))); err != nil {
		t.Fatal(err)
	}
	a, b := startMachine(t, program, key, demoModels(t)), startMachine(t, program, key, models)
	here := startServer(t, program, "")
	s := startServer(t, program, "", "--hosts", a.address+","+b.address, "--cluster-key", key, "--patience", "5s")
	for seed, plan := range []string{"cfg=2", "ulysses=2", ""} {
		id := fmt.Sprint("bits", len(plan))
		want, err := here.picture(id, plan, seed)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.picture(id, plan, seed)
		if err != nil {
			t.Fatalf("%q: %v\n%s", plan, err, s.log)
		}
		if !bytes.Equal(got, want) || len(got) == 0 {
			t.Errorf("%q: the picture has not the bits of one process", plan)
		}
	}
	s.machineKilled(b)
	b.start()
	seed := 10
	s.until("the host is used again", func() bool {
		seed++
		if _, err := s.picture(fmt.Sprint("again", seed), "ulysses=2", seed); err != nil {
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
	s.refusesFile("other", b, "is another file than the leader's", models)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.refusesFile("missing", b, "is not in its models folders", models)
}

// picture runs three steps of the demo with a seed that no job has had, so that no cached result answers.
func (s *server) picture(id, plan string, seed int) ([]byte, error) {
	flow := regexp.MustCompile(`"seed": \d+`).ReplaceAllString(demoFlow(s.t, 3), fmt.Sprintf(`"seed": %d`, seed))
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	var col client.Collector
	last, err := client.Run(ctx, s.client(), &message.RunRequest{ID: id, Workflow: flow, Plan: plan}, &col)
	switch {
	case err != nil:
		return nil, err
	case last.Error != nil:
		return nil, last.Error
	case len(col.Files) == 0:
		return nil, errors.New("there is no picture")
	}
	return col.Files[0].Data, nil
}

// refusesFile checks that a job whose model is another file on one machine, or missing there, fails with an error that
// names both, without the folders of that machine.
func (s *server) refusesFile(id string, m *machine, want, folder string) {
	s.t.Helper()
	_, err := s.picture(id, "ulysses=2", 1000+len(id))
	if err == nil {
		s.t.Fatalf("%s: it ran", id)
	}
	for _, text := range []string{"host " + m.address, "diffusion_models/demo_flux.safetensors", want} {
		if !strings.Contains(err.Error(), text) {
			s.t.Errorf("got %v, want %q in it", err, text)
		}
	}
	if strings.Contains(err.Error(), folder) {
		s.t.Errorf("%v tells of folders of another machine", err)
	}
}

// machineKilled checks that a job on two machines, one of which is killed, is done by the other.
func (s *server) machineKilled(m *machine) {
	s.t.Helper()
	c := s.client()
	ctx, end := context.WithTimeout(context.Background(), patience)
	defer end()
	long := &message.RunRequest{ID: "k", Workflow: demoFlow(s.t, 60), Plan: "ulysses=2"}
	if _, err := client.Submit(ctx, c, long); err != nil {
		s.t.Fatal(err)
	}
	moving := make(chan struct{})
	var once sync.Once
	var retries []string
	ended := make(chan error, 1)
	go func() {
		_, err := client.Follow(ctx, c, "k", 0, false, &client.Collector{Event: func(ev message.Event) {
			switch ev.Type {
			case message.EventProgress:
				once.Do(func() { close(moving) })
			case message.EventRetrying:
				retries = append(retries, fmt.Sprint(ev.Data["cause"]))
			}
		}})
		ended <- err
	}()
	<-moving
	m.kill()
	if err := <-ended; err != nil {
		s.t.Fatal(err)
	}
	if len(retries) != 1 || !strings.Contains(retries[0], "host "+m.address+" has gone") {
		s.t.Errorf("got retries %q, want one that names host %s", retries, m.address)
	}
	if rec := s.waitState(c, "k", message.Done); rec.Attempt != 2 {
		s.t.Errorf("it was done in attempt %d", rec.Attempt)
	}
}

// TestHostsOfTwoDaemons checks that daemons on one NATS server, with a host each, share its queue: jobs run side by
// side, one on each, and their pictures are bit-identical to those of one process.
func TestHostsOfTwoDaemons(t *testing.T) {
	t.Parallel()
	program, n := buildProgram(t), natsserver.Start(t, natsserver.JetStream(t))
	key := filepath.Join(t.TempDir(), "cluster.key")
	if out, err := exec.Command(program, "host", "--new-key", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var daemons []*server
	for range 2 {
		m := startMachine(t, program, key, demoModels(t), "--ranks", "2")
		daemons = append(daemons, startServer(t, program, "", "--nats", n.URL, "--hosts", m.address, "--cluster-key", key,
			"--patience", "5s"))
	}
	c, owners := daemons[0].client(), map[string]bool{}
	for i := range 2 {
		job := &message.RunRequest{ID: fmt.Sprint("long", i), Workflow: demoFlow(t, 400+i), Plan: "ulysses=2"}
		if _, err := client.Submit(t.Context(), c, job); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		owners[daemons[0].waitState(c, fmt.Sprint("long", i), message.Running).Owner] = true
	}
	if len(owners) != 2 {
		t.Errorf("two jobs run at daemons %v, want one at each", owners)
	}
	for i := range 2 {
		id := fmt.Sprint("long", i)
		if _, _, err := client.Cancel(t.Context(), c, id); err != nil {
			t.Fatal(err)
		}
		daemons[0].waitState(c, id, message.Cancelled)
	}
	here := startServer(t, program, "")
	for i, d := range daemons {
		got, err := d.picture(fmt.Sprint("far", i), "ulysses=2", i)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.log)
		}
		want, err := here.picture(fmt.Sprint("here", i), "ulysses=2", i)
		if err != nil || !bytes.Equal(got, want) || len(got) == 0 {
			t.Errorf("picture %d has not the bits of one process, %v", i, err)
		}
	}
}
