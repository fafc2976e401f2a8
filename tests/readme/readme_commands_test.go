//go:build soak

package readme

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"patchbay/tests/harness"
)

// readmeLine is a command of README.md.
type readmeLine struct {
	line int
	text string
}

// programs matches the first word of a command, in indented blocks and between back quotes.
var programs = regexp.MustCompile(`^(make|patchbay|nats|go|cat|printf|python3|\./install\.sh)( |$)`)

// readmeCommands returns the commands of a page in their order: lines of indented and fenced blocks, and back-quoted
// texts with an argument. Placeholders are replaced, optional parts left out, and of several choices the first is
// taken.
func readmeCommands(page string) []readmeLine {
	var out []readmeLine
	quoted := regexp.MustCompile("`([^`]+)`")
	optional, choice := regexp.MustCompile(` \[[^\]'"]*\]`), regexp.MustCompile(`\b(\w+)(\|\w+)+\b`)
	fenced := false
	for i, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		var found []string
		if text, ok := strings.CutPrefix(line, "    "); ok || fenced {
			text, _, _ = strings.Cut(text, "   #")
			text, _, _ = strings.Cut(text, "  # ")
			found = []string{strings.TrimSpace(text)}
		} else if !strings.HasPrefix(line, "|") {
			for _, m := range quoted.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], " ") || strings.HasPrefix(m[1], "./") {
					found = append(found, m[1])
				}
			}
		}
		for _, text := range found {
			if programs.MatchString(text) {
				text = choice.ReplaceAllString(optional.ReplaceAllString(text, ""), "$1")
				out = append(out, readmeLine{i + 1, strings.NewReplacer("retry JOB", "retry CANCELLED", " COMFYUI", " ~/ComfyUI",
					" DIR", " \"$HOME/dir\"").Replace(text)})
			}
		}
	}
	return out
}

