// Package natsserver runs nats-server in its own process, in the version of go.mod. Only tests import it: clients of a
// server are tested under the race detector without compiling and watching the server too.
package natsserver

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a server may take to answer on a busy machine.
const patience = 2 * time.Minute

// Server is a process of nats-server.
type Server struct {
	Conf string // its configuration file
	URL  string // without user and password
	Cmd  *exec.Cmd

	t    testing.TB
	path string
}

// JetStream returns the configuration of JetStream in a folder of the test, with a sync at every write.
func JetStream(t testing.TB) string {
	return fmt.Sprintf("jetstream { store_dir: %q, sync_interval: always }\n", filepath.Join(t.TempDir(), "js"))
}

// Inside returns the configuration of the server inside a daemon, with JetStream in the folder dir unless dir is empty.
func Inside(dir string) string {
	conf := fmt.Sprintf("max_payload: %d\n", 8<<20)
	if dir != "" {
		conf += fmt.Sprintf("jetstream { store_dir: %q }\n", dir)
	}
	return conf
}

// Start runs a server with the given configuration on a free port. The server ends with the test.
func Start(t testing.TB, conf ...string) *Server {
	t.Helper()
	l := FreePort(t)
	address := l.Addr().String()
	_ = l.Close()
	n := New(t, filepath.Join(t.TempDir(), "nats.conf"), address,
		append([]string{fmt.Sprintf("listen: %q\n", address)}, conf...)...)
	n.Start()
	return n
}

// New returns a server that is not started yet. It writes the given configuration to the file path.
func New(t testing.TB, path, address string, conf ...string) *Server {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(conf, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &Server{t: t, path: program(t), Conf: path, URL: "nats://" + address}
	t.Cleanup(n.Kill)
	return n
}

// Start starts the process and waits until it answers.
func (n *Server) Start() {
	n.t.Helper()
	n.Cmd = exec.Command(n.path, "-c", n.Conf)
	n.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.Cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		// it may ask for credentials that we lack: its greeting will do
		if c, err := net.Dial("tcp", strings.TrimPrefix(n.URL, "nats://")); err == nil {
			_, err = io.ReadFull(c, make([]byte, 4))
			_ = c.Close()
			if err == nil {
				return
			}
		}
	}
	n.t.Fatal("nats-server does not answer")
}

// Kill ends the process as a crash does.
func (n *Server) Kill() { n.end(syscall.SIGKILL) }

// Close ends the process with SIGTERM, as its operator does: it writes down what it holds.
func (n *Server) Close() { n.end(syscall.SIGTERM) }

func (n *Server) end(by syscall.Signal) {
	if n.Cmd != nil && n.Cmd.ProcessState == nil {
		_ = n.Cmd.Process.Signal(by)
		_ = n.Cmd.Wait()
	}
}

// FreePort returns a listener that reserves a port of the loopback address until it is closed. The port is outside the
// range from which the kernel gives ports to connections.
func FreePort(t testing.TB) net.Listener {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(15_000))); err == nil {
			t.Cleanup(func() { _ = l.Close() })
			return l
		}
	}
	t.Fatal(err)
	return nil
}

// build builds the program once for all tests that share Go's build cache, and keeps it there.
var build = sync.OnceValues(func() (string, error) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", source).Output()
	if err != nil {
		return "", err
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return "", err
	}
	path := filepath.Join(strings.TrimSpace(string(cache)),
		"patchbay-nats-server-"+strings.TrimSpace(string(version))+"-"+runtime.Version())
	lock, err := os.Create(path + ".lock")
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if out, err := exec.Command("go", "build", "-o", path, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nats-server: %w\n%s", err, out)
	}
	return path, nil
})

const source = "github.com/nats-io/nats-server/v2"

func program(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
