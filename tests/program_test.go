package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// programDir is the folder of the program under test. TestMain creates and removes it.
var programDir string

// build builds the program into programDir once, with the examples beside it as in a source tree.
var build = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(programDir, "bin", "patchbay")
	examples, err := filepath.Abs("../examples")
	if err == nil {
		err = os.Symlink(examples, filepath.Join(programDir, "examples"))
	}
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "..").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// atOnce is how many tests run in parallel: most of the time they wait for other processes.
const atOnce = 6

// TestMain creates and removes programDir, and runs atOnce tests in parallel unless the command line sets -parallel.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", fmt.Sprint(atOnce)); err != nil {
		panic(err)
	}
	flag.Parse()
	var err error
	if programDir, err = os.MkdirTemp("", "patchbay-tests-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programDir)
	os.Exit(code)
}

// installing serializes builds whose results are kept outside Go's build cache.
var installing sync.Mutex

// buildProgram returns the path of the program, which all tests share.
func buildProgram(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// demoModels returns the folder of the models that come with the examples.
func demoModels(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../examples/demo")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// output collects what a process prints. It is safe for concurrent use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// server is a running daemon.
type server struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    *output
	url    string
	socket string
	out    string // output folder
	store  string
	line   []string // command line
	home   string
	ended  chan error
}

// startServer starts a daemon on a free port with its own folders. wrap, if not empty, is a shell command line that
// gets the daemon's command line as "$@".
func startServer(t testing.TB, program, wrap string, args ...string) *server {
	t.Helper()
	return startServerOn(t, program, wrap, demoModels(t), args...)
}

// startServerOn is startServer with the caller's models folder.
func startServerOn(t testing.TB, program, wrap, models string, args ...string) *server {
	t.Helper()
	return startServerIn(t, program, wrap, models, filepath.Join(t.TempDir(), "store"), args...)
}

// startServerIn is startServer with the caller's models folder and store.
func startServerIn(t testing.TB, program, wrap, models, store string, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{
		t: t, log: &output{}, home: dir, socket: filepath.Join(dir, "p.sock"),
		out: filepath.Join(dir, "output"), store: store,
	}
	s.line = append([]string{
		program, "serve", "--socket", s.socket, "--store", s.store, "--models", models,
		"--input", filepath.Join(dir, "input"), "--output", s.out, "--log", "debug",
	}, args...)
	if !slices.Contains(args, "--nats") && !slices.Contains(args, "--listen") {
		s.line = append(s.line, "--listen", "127.0.0.1:0")
	}
	if wrap != "" {
		s.line = append([]string{"sh", "-c", wrap, "sh"}, s.line...)
	}
	t.Cleanup(func() { s.stop() })
	s.launch()
	return s
}

// launch starts or restarts the daemon and waits until it listens.
func (s *server) launch() {
	s.t.Helper()
	file := filepath.Join(s.store, "daemon.json")
	_ = os.Remove(file) // left behind by a daemon that was killed
	s.cmd = exec.Command(s.line[0], s.line[1:]...)
	s.cmd.Env = append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET=", "PATCHBAY_HOME="+s.home)
	s.cmd.Stderr = s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that times out must not leave it
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	s.ended = ended
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(s.cmd)
	var now struct{ NATS string }
	s.until("the daemon listens", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &now) == nil
	})
	s.url = now.NATS
}

// kill ends the daemon with SIGKILL.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
	s.ended = nil
}

// patience bounds waits that should be short. Only something that hangs reaches it, even on a slow and busy machine.
const patience = 2 * time.Minute

// until polls done. It fails the test once the daemon and its workers have idled for patience, and after five times
// patience at the latest.
func (s *server) until(what string, done func() bool) {
	s.t.Helper()
	began := time.Now()
	idle, mark, used := began, began, s.used()
	for !done() {
		now := time.Now()
		if since := now.Sub(mark); since > 2*time.Second {
			u := s.used()
			if u-used > since/20 {
				idle = now
			}
			mark, used = now, u
		}
		if now.Sub(idle) > patience || now.Sub(began) > 5*patience {
			s.t.Fatalf("not within %s, idle for %s: %s\n%s", now.Sub(began), now.Sub(idle), what, s.log)
		}
		time.Sleep(min(10*time.Millisecond+now.Sub(began)/20, 100*time.Millisecond)) // each poll costs processor time
	}
}

// used returns the processor time of the daemon and its living workers.
func (s *server) used() time.Duration {
	sum := census(s.cmd.Process.Pid).cpu
	for _, pid := range s.workerPIDs() {
		sum += census(pid).cpu
	}
	return sum
}

