// Package harness runs the program under test for the packages of tests: it builds the program once in each of them,
// starts daemons, and waits for what they do. Only tests import it.
package harness

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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// programDir is the folder of the program under test. Main creates and removes it.
var programDir string

// root returns the folder of the repository: the nearest one with a go.mod, from the folder of the running test up.
var root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
})

// Root returns the folder of the repository.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// built builds the program into programDir once, with the examples beside it as in a source tree.
var built = sync.OnceValues(func() (path string, err error) {
	dir, err := root()
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "examples"), filepath.Join(programDir, "examples"))
	}
	if err != nil {
		return "", err
	}
	path = filepath.Join(programDir, "bin", "patchbay")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, ".")
	build.Dir = dir
	if out, err := Printed(build); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// atOnce is how many tests run in parallel: most of the time they wait for other processes.
const atOnce = 6

// Main is the TestMain of a package that uses Build. It runs atOnce tests in parallel unless the command line sets
// -parallel.
func Main(m *testing.M) {
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

// Build returns the path of the program, which all tests share.
func Build(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// DemoModels returns the folder of the models that come with the examples.
func DemoModels(t testing.TB) string {
	t.Helper()
	return filepath.Join(Root(t), "examples", "demo")
}

// buffer collects what a process prints. It is safe for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *buffer) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *buffer) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Len()
}

// Output collects what a process prints, and watches it for secrets. It is safe for concurrent use.
type Output struct{ buffer }

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := max(0, o.b.Len()-longest) // a secret may be split over two writes
	n, err := o.b.Write(b)
	watch(string(o.b.Bytes()[before:]))
	return n, err
}

// Server is a running daemon.
type Server struct {
	T      testing.TB
	Cmd    *exec.Cmd
	Log    *Output
	URL    string
	Socket string
	Out    string // output folder
	Store  string
	Line   []string // command line
	Home   string
	Ended  chan error
}

// Start starts a daemon on a free port with its own folders. wrap, if not empty, is a shell command line that
// gets the daemon's command line as "$@".
func Start(t testing.TB, program, wrap string, args ...string) *Server {
	t.Helper()
	return StartOn(t, program, wrap, DemoModels(t), args...)
}

// StartOn is Start with the caller's models folder.
func StartOn(t testing.TB, program, wrap, models string, args ...string) *Server {
	t.Helper()
	return StartIn(t, program, wrap, models, filepath.Join(t.TempDir(), "store"), args...)
}

// StartIn is Start with the caller's models folder and store.
func StartIn(t testing.TB, program, wrap, models, store string, args ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	s := &Server{
		T: t, Log: &Output{}, Home: dir, Socket: filepath.Join(dir, "p.sock"),
		Out: filepath.Join(dir, "output"), Store: store,
	}
	s.Line = append([]string{
		program, "serve", "--socket", s.Socket, "--store", s.Store, "--models", models,
		"--input", filepath.Join(dir, "input"), "--output", s.Out, "--log", "debug",
		"--sync", "interval", // a busy disk may take seconds for a sync; tests that cut the power say always
	}, args...)
	if !slices.Contains(args, "--nats") && !slices.Contains(args, "--listen") &&
		!strings.Contains(wrap, "PATCHBAY_NATS_URL=") {
		s.Line = append(s.Line, "--listen", "127.0.0.1:0")
	}
	if wrap != "" {
		s.Line = append([]string{"sh", "-c", wrap, "sh"}, s.Line...)
	}
	secretsOf(t, s.Line)
	t.Cleanup(func() {
		if s.Ended != nil {
			watchChildren(s.Cmd.Process.Pid)
		}
		_ = s.Stop()
	})
	s.Launch()
	return s
}

// Launch starts or restarts the daemon and waits until it listens.
func (s *Server) Launch() {
	s.T.Helper()
	file := filepath.Join(s.Store, "daemon.json")
	_ = os.Remove(file) // left behind by a daemon that was killed
	s.Cmd = exec.Command(s.Line[0], s.Line[1:]...)
	s.Cmd.Env = append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET=", "PATCHBAY_HOME="+s.Home)
	s.Cmd.Stderr = s.Log
	s.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that times out must not leave it
	if err := s.Cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	ended := make(chan error, 1)
	s.Ended = ended
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(s.Cmd)
	var now struct{ NATS string }
	s.Until("the daemon listens", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &now) == nil
	})
	s.URL = now.NATS
}

