package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/rights"
	"patchbay/ipc/wire"
	"patchbay/tests/harness"
	"patchbay/tests/natsserver"
)

// door is a way to reach a daemon: what its users add to the command lines that all users type.
type door struct {
	*harness.Server
	program string
	name    string   // prefix of the ids of its jobs
	flags   []string // of patchbay as a client
	cli     []string // of the nats command as a client; nil: no NATS behind this door
	admin   []string // of the nats command as an admin
	url     string
	access  wire.Access
	asks    bool // the daemon cannot see who listens: previews must be requested
	limited bool // clients have only the rights of the client role
	dir     string
}

// TestEveryCommand checks exit code and output of every user command, and of every line of the nats command in the
// documentation, against the NATS server inside the daemon, an external one, one that requires TLS and credentials and
// grants the rights of docs/security.md, and the unix socket.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: builds the nats command")
	}
	program := harness.Build(t)
	inside := harness.Start(t, program, "", "--metrics", "127.0.0.1:0", "--attempts", "1")
	t.Run("Embedded", func(t *testing.T) {
		everyDoor(t, &door{
			Server: inside, program: program, name: "in", flags: []string{"--nats", inside.URL},
			cli: []string{"--server", inside.URL}, url: inside.URL,
		})
	})
	t.Run("Socket", func(t *testing.T) {
		everyDoor(t, &door{Server: inside, program: program, name: "so", flags: []string{"--socket", inside.Socket}})
	})
	t.Run("External", func(t *testing.T) {
		n := natsserver.Start(t, natsserver.JetStream(t))
		s := harness.Start(t, program, "", "--nats", n.URL, "--metrics", "127.0.0.1:0", "--attempts", "1")
		everyDoor(t, &door{
			Server: s, program: program, name: "ex", flags: []string{"--nats", n.URL},
			cli: []string{"--server", n.URL}, url: n.URL, asks: true,
		})
	})
	t.Run("TLSAndCredentials", func(t *testing.T) {
		dir, o := t.TempDir(), harness.NewOperator(t)
		harness.Authority(t, dir).Sign(t, filepath.Join(dir, "server"))
		n := natsserver.Start(t, natsserver.JetStream(t), o.Conf,
			fmt.Sprintf("tls { cert_file: %q, key_file: %q, timeout: 5 }\n",
				filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")))
		url, ca := strings.Replace(n.URL, "nats://", "tls://", 1), filepath.Join(dir, "ca.pem")
		s := harness.Start(t, program, "", "--nats", url, "--creds", o.Creds[rights.RoleDaemon], "--tls-ca", ca, "--metrics",
			"127.0.0.1:0", "--attempts", "1")
		cli := func(r rights.Role) []string {
			return []string{"--server", url, "--tlsca", ca, "--creds", o.Creds[r], "--inbox-prefix", wire.InboxOf(o.User[r])}
		}
		everyDoor(t, &door{
			Server: s, program: program, name: "tls",
			flags: []string{"--nats", url, "--creds", o.Creds[rights.RoleClient], "--tls-ca", ca}, cli: cli(rights.RoleClient),
			admin: cli(rights.RoleAdmin), url: url, access: wire.Access{Creds: o.Creds[rights.RoleClient], CA: ca},
			asks: true, limited: true,
		})
		if strings.Contains(s.Log.String(), "iolation") {
			t.Errorf("the daemon lacks rights:\n%s", s.Log)
		}
	})
}

func everyDoor(t *testing.T, d *door) {
	began := time.Now()
	d.dir = t.TempDir()
	if d.admin == nil {
		d.admin = d.cli
	}
	d.write(t, "quick.json", harness.Quick)
	d.write(t, "other.json", strings.ReplaceAll(harness.Quick, "64", "72"))
	d.write(t, "bad.json", `{"1":{"class_type":"Nope","inputs":{}}}`)
	d.write(t, "long.json", harness.DemoFlow(t, 5000))
	d.write(t, "picture.json", harness.DemoFlow(t, 2))
	d.Until("a worker is up", func() bool {
		code, _ := d.run(t, program(d, "run", "quick.json"))
		return code == 0
	})
	for _, row := range d.commands() {
		d.check(t, row, d.program, d.flags)
	}
	d.watchers(t)
	d.interrupt(t)
	if d.cli == nil {
		return
	}
	events := d.events(t)
	for _, row := range d.natsLines() {
		flags := d.cli
		if row.admin {
			flags = d.admin
		}
		d.check(t, row, harness.NATSCommand(t), flags)
	}
	d.Until("nats sub has heard the end of the job",
		func() bool { return strings.Contains(events.String(), d.id(21)+".execution_success") })
	d.previews(t)
	t.Logf("%s: %s", d.name, time.Since(began).Round(time.Millisecond))
}

func (d *door) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (d *door) id(n int) string { return fmt.Sprintf("%s-%d", d.name, n) }

// typed is a command line and its expected result.
type typed struct {
	line  []string
	code  int
	says  []string
	never string
	state message.State // to wait for first, of the job in line[1] or after the last dot there; empty: do not wait
	until bool          // type it again until the result is that
	admin bool
}

// commands returns the patchbay command lines in the order in which one user types them. They share the jobs of this
// door.
func (d *door) commands() []typed {
	id := d.id
	rows := []typed{
		{
			line: []string{"submit", "quick.json", "--id", id(1), "--priority", "high", "--deadline", "5m", "--queue-ttl", "1h"},
			says: []string{id(1)},
		},
		{line: []string{
			"submit", "quick.json", "--id", id(1), "--priority", "high", "--deadline", "5m", "--queue-ttl", "1h",
			"--json",
		}, says: []string{`"duplicate":true`, `"job":"` + id(1) + `"`}},
		{line: []string{"submit", "other.json", "--id", id(1)}, code: 2, says: []string{"duplicate_conflict"}},
		{line: []string{"submit", "bad.json"}, code: 2, says: []string{"Nope"}},
		{line: []string{"submit", "quick.json", "--priority", "huge"}, code: 2, says: []string{"priority", "high"}},
		{line: []string{"watch", id(1)}},
		{
			line: []string{"watch", id(1), "--json", "--from", "2"}, says: []string{`"execution_start"`, `"execution_success"`},
			never: `"queued"`,
		},
		{line: []string{"get", id(1), "--json"}, says: []string{`"state":"done"`, `"priority":"high"`, `"expire_at":`}},
		{line: []string{"get", id(1), "--out", "got"}, says: []string{"got/quick_0000"}},
		{line: []string{"jobs", "--state", "done"}, says: []string{id(1)}},
		{line: []string{"jobs", "--state", "failed"}, never: id(1)},
		{line: []string{"jobs", "--state", "jolly"}, code: 2, says: []string{"jolly", "queued"}},
		{
			line: []string{"submit", "long.json", "--id", id(2), "--json"}, says: []string{`"job":"` + id(2) + `"`},
			never: "duplicate",
		},
		{line: []string{"top", "--once"}, until: true, says: []string{"DAEMON", id(2), "running"}},
		{line: []string{"top", "--json"}, until: true, says: []string{`"steps_per_second"`, id(2), `"steps":5000`}},
		{line: []string{"jobs", "--state", "running"}, says: []string{id(2)}},
		{line: []string{"submit", "quick.json", "--id", id(3)}, says: []string{id(3)}},
		{line: []string{"submit", "quick.json", "--id", id(4), "--queue-ttl", "50ms"}, says: []string{id(4)}},
		{line: []string{"watch", id(4)}, code: 1, says: []string{"expired"}},
		{line: []string{"jobs", "--state", "queued"}, says: []string{id(3)}, never: id(2)},
		{line: []string{"cancel", id(3)}, says: []string{id(3) + " cancelled"}},
		{line: []string{"watch", id(3)}, code: 130, says: []string{"cancelled"}},
		{line: []string{"cancel", id(2)}, says: []string{id(2) + " cancelled"}},
		{line: []string{"watch", id(2)}, code: 130, says: []string{"step", "cancelled"}},
		{line: []string{"cancel", id(2)}, says: []string{"had ended: cancelled"}},
		{line: []string{"retry", id(3), id(4)}, says: []string{id(3) + " queued", id(4) + " queued"}},
		{line: []string{"watch", id(3)}},
		{line: []string{"watch", id(4)}},
		{line: []string{"retry", id(1)}, code: 2, says: []string{"done"}},
		{line: []string{"submit", "long.json", "--id", id(5), "--deadline", "200ms"}, says: []string{id(5)}},
		{line: []string{"watch", id(5)}, code: 1, says: []string{"deadline"}},
		{line: []string{"jobs", "--state", "failed"}, says: []string{id(5), "deadline"}},
		{
			line: []string{"run", "picture.json", "--id", id(6), "--out", "pictures"},
			says: []string{"pictures/demo_00001_.png"},
		},
		{
			line: []string{"run", "pictures/demo_00001_.png", "--json", "--out", "", "--set", "3.seed=9"},
			says: []string{`"execution_success"`},
		},
		{line: []string{"run", "bad.json"}, code: 2, says: []string{"Nope"}},
		{line: []string{"models"}, says: []string{"demo_flux.safetensors"}},
		{line: []string{"nodes", "KSampler"}, says: []string{"sampler_name"}},
		{line: []string{"doctor"}, says: []string{"answers;", "limits"}},
	}
	for _, verb := range []string{"cancel", "get", "watch", "retry"} {
		rows = append(rows, typed{line: []string{verb, "nothere"}, code: 1, says: []string{"no_such_job"}})
	}
	return rows
}

// natsLines returns the command lines of the nats command.
func (d *door) natsLines() []typed {
	req := func(subject, body string, more ...string) []string {
		return append([]string{"req", "patchbay.v1." + subject, body, "--raw", "--no-templates"}, more...)
	}
	id := d.id
	long, _ := os.ReadFile(filepath.Join(d.dir, "long.json"))
	rows := []typed{
		{
			line: req("submit", harness.Quick, "-H", "Nats-Msg-Id:"+id(21)), says: []string{`"job":"` + id(21) + `"`},
			never: "duplicate",
		},
		{
			line: req("submit", harness.Quick, "-H", "Nats-Msg-Id:"+id(21)),
			says: []string{`"job":"` + id(21) + `"`, `"duplicate":true`},
		},
		{line: req("status."+id(21), ""), state: message.Done, says: []string{`"state":"done"`}},
		{
			line: req("run", harness.Quick, "--wait-for-empty", "--reply-timeout", "30s"),
			says: []string{`"accepted"`, `"execution_success"`},
		},
		{line: req("submit", string(long), "-H", "Nats-Msg-Id:"+id(22)), says: []string{`"job":"` + id(22) + `"`}},
		{line: req("cancel."+id(22), ""), state: message.Running, says: []string{`"cancelled":true`}},
		{line: req("status."+id(22), ""), state: message.Cancelled, says: []string{`"state":"cancelled"`}},
		{line: req("retry."+id(22), ""), says: []string{`"state":"queued"`}},
		{line: req("cancel."+id(22), ""), says: []string{`"cancelled":true`}},
		{line: req("jobs", `{"state":"done"}`), says: []string{id(21)}},
		{line: req("models", ""), says: []string{"demo_flux.safetensors"}},
		{line: req("describe", `{"limits":true}`), says: []string{`"limits"`}},
		{line: req("stats", ""), says: []string{`"steps_per_second"`}},
		{
			line: req("exec", `{"class_type":"EmptyLatentImage","inputs":{"width":64,"height":64,"batch_size":1}}`),
			says: []string{`"$tensor"`},
		},
		{line: req("load", `{"model":{"file":"demo_flux.safetensors"}}`), says: []string{`"workers":1`}},
		{line: req("free", `{"models":["demo_flux.safetensors"]}`), admin: true, says: []string{`"freed"`}},
		{line: []string{"service", "info", "patchbay"}, admin: true, says: []string{"patchbay.v1.submit", "worker_pids"}},
		{line: []string{"service", "stats", "patchbay"}, admin: true, says: []string{"submit"}},
		{line: []string{"stream", "info", "PATCHBAY_DEAD_1"}, admin: true, says: []string{"patchbay.v1.dead."}},
		{
			line: []string{"stream", "get", "PATCHBAY_DEAD_1", "-S", "patchbay.v1.dead." + id(5)}, admin: true,
			says: []string{id(5), "deadline"},
		},
		{line: []string{"stream", "purge", "PATCHBAY_DEAD_1", "-f"}, admin: true},
	}
	if d.limited { // the nats command does not report a refused subject, it waits
		for _, row := range []typed{
			{line: req("free", ""), never: "freed"},
			{line: []string{"service", "info", "patchbay"}, never: "worker_pids"},
			{line: []string{"stream", "purge", "PATCHBAY_EVENTS_1", "-f"}, never: "State"},
		} {
			row.line, row.code = append(row.line, "--timeout", "300ms"), whatever
			rows = append(rows, row)
		}
	}
	return rows
}

// whatever is an exit code that is not checked.
const whatever = -1

// check runs a command line and compares its exit code and output with the row.
func (d *door) check(t *testing.T, row typed, program string, flags []string) {
	t.Helper()
	if row.state != "" {
		d.waitJob(t, row.line[1][strings.LastIndexByte(row.line[1], '.')+1:], row.state)
	}
	var code int
	var out string
	good := func() bool {
		code, out = d.run(t, append([]string{program}, append(slices.Clone(row.line), flags...)...))
		good := code == row.code || row.code == whatever
		for _, want := range row.says {
			good = good && strings.Contains(out, want)
		}
		return good && (row.never == "" || !strings.Contains(out, row.never))
	}
	if row.until {
		d.Until(fmt.Sprintf("%s %.80q says %q", filepath.Base(program), row.line, row.says), good)
	} else if !good() {
		t.Errorf("%s %.80q ended with %d, want %d and %q in it, and no %q:\n%s", filepath.Base(program), row.line, code,
			row.code, row.says, row.never, out)
	}
}

// program returns a patchbay command line with the flags of the door.
func program(d *door, line ...string) []string {
	return append(append([]string{d.program}, line...), d.flags...)
}

// run runs a command line in the door's folder and returns its exit code and what it printed.
func (d *door) run(t *testing.T, line []string) (int, string) {
	t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET=", "PATCHBAY_HOME="+d.Home,
		"PATCHBAY_MODELS="+harness.DemoModels(t), "XDG_CONFIG_HOME="+d.dir)
	out, err := harness.Printed(cmd)
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (d *door) waitJob(t *testing.T, job string, want message.State) {
	t.Helper()
	var out string
	for end := time.Now().Add(harness.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, out = d.run(t, program(d, "get", job, "--json")); strings.Contains(out, `"state":"`+string(want)+`"`) {
			return
		}
	}
	t.Fatalf("%s is not %s within %s:\n%s", job, want, harness.Patience, out)
}

// interrupt checks that Ctrl-C during a run cancels the job.
func (d *door) interrupt(t *testing.T) {
	t.Helper()
	line := program(d, "run", "long.json", "--id", d.id(7))
	cmd := exec.Command(line[0], line[1:]...)
	out := &harness.Output{}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = d.dir, out, out,
		append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET=", "PATCHBAY_HOME="+d.Home)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.waitJob(t, d.id(7), message.Running)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("run ended with %d at Ctrl-C, want 130:\n%s", cmd.ProcessState.ExitCode(), out)
	}
	d.waitJob(t, d.id(7), message.Cancelled)
}