// stop ends the daemon with SIGTERM, as init would, and returns how it ended.
func (s *server) stop() error {
	if s.ended == nil {
		return nil
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	return s.wait()
}

// wait waits for the end of a daemon that was sent SIGTERM, and kills it after patience.
func (s *server) wait() error {
	select {
	case err := <-s.ended:
		s.ended = nil
		return err
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.ended = nil
		return fmt.Errorf("it did not end within %s of SIGTERM", patience)
	}
}

// client connects to the daemon's NATS server. It dials twice because a test may be cutting connections at the moment.
func (s *server) client() *client.NATSClient {
	s.t.Helper()
	c, err := client.DialNATS(s.url)
	if err != nil {
		c, err = client.DialNATS(s.url)
	}
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// waitState waits until a job is in the state want and returns its record.
func (s *server) waitState(c client.Client, job string, want message.State) message.Record {
	s.t.Helper()
	var rec message.Record
	s.until(fmt.Sprintf("job %s is %s", job, want), func() bool {
		var err error
		if rec, err = status(c, job); errors.Is(err, client.ErrNoDaemon) || errors.Is(err, context.DeadlineExceeded) {
			return false // the daemon is reconnecting after it lost its server
		} else if err != nil {
			s.t.Fatalf("status of %s: %v", job, err)
		}
		if rec.State.Final() && rec.State != want {
			s.t.Fatalf("job %s is %s, want %s: %v\n%s", job, rec.State, want, rec.Error, s.log)
		}
		return rec.State == want
	})
	return rec
}

// waitFiles waits until a job is done and its files have names, which they get only after its end.
func (s *server) waitFiles(c client.Client, job string) {
	s.t.Helper()
	s.until("the files of "+job+" have names", func() bool {
		rec, err := status(c, job)
		return err == nil && rec.State == message.Done && len(rec.Outputs) > 0 &&
			rec.Outputs[len(rec.Outputs)-1].Filename != ""
	})
}

// status asks for a record and gives up after 10 s: a request that is lost with its server is never answered.
func status(c client.Client, job string) (message.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return client.Status(ctx, c, job)
}

// ready is the log line of a worker that is up.
type ready struct {
	Message, Worker string
	PID             int
}

// workers returns the workers that the log reports, in the order of their starts.
func (s *server) workers() (all []ready) {
	for line := range strings.Lines(s.log.String()) {
		var l ready
		if strings.Contains(line, "worker ready") && json.Unmarshal([]byte(line), &l) == nil && l.Message == "worker ready" {
			all = append(all, l)
		}
	}
	return all
}

// workerPIDs returns the process ids of the workers, in the order of their starts.
func (s *server) workerPIDs() (pids []int) {
	for _, l := range s.workers() {
		pids = append(pids, l.PID)
	}
	return pids
}

// worker returns the process id of the latest worker, or of the latest with the given name.
func (s *server) worker(name ...string) (pid int) {
	s.t.Helper()
	s.until("a worker is up", func() bool {
		for _, l := range s.workers() {
			if len(name) == 0 || l.Worker == name[0] {
				pid = l.PID
			}
		}
		return pid != 0
	})
	return pid
}

// turns keeps throttle from resuming a process that something else has stopped.
var turns sync.Mutex

// throttle lets a process run a fifth of the time, until it ends or release is called. A job that only has to be under
// way then costs little, and lasts five times as long as its steps take, however fast the machine is.
func throttle(t testing.TB, pid int) (release func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
		for turn := func() bool {
			turns.Lock()
			defer turns.Unlock()
			if syscall.Kill(pid, syscall.SIGCONT) != nil {
				return false
			}
			time.Sleep(10 * time.Millisecond)
			return syscall.Kill(pid, syscall.SIGSTOP) == nil
		}; turn(); {
			select {
			case <-quit:
				return
			case <-time.After(40 * time.Millisecond):
			}
		}
	}()
	release = sync.OnceFunc(func() { close(quit); <-done })
	t.Cleanup(release)
	return release
}

// quick is a workflow that needs no weights: an empty latent, saved.
const quick = `{"1":{"class_type":"EmptyLatentImage","inputs":{"width":64,"height":64,"batch_size":1}},` +
	`"2":{"class_type":"SaveLatent","inputs":{"samples":["1",0],"filename_prefix":"quick"}}}`

// demoFlow returns examples/demo.json with the given number of steps, 64 pixels wide and high.
func demoFlow(t testing.TB, steps int) string {
	t.Helper()
	text := flowText(steps)
	if text == "" {
		t.Fatal("examples/demo.json has no steps of 12 to replace")
	}
	return text
}

// flowText is demoFlow for goroutines that must not end the test: it returns "" if there is no such flow.
func flowText(steps int) string {
	b, err := os.ReadFile("../examples/demo.json")
	const size, twelve = `"width": 128, "height": 128`, `"steps": 12`
	if text := string(b); err == nil && strings.Contains(text, size) && strings.Contains(text, twelve) {
		return strings.NewReplacer(size, `"width": 64, "height": 64`, twelve, fmt.Sprintf(`"steps": %d`, steps)).Replace(text)
	}
	return ""
}
