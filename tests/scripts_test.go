package tests

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"patchbay/ipc/wire"
	"patchbay/tests/harness"
)

// TestScripts runs the sessions in tests/scripts against the real program. Beside testscript's own commands they have:
//
//	daemon [ARG...]   start a daemon on a free port with store and socket in $WORK; sets PATCHBAY_NATS_URL and SOCKET
//	end               end it with SIGTERM; it must end well
//	stdio FILE        send the lines of FILE as frames to `patchbay worker` (JSON; a line after
//	                  "msgpack " is sent as msgpack, one after "raw " as bytes in hex, without a length) and
//	                  wait for the end of every request; stdout has the replies as JSON lines
//	quickflow FILE    write a workflow that needs no weights
func TestScripts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: whole sessions; TestDaemon starts the same commands")
	}
	program := harness.Build(t)
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "scripts",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("PATCHBAY_HOME", filepath.Join(env.WorkDir, "home"))
			env.Setenv("SOCKET", filepath.Join(env.WorkDir, "p.sock"))
			env.Setenv("EXAMPLES", examples)
			env.Setenv("PATCHBAY_MODELS", filepath.Join(examples, "demo"))
			env.Setenv("PROGRAM", program)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon": scriptDaemon, "end": scriptStop, "stdio": scriptStdio,
			"quickflow": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(harness.Quick), 0o644))
			},
		},
	})
}

// background is a daemon of a script.
type background struct {
	cmd   *exec.Cmd
	log   *harness.Output
	ended chan error
}

func (b *background) stop() error {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-b.ended:
		return err
	case <-time.After(harness.Patience):
		_ = b.cmd.Process.Kill()
		return fmt.Errorf("it did not end within %s of SIGTERM", harness.Patience)
	}
}

func scriptDaemon(ts *testscript.TestScript, _ bool, args []string) {
	store := ts.MkAbs("store")
	line := append([]string{
		"serve", "--listen", "127.0.0.1:0", "--store", store, "--socket", ts.Getenv("SOCKET"),
		"--output", ts.MkAbs("output"),
	}, args...)
	b := &background{cmd: exec.Command(ts.Getenv("PROGRAM"), line...), log: &harness.Output{}, ended: make(chan error, 1)}
	b.cmd.Env = append(os.Environ(), "PATCHBAY_NATS_URL=nats://127.0.0.1:1", "PATCHBAY_HOME="+ts.Getenv("PATCHBAY_HOME"),
		"PATCHBAY_MODELS="+ts.Getenv("PATCHBAY_MODELS"))
	b.cmd.Stderr = b.log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ts.Check(b.cmd.Start())
	go func() { b.ended <- b.cmd.Wait(); close(b.ended) }()
	ts.Defer(func() { _ = b.stop() })
	var file struct{ NATS string }
	for end := time.Now().Add(harness.Patience); ; time.Sleep(5 * time.Millisecond) {
		if f, err := os.ReadFile(filepath.Join(store, "daemon.json")); err == nil && json.Unmarshal(f, &file) == nil {
			break
		}
		if time.Now().After(end) {
			ts.Fatalf("the daemon does not listen:\n%s", b.log)
		}
	}
	ts.Setenv("PATCHBAY_NATS_URL", file.NATS)
	ts.Setenv("DAEMON", fmt.Sprint(b.cmd.Process.Pid))
}

// scriptStop finds the daemon by its process id, which scriptDaemon has put into the environment.
func scriptStop(ts *testscript.TestScript, _ bool, _ []string) {
	var pid int
	_, err := fmt.Sscan(ts.Getenv("DAEMON"), &pid)
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGTERM))
	for end := time.Now().Add(harness.Patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs("store/daemon.json")); os.IsNotExist(err) && syscall.Kill(pid, 0) != nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("the daemon did not end within %s of SIGTERM", harness.Patience)
		}
	}
}

func scriptStdio(ts *testscript.TestScript, neg bool, args []string) {
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	cmd := exec.Command(ts.Getenv("PROGRAM"), append([]string{"worker", "--log", "warn"}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "PATCHBAY_HOME="+ts.Getenv("PATCHBAY_HOME"),
		"PATCHBAY_MODELS="+ts.Getenv("PATCHBAY_MODELS"))
	cmd.Stderr = ts.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	ts.Check(err)
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	wait := len(lines)
	for _, line := range lines {
		_, err := in.Write(lineBytes(ts, line))
		ts.Check(err)
	}
	w := bufio.NewWriter(ts.Stdout())
	for wait > 0 {
		body, err := wire.ReadFrame(out)
		if errors.Is(err, io.EOF) {
			break
		}
		ts.Check(err)
		enc, ok := wire.Sniff(body)
		if !ok {
			ts.Fatalf("a reply of %d bytes that is no map", len(body))
		}
		o, err := wire.Decode(body, enc, wire.DefaultLimits())
		ts.Check(err)
		text, err := wire.Encode(o, wire.JSON)
		ts.Check(err)
		fmt.Fprintf(w, "%s\n", text)
		if end, _ := o.Get("end"); end == true {
			wait--
		}
	}
	ts.Check(w.Flush())
	ts.Check(in.Close())
	rest, _ := io.ReadAll(out)
	if len(rest) > 0 {
		ts.Fatalf("%d bytes on stdout after the last reply", len(rest))
	}
	if err := cmd.Wait(); (err != nil) != neg {
		ts.Fatalf("the worker ended with %v", err)
	}
}

// lineBytes returns the bytes of one line of a stdio script.
func lineBytes(ts *testscript.TestScript, line string) []byte {
	if text, ok := strings.CutPrefix(line, "raw "); ok {
		var b []byte
		_, err := fmt.Sscanf(text, "%x", &b)
		ts.Check(err)
		return b
	}
	body := []byte(line)
	if text, ok := strings.CutPrefix(line, "msgpack "); ok {
		o, err := wire.Decode([]byte(text), wire.JSON, wire.DefaultLimits())
		ts.Check(err)
		body, err = wire.Encode(o, wire.Msgpack)
		ts.Check(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}