// TestReadmeCommands checks that every command of README.md works, in its order, in a fresh clone with its own home:
// with a ComfyUI folder that has the demo's models, a daemon once README has started one, and jobs with the names that
// README uses. It logs what it does not run.
func TestReadmeCommands(t *testing.T) {
	r := &readmeRun{t: t, home: t.TempDir(), clone: filepath.Join(t.TempDir(), "patchbay")}
	if out, err := exec.Command("git", "clone", "-q", "--no-hardlinks", harness.Root(t),
		r.clone).CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	page, err := os.ReadFile(filepath.Join(r.clone, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands := readmeCommands(string(page))
	if len(commands) < 15 {
		t.Fatalf("README.md has %d commands: %v", len(commands), commands)
	}
	r.prepare()
	for _, c := range commands {
		r.run(c)
	}
	r.stopDaemon()
}

type readmeRun struct {
	t           *testing.T
	home, clone string
	env         []string
	address     string // of the daemon's NATS server
	daemon      *exec.Cmd
}

// prepare makes the folders that README mentions, and the environment.
func (r *readmeRun) prepare() {
	t := r.t
	t.Helper()
	tools := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.address = free.Addr().String()
	for _, step := range []error{
		free.Close(),
		os.Symlink(harness.NATSCommand(t), filepath.Join(tools, "nats")),
		os.MkdirAll(filepath.Join(r.home, "ComfyUI", "comfy"), 0o755),
		os.MkdirAll(filepath.Join(r.home, "run"), 0o700),
		os.Symlink(filepath.Join(r.clone, "examples", "demo"), filepath.Join(r.home, "ComfyUI", "models")),
		os.WriteFile(filepath.Join(r.clone, "FILE"), []byte(strings.Replace(harness.DemoFlow(t, 3), `"seed": 1`,
			`"seed": 77`, 1)),
			0o644),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache := strings.Fields(string(caches))
	path := filepath.Join(r.clone, "bin") + ":" + tools + ":" + os.Getenv("PATH")
	r.env = append(os.Environ(), "HOME="+r.home, "XDG_RUNTIME_DIR="+filepath.Join(r.home, "run"),
		"XDG_CONFIG_HOME="+r.home, "PATH="+path, "GOCACHE="+cache[0], "GOMODCACHE="+cache[1],
		"PATCHBAY_MODELS="+filepath.Join(r.home, "ComfyUI", "models"),
		"PATCHBAY_NATS_URL=nats://"+r.address, "NATS_URL=nats://"+r.address)
}

// shell runs a command line in the clone. A limit of 0 means ten minutes; reaching any other limit is not a failure.
func (r *readmeRun) shell(line string, limit time.Duration) (string, error) {
	ctx, stop := context.WithTimeout(context.Background(), max(limit, time.Second))
	if limit == 0 {
		stop()
		ctx, stop = context.WithTimeout(context.Background(), 10*time.Minute)
	}
	defer stop()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", line)
	cmd.Dir, cmd.Env = r.clone, r.env
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if limit > 0 && ctx.Err() != nil {
		err = nil
	}
	return string(out), err
}

func (r *readmeRun) run(c readmeLine) {
	began := time.Now()
	report := func(how string) {
		r.t.Logf("README.md:%d %s  %s  %s", c.line, how, time.Since(began).Round(10*time.Millisecond), c.text)
	}
	switch {
	case strings.HasPrefix(c.text, "make test"):
		report("NOT RUN: it is the suite that this belongs to")
		return
	case strings.HasPrefix(c.text, "patchbay serve"):
		r.serve(c.text)
		report("started")
		return
	}
	if strings.Contains(c.text, "picture.png") {
		if _, err := r.shell("cp demo.png picture.png", 0); err != nil {
			r.t.Error("no command before this one has made demo.png")
		}
	}
	var limit time.Duration
	if strings.HasPrefix(c.text, "nats sub") { // it never ends
		limit = 2 * time.Second
	}
	out, err := r.shell(c.text, limit)
	if err != nil {
		r.t.Errorf("README.md:%d %s: %v\n%s", c.line, c.text, err, out)
	}
	if strings.Contains(c.text, "--wait-for-empty") && !strings.Contains(out, "execution_success") {
		r.t.Errorf("README.md:%d %s: the end of the job is missing in\n%s", c.line, c.text, out)
	}
	report("done")
}

// serve starts a daemon in place of the one before, and jobs with the names that README uses: JOB is done, CANCELLED is
// cancelled.
func (r *readmeRun) serve(line string) {
	r.stopDaemon()
	r.daemon = exec.Command("bash", "-c", "exec "+line+" --listen "+r.address)
	r.daemon.Dir, r.daemon.Env = r.clone, r.env
	log := &harness.Output{}
	r.daemon.Stderr = log
	r.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.daemon.Start(); err != nil {
		r.t.Fatal(err)
	}
	ready := "for i in $(seq 600); do patchbay jobs >/dev/null 2>&1 && break; sleep 0.1; done\n" +
		"patchbay submit examples/demo.json --id JOB && patchbay watch JOB >/dev/null\n" +
		"patchbay submit examples/demo.json --set 3.steps=1000 --id CANCELLED && patchbay cancel CANCELLED && sleep 1"
	if out, err := r.shell(ready, 0); err != nil {
		r.t.Fatalf("%s: %v\n%s\n%s", line, err, out, log)
	}
}

func (r *readmeRun) stopDaemon() {
	if r.daemon == nil {
		return
	}
	_ = r.daemon.Process.Signal(syscall.SIGTERM)
	if err := r.daemon.Wait(); err != nil {
		r.t.Errorf("the daemon ended with %v", err)
	}
	r.daemon = nil
}

// TestReadmeCommandsAreFound checks what readmeCommands extracts, and what it leaves out.
func TestReadmeCommandsAreFound(t *testing.T) {
	page := "    make demo      # builds\n" +
		"text with `patchbay top`, `patchbay` alone, `serve --queue memory` and `./install.sh`\n" +
		"    cli/                the command line\n" +
		"```\nnats req a \"$(cat b)\" --raw\n```\n" +
		"| `patchbay table` | no |\n" +
		"    patchbay nodes [CLASS] [--json]; patchbay retry JOB; patchbay bench step|comm\n"
	var got []string
	for _, c := range readmeCommands(page) {
		got = append(got, fmt.Sprint(c.line, " ", c.text))
	}
	want := []string{
		"1 make demo", "2 patchbay top", "2 ./install.sh", `5 nats req a "$(cat b)" --raw`,
		"8 patchbay nodes; patchbay retry CANCELLED; patchbay bench step",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
