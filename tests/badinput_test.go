package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/tests/harness"
)

// badInput is a daemon that gets one bad job after the other and must make the same picture in between.
type badInput struct {
	t       *testing.T
	program string
	server  *harness.Server
	files   *hostile
	socket  client.Client // stays open throughout
	picture []byte        // made by the good job
	goods   int           // good jobs so far
}

// TestBadInput checks that a daemon and `run --local` answer everything that users and their files can get wrong with a
// useful error, and that the daemon still works afterwards.
func TestBadInput(t *testing.T) {
	t.Parallel()
	program := harness.Build(t)
	files := newHostile(t)
	b := &badInput{t: t, program: program, files: files}
	b.server = harness.Start(t, program, "", "--queue", "memory", "--compute", "f32", "--strict-links", "--models",
		files.root, "--input", files.input)
	socket, err := client.DialSocket(b.server.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	b.socket = socket
	b.good(t)
	for _, r := range badRows(t, files) {
		if testing.Short() && !r.short {
			continue
		}
		t.Run(r.name, func(t *testing.T) { b.row(t, r) })
	}
	for _, c := range []struct {
		name  string
		test  func(*testing.T)
		short bool
	}{
		{"errors as JSON", b.jsonErrors, true},
		{"raw bytes on the socket", b.rawBytes, true},
		{"two jobs at once", b.twoAtOnce, false},
		{"picture too large for memory", b.tooLarge, false},
		{"disk full at save", b.diskFull, true},
		{"local: disk full at save", b.localDiskFull, false},
		{"worker killed, Ctrl-C", b.killedAndInterrupted, true},
		{"worker killed again and again", b.killedForGood, false},
		{"local: worker killed", b.localKilled, false},
		{"local: Ctrl-C", b.localInterrupted, false},
	} {
		if testing.Short() && !c.short {
			continue
		}
		t.Run(c.name, c.test)
	}
	if err := b.server.Stop(); err != nil {
		t.Errorf("the daemon ended with %v\n%s", err, b.server.Log)
	}
}

// good runs a job that must work and compares its file with the first one. Each run has a new end step, far beyond the
// last step, so that no cached sample answers.
func (b *badInput) good(t *testing.T) {
	t.Helper()
	got, err := b.makeGood(b.next())
	if err != nil {
		t.Fatalf("the good job after it: %v\n%s", err, tail(b.server.Log.String()))
	}
	if b.picture == nil {
		b.picture = got
		return
	}
	if !bytes.Equal(got, b.picture) {
		t.Errorf("the good job after it gave another picture (%d bytes, the first had %d)", len(got), len(b.picture))
	}
}

func (b *badInput) next() int {
	b.goods++
	return b.goods
}

func (b *badInput) makeGood(n int) ([]byte, error) {
	nodes := demoNodes(b.t)
	in := nodes["3"].Inputs
	in["noise_seed"], in["add_noise"], in["start_at_step"], in["end_at_step"], in["return_with_leftover_noise"] = 1,
		"enable", 0, 10000-n, "disable"
	in["steps"] = 2
	nodes["3"] = graphNode{"KSamplerAdvanced", in}
	nodes["5"].Inputs["width"], nodes["5"].Inputs["height"] = 64, 64
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	var col client.Collector
	end, err := client.Run(ctx, b.socket, &message.RunRequest{Workflow: graph(b.t, nodes), NoMetadata: true}, &col)
	switch {
	case err != nil:
		return nil, err
	case end == nil || end.Type != message.EventSuccess || len(col.Files) != 1:
		return nil, fmt.Errorf("it ended with %+v and %d files", end, len(col.Files))
	}
	return col.Files[0].Data, nil
}

// row runs a row over the socket and in a local worker. Both must give the same answer.
func (b *badInput) row(t *testing.T, r badRow) {
	dir := t.TempDir()
	path := filepath.Join(dir, "flow.json")
	if err := os.WriteFile(path, []byte(r.file), 0o644); err != nil {
		t.Fatal(err)
	}
	served := b.ends(t, r, path, filepath.Join(dir, "served"), "--socket", b.server.Socket)
	t.Run("local", func(t *testing.T) {
		if local := b.ends(t, r, path, filepath.Join(dir, "local"), b.local()...); r.exit != 0 && local != served {
			t.Errorf("the daemon says\n%s\nand a worker on its own\n%s", served, local)
		}
	})
	b.good(t)
}

// ends runs a row in one way, checks how it ended and returns what it printed.
func (b *badInput) ends(t *testing.T, r badRow, path, out string, way ...string) string {
	t.Helper()
	code, text := b.run(t, append(append([]string{path, "--out", out}, way...), r.args...))
	r.check(t, way[0], code, text, out)
	return text
}

// local returns the flags of a run without a daemon that sees the same files.
func (b *badInput) local() []string {
	return []string{
		"--local", "--strict-links", "--compute", "f32", "--models", harness.DemoModels(b.t), "--models",
		b.files.root, "--input",
		b.files.input, "--log", "error",
	}
}

// check compares the end of a run with the row.
func (r *badRow) check(t *testing.T, way string, code int, text, out string) {
	t.Helper()
	if code != r.exit {
		t.Errorf("%s: exit code %d, want %d\n%s", way, code, r.exit, short(text))
		return
	}
	if r.exit == 0 {
		r.checkPicture(t, way, out)
		return
	}
	if !strings.HasPrefix(text, "patchbay: ") || strings.Count(text, "patchbay: ") > 1 {
		t.Errorf("%s: stderr is not one error:\n%s", way, short(text))
	}
	for _, w := range r.says {
		if !strings.Contains(text, w) {
			t.Errorf("%s: the error does not say %q:\n%s", way, short(w), short(text))
		}
	}
	for _, w := range []string{"panic", "goroutine", "runtime error", "internal", "0x", "%!"} {
		if strings.Contains(text, w) {
			t.Errorf("%s: the error says %q:\n%s", way, w, short(text))
		}
	}
	if len(text) > 4000 {
		t.Errorf("%s: an error of %d bytes, want at most 4000:\n%s", way, len(text), short(text))
	}
	if files, _ := os.ReadDir(out); len(files) > 0 {
		t.Errorf("%s: %s was saved though the job failed", way, files[0].Name())
	}
}

func (r *badRow) checkPicture(t *testing.T, way, out string) {
	t.Helper()
	f, err := os.Open(filepath.Join(out, "demo_00001_.png"))
	if err != nil {
		t.Errorf("%s: %v", way, err)
		return
	}
	defer f.Close()
	im, err := png.Decode(f)
	if err != nil {
		t.Errorf("%s: %v", way, err)
		return
	}
	if s := im.Bounds().Size(); s.X != r.picture[0] || s.Y != r.picture[1] {
		t.Errorf("%s: a picture of %d x %d, want %d x %d", way, s.X, s.Y, r.picture[0], r.picture[1])
	}
}

// run runs `patchbay run` to its end and returns its exit code and stderr.
func (b *badInput) run(t *testing.T, args []string) (int, string) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	cmd := b.command(ctx, args)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%v did not end within %s:\n%s", args, harness.Patience, short(errs.String()))
	}
	return harness.ExitCode(t, err), errs.String()
}