// Kill ends the daemon with SIGKILL.
func (s *Server) Kill() {
	_ = s.Cmd.Process.Kill()
	<-s.Ended
	s.Ended = nil
}

// ErrLate is the error of a command that Printed has killed.
var ErrLate = fmt.Errorf("it printed nothing and computed nothing for %s", 5*Patience)

// Printed runs a command until it has been silent and idle for five times Patience, and returns what it printed: its
// stdout, and its stderr too unless that goes elsewhere. What it started ends with it; it is an error if something
// keeps its output open.
func Printed(cmd *exec.Cmd) ([]byte, error) { return printed(cmd, 5*Patience) }

func printed(cmd *exec.Cmd, most time.Duration) ([]byte, error) {
	out := &buffer{}
	cmd.Stdout = out
	if cmd.Stderr == nil {
		cmd.Stderr = out
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	group := cmd.Process.Pid
	kill := func() { _ = syscall.Kill(-group, syscall.SIGKILL) }
	ended, late := make(chan error, 1), false
	go func() { ended <- cmd.Wait() }()
	life := lifeSigns{idle: time.Now()}
	looks := time.NewTicker(most / 20)
	defer looks.Stop()
	for {
		select {
		case err := <-ended:
			kill()
			if late {
				err = ErrLate
			}
			return []byte(out.String()), err
		case now := <-looks.C:
			if !late && life.idleFor(now, groupUsed(group), out.len()) > most {
				late = true
				kill()
			}
		}
	}
}

// groupUsed returns the processor time of the living processes of a group and of their children that have ended.
func groupUsed(group int) (used time.Duration) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range all {
		b, _ := os.ReadFile(name) // the process may have ended
		// after the name in brackets: state, parent, group; the times are the fields 14 to 17 of proc(5), in 1/100 s
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(f) < 15 || f[2] != strconv.Itoa(group) {
			continue
		}
		for _, ticks := range f[11:15] {
			n, _ := strconv.Atoi(ticks)
			used += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return used
}

// lifeSigns tells a slow process on a busy machine from one that hangs, by its processor time.
type lifeSigns struct {
	idle, mark time.Time // since when it has been idle; when used was looked at
	used       time.Duration
	printed    int
}

// idleFor returns how long a process has printed nothing and used less than a twentieth of a processor.
func (l *lifeSigns) idleFor(now time.Time, used time.Duration, printed int) time.Duration {
	if used-l.used > now.Sub(l.mark)/20 || printed != l.printed {
		l.idle = now
	}
	l.mark, l.used, l.printed = now, used, printed
	return now.Sub(l.idle)
}

// Patience bounds waits that should be short. Only something that hangs reaches it, even on a slow and busy machine.
const Patience = 2 * time.Minute

// Until polls done. It fails the test once the daemon and its workers have idled for Patience, and after five times
// Patience at the latest.
func (s *Server) Until(what string, done func() bool) {
	s.T.Helper()
	began := time.Now()
	life, idle := lifeSigns{idle: began, mark: began, used: s.used()}, time.Duration(0)
	for !done() {
		now := time.Now()
		if now.Sub(life.mark) > 2*time.Second {
			idle = life.idleFor(now, s.used(), 0)
		}
		if idle > Patience || now.Sub(began) > 5*Patience {
			s.T.Fatalf("not within %s, idle for %s: %s\n%s", now.Sub(began), idle, what, s.Log)
		}
		time.Sleep(min(10*time.Millisecond+now.Sub(began)/20, 100*time.Millisecond)) // each poll costs processor time
	}
}

// used returns the processor time of the daemon and its living workers.
func (s *Server) used() time.Duration {
	sum := Census(s.Cmd.Process.Pid).CPU
	for _, pid := range s.WorkerPIDs() {
		sum += Census(pid).CPU
	}
	return sum
}

// Stop ends the daemon with SIGTERM, as init would, and returns how it ended.
func (s *Server) Stop() error {
	if s.Ended == nil {
		return nil
	}
	_ = s.Cmd.Process.Signal(syscall.SIGTERM)
	return s.Wait()
}

// Wait waits for the end of a daemon that was sent SIGTERM, and kills it after patience.
func (s *Server) Wait() error {
	select {
	case err := <-s.Ended:
		s.Ended = nil
		return err
	case <-time.After(Patience):
		_ = s.Cmd.Process.Kill()
		<-s.Ended
		s.Ended = nil
		return fmt.Errorf("it did not end within %s of SIGTERM", Patience)
	}
}

// Client connects to the daemon's NATS server. It dials twice because a test may be cutting connections at the moment.
func (s *Server) Client() *client.NATSClient {
	s.T.Helper()
	c, err := client.DialNATS(s.URL)
	if err != nil {
		c, err = client.DialNATS(s.URL)
	}
	if err != nil {
		s.T.Fatalf("%v\n%s", err, s.Log)
	}
	s.T.Cleanup(func() { _ = c.Close() })
	return c
}

// WaitState waits until a job is in the state want and returns its record.
func (s *Server) WaitState(c client.Client, job string, want message.State) message.Record {
	s.T.Helper()
	var rec message.Record
	s.Until(fmt.Sprintf("job %s is %s", job, want), func() bool {
		var err error
		if rec, err = Status(c, job); errors.Is(err, client.ErrNoDaemon) || errors.Is(err, context.DeadlineExceeded) {
			return false // the daemon is reconnecting after it lost its server
		} else if err != nil {
			s.T.Fatalf("status of %s: %v", job, err)
		}
		if rec.State.Final() && rec.State != want {
			s.T.Fatalf("job %s is %s, want %s: %v\n%s", job, rec.State, want, rec.Error, s.Log)
		}
		return rec.State == want
	})
	return rec
}

// WaitFiles waits until a job is done and its files have names, which they get only after its end.
func (s *Server) WaitFiles(c client.Client, job string) {
	s.T.Helper()
	s.Until("the files of "+job+" have names", func() bool {
		rec, err := Status(c, job)
		return err == nil && rec.State == message.Done && len(rec.Outputs) > 0 &&
			rec.Outputs[len(rec.Outputs)-1].Filename != ""
	})
}

// Status asks for a record and gives up after 10 s: a request that is lost with its server is never answered.
func Status(c client.Client, job string) (message.Record, error) {
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
func (s *Server) workers() (all []ready) {
	for line := range strings.Lines(s.Log.String()) {
		var l ready
		if strings.Contains(line, "worker ready") && json.Unmarshal([]byte(line), &l) == nil && l.Message == "worker ready" {
			all = append(all, l)
		}
	}
	return all
}

// WorkerPIDs returns the process ids of the workers, in the order of their starts.
func (s *Server) WorkerPIDs() (pids []int) {
	for _, l := range s.workers() {
		pids = append(pids, l.PID)
	}
	return pids
}

// Worker returns the process id of the latest worker, or of the latest with the given name.
func (s *Server) Worker(name ...string) (pid int) {
	s.T.Helper()
	s.Until("a worker is up", func() bool {
		for _, l := range s.workers() {
			if len(name) == 0 || l.Worker == name[0] {
				pid = l.PID
			}
		}
		return pid != 0
	})
	return pid
}

// Turns keeps Throttle from resuming a process that something else has stopped.
var Turns sync.Mutex

// Throttle lets a process run a fifth of the time, until it ends or release is called. A job that only has to be under
// way then costs little, and lasts five times as long as its steps take, however fast the machine is.
func Throttle(t testing.TB, pid int) (release func()) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
		for turn := func() bool {
			Turns.Lock()
			defer Turns.Unlock()
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

// Quick is a workflow that needs no weights: an empty latent, saved.
const Quick = `{"1":{"class_type":"EmptyLatentImage","inputs":{"width":64,"height":64,"batch_size":1}},` +
	`"2":{"class_type":"SaveLatent","inputs":{"samples":["1",0],"filename_prefix":"quick"}}}`

// DemoFlow returns examples/demo.json with the given number of steps, 64 pixels wide and high.
func DemoFlow(t testing.TB, steps int) string {
	t.Helper()
	text := FlowText(steps)
	if text == "" {
		t.Fatal("examples/demo.json has no steps of 12 to replace")
	}
	return text
}

// FlowText is DemoFlow for goroutines that must not end the test: it returns "" if there is no such flow.
func FlowText(steps int) string {
	dir, err := root()
	if err != nil {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(dir, "examples", "demo.json"))
	const size, twelve = `"width": 128, "height": 128`, `"steps": 12`
	if text := string(b); err == nil && strings.Contains(text, size) && strings.Contains(text, twelve) {
		return strings.NewReplacer(size, `"width": 64, "height": 64`, twelve, fmt.Sprintf(`"steps": %d`, steps)).Replace(text)
	}
	return ""
}