// watchers checks the endpoints for monitoring.
func (d *door) watchers(t *testing.T) {
	t.Helper()
	if code, text := d.Look("/healthz"); code != 200 || strings.TrimSpace(text) != "ok" {
		t.Errorf("/healthz: %d\n%s", code, text)
	}
	if n := d.Scrape()[`patchbay_jobs_ended_total{state="expired"}`]; n < 1 {
		t.Errorf("/metrics tells of %v expired jobs, there was one", n)
	}
}

// events starts `nats sub` on all events. It ends with the test.
func (d *door) events(t *testing.T) *harness.Output {
	t.Helper()
	cmd := exec.Command(harness.NATSCommand(t), append([]string{"sub", "patchbay.v1.events.>"}, d.cli...)...)
	out := &harness.Output{}
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), "XDG_CONFIG_HOME="+d.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	d.Until("nats sub hears a job", func() bool { // it reports that it has subscribed before it has
		d.run(t, program(d, "run", "quick.json", "--out", ""))
		return strings.Contains(out.String(), ".execution_success")
	})
	return out
}

// previews checks that previews go to clients that ask for them, in the stream of a run and on their own subject, and
// to nobody else.
func (d *door) previews(t *testing.T) {
	t.Helper()
	c, err := client.DialNATSAs(d.url, d.access)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	seen := 0
	end, err := client.Run(ctx, c, &message.RunRequest{ID: d.id(30), Workflow: harness.DemoFlow(t, 12), Preview: true},
		&client.Collector{Preview: func(_ string, jpeg []byte) {
			if strings.HasPrefix(string(jpeg), "\xff\xd8") {
				seen++
			}
		}})
	if err != nil || end == nil || end.Type != message.EventSuccess || seen == 0 {
		t.Errorf("a run with previews: %+v, %v, %d JPEGs", end, err, seen)
	}
	nc := d.connect(t)
	defer nc.Close()
	mine, err := nc.SubscribeSync(message.PreviewSubject(d.id(31)))
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Submit(ctx, c, &message.RunRequest{
		ID: d.id(31), Workflow: harness.DemoFlow(t, 5000),
		Preview: true,
	}); err != nil {
		t.Fatal(err)
	}
	d.waitJob(t, d.id(31), message.Running)
	if d.asks {
		if m, err := mine.NextMsg(500 * time.Millisecond); err == nil {
			t.Errorf("a preview of %d bytes came, which nobody had asked for", len(m.Data))
		}
		if err := nc.Publish(message.PreviewSubject(d.id(31))+".on", nil); err != nil {
			t.Fatal(err)
		}
	}
	m, err := mine.NextMsg(harness.Patience)
	if err != nil || !strings.HasPrefix(string(m.Data), "\xff\xd8") || m.Header.Get("Patchbay-Job") != d.id(31) {
		t.Errorf("no preview for %s: %v %v", d.id(31), m, err)
	}
	if did, _, err := client.Cancel(ctx, c, d.id(31)); !did || err != nil {
		t.Errorf("cancel: %v, %v", did, err)
	}
}

// connect returns a bare NATS connection as a client.
func (d *door) connect(t *testing.T) *nats.Conn {
	t.Helper()
	var opts []nats.Option
	if d.access.CA != "" {
		opts = append(opts, nats.RootCAs(d.access.CA), nats.UserCredentials(d.access.Creds))
	}
	nc, err := nats.Connect(d.url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}