func (b *badInput) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.program, append([]string{"run"}, args...)...)
	cmd.Env = append(os.Environ(), "PATCHBAY_NATS_URL=", "PATCHBAY_SOCKET=", "PATCHBAY_HOME="+b.t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// short shortens a text for a message.
func short(s string) string {
	if len(s) > 1500 {
		return s[:1000] + " ... " + s[len(s)-400:]
	}
	return s
}

func tail(s string) string { return s[max(0, len(s)-3000):] }

// exactJSON decodes JSON without rounding integers.
func exactJSON(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

// graph encodes nodes as JSON, raw values verbatim.
func graph(t testing.TB, nodes map[string]graphNode) string {
	t.Helper()
	var texts []string
	for _, n := range nodes {
		for k, v := range n.Inputs {
			if r, ok := v.(raw); ok {
				mark := fmt.Sprintf("@raw%d@", len(texts)/2)
				texts = append(texts, `"`+mark+`"`, string(r))
				n.Inputs[k] = mark
			}
		}
	}
	b, err := json.Marshal(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(texts...).Replace(string(b))
}

// jsonErrors checks that programs get code, node, class and input as fields, from a refusal and from a job that failed.
func (b *badInput) jsonErrors(t *testing.T) {
	for _, c := range []struct {
		field, value, kind string
		want               fault.Form
	}{
		{"weight_dtype", "fp7", "refused", fault.Form{
			Code: fault.BadWorkflow, Status: 422,
			Type: "prompt_outputs_failed_validation", Node: "1", Class: "UNETLoader", Input: "weight_dtype",
		}},
		{
			"unet_name", "half.safetensors", "execution_error",
			fault.Form{
				Code: fault.Unsupported, Status: 415, Type: "bad_checkpoint", Node: "1", Class: "UNETLoader",
				Input: "unet_name",
			},
		},
	} {
		path := filepath.Join(t.TempDir(), "flow.json")
		if err := os.WriteFile(path, []byte(flow(t, change{"1", c.field, c.value})), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := b.command(t.Context(), []string{path, "--json", "--socket", b.server.Socket})
		out, err := cmd.Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		var last struct {
			Type  string
			Error fault.Form
			Nodes map[string]any `json:"node_errors"`
		}
		if jsonErr := json.Unmarshal([]byte(lines[len(lines)-1]), &last); jsonErr != nil || err == nil {
			t.Fatalf("%s: ended with %v, last line %s", c.field, err, lines[len(lines)-1])
		}
		got := last.Error
		shape := fault.Form{
			Code: got.Code, Status: got.Status, Type: got.Type, Node: got.Node,
			Class: got.Class, Input: got.Input,
		}
		if last.Type != c.kind || !reflect.DeepEqual(shape, c.want) || got.Message == "" {
			t.Errorf("%s: got a line of type %s with %+v, want %s with %+v", c.field, last.Type, got, c.kind, c.want)
		}
		if _, ok := last.Nodes["1"]; c.kind == "refused" && !ok {
			t.Errorf("%s: node_errors %v lack node 1", c.field, last.Nodes)
		}
	}
	b.good(t)
}

// rawBytes checks that the connection answers frames that no client of ours would send, and stays usable.
func (b *badInput) rawBytes(t *testing.T) {
	deep := func(head string, c string) []byte { return []byte(head + strings.Repeat(c, 10_000_000)) }
	for _, c := range []struct {
		name string
		body []byte
		code string
	}{
		{"text", []byte("hello"), fault.Unsupported},
		{"nothing", nil, fault.Unsupported},
		{"msgpack map of 2^32-1 items", []byte{0xdf, 0xff, 0xff, 0xff, 0xff, 0x01}, fault.BadRequest},
		{"msgpack string of 4 GiB", []byte{0x81, 0xa1, 'a', 0xdb, 0xff, 0xff, 0xff, 0xff}, fault.BadRequest},
		{"msgpack 10^7 deep", deep("\x81\xa1a", "\x91"), fault.BadRequest},
		{"msgpack maps 10^7 deep", deep("", "\x81\xa1a")[:10_000_000], fault.BadRequest},
		{"JSON 10^7 deep", deep(`{"op":"run","tag":1,"workflow":`, "["), fault.BadRequest},
		{"run of nothing", []byte(`{"op":"run","tag":1}`), fault.EmptyBody},
		{"run of a number", []byte(`{"op":"run","tag":1,"workflow":7}`), fault.BadWorkflow},
		{"no such verb", []byte(`{"op":"dance","tag":1}`), fault.NoVerb},
	} {
		conn, err := net.Dial("unix", b.server.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(harness.Patience))
		for _, body := range [][]byte{c.body, []byte(`{"op":"ping","tag":2}`)} {
			if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
				t.Errorf("%s: send: %v", c.name, err)
			}
		}
		for _, want := range []string{`"` + c.code + `"`, `"pid"`} {
			if got, err := reply(conn); err != nil || !strings.Contains(got, want) {
				t.Errorf("%s: got %s, %v; want %s", c.name, short(got), err, want)
			}
		}
		_ = conn.Close()
	}
	b.good(t)
}

// reply reads one frame and returns it as JSON.
func reply(r io.Reader) (string, error) {
	body, err := wire.ReadFrame(r)
	if err != nil {
		return "", err
	}
	enc, ok := wire.Sniff(body)
	if !ok {
		return "", fmt.Errorf("a reply of %d bytes that is no map", len(body))
	}
	o, err := wire.Decode(body, enc, wire.DefaultLimits())
	if err != nil {
		return "", err
	}
	text, err := wire.Encode(o, wire.JSON)
	return string(text), err
}

// twoAtOnce sends good and bad jobs from several clients at the same time.
func (b *badInput) twoAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(path, []byte(flow(t, change{"1", "unet_name", "half.safetensors"})), 0o644); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 3 {
		n := b.next()
		all.Go(func() {
			if got, err := b.makeGood(n); err != nil || !bytes.Equal(got, b.picture) {
				t.Errorf("a good job beside bad ones: %d bytes, %v; want the %d bytes of before", len(got), err, len(b.picture))
			}
		})
		all.Go(func() {
			if code, text := b.run(t, []string{path, "--socket", b.server.Socket}); code != 1 ||
				!strings.Contains(text, "unsupported_format") {
				t.Errorf("a bad job beside good ones: exit code %d, want 1\n%s", code, text)
			}
		})
	}
	all.Wait()
	b.good(t)
}

// worker returns the process id of the current worker.
func (b *badInput) worker() int {
	pids := b.server.WorkerPIDs()
	return pids[len(pids)-1]
}

// limit sets a soft limit of a process until the returned function is called.
func limit(t *testing.T, pid, resource int, value uint64) (lift func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &old); err != nil {
		t.Fatalf("limits of process %d: %v", pid, err)
	}
	lower := unix.Rlimit{Cur: value, Max: old.Max}
	if err := unix.Prlimit(pid, resource, &lower, nil); err != nil {
		t.Fatalf("limit process %d: %v", pid, err)
	}
	return func() {
		if err := unix.Prlimit(pid, resource, &old, nil); err != nil {
			t.Errorf("lift the limit of process %d: %v", pid, err)
		}
	}
}
