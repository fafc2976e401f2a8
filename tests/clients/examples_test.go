package clients

import (
	"bytes"
	"context"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// TestExamples checks every pipeline example against a real daemon: the shell script with the real nats command, the
// consumers in Go and Python, the rule.
func TestExamples(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: builds the nats command and needs a Python environment")
	}
	s := harness.Start(t, harness.Build(t), "")
	t.Run("Shell", func(t *testing.T) { shellPipeline(t, s) })
	t.Run("Go", func(t *testing.T) { goConsumer(t, s) })
	t.Run("Python", func(t *testing.T) { pythonConsumer(t, s) })
	t.Run("Bucket", func(t *testing.T) { bucketRule(t, s) })
}

// command runs a program of the examples and returns what it printed.
func command(t *testing.T, env []string, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Stdin = append(os.Environ(), env...), strings.NewReader(stdin)
	errs := &harness.Output{}
	cmd.Stderr = errs
	out, err := harness.Printed(cmd)
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, errs)
	}
	return string(out)
}

// goProgram builds a package of the examples.
func goProgram(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if out, err := harness.Printed(exec.Command("go", "build", "-o", path, "../../examples/"+name)); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

func shellPipeline(t *testing.T, s *harness.Server) {
	env := []string{"NATS=" + harness.NATSCommand(t), "NATS_URL=" + s.URL, "XDG_CONFIG_HOME=" + t.TempDir()}
	flow := filepath.Join(t.TempDir(), "flow.json")
	if err := os.WriteFile(flow, []byte(harness.DemoFlow(t, 2)), 0o644); err != nil {
		t.Fatal(err)
	}
	const texts = "a \"big\" red heart\nthree & two | blue stars\n"
	first := command(t, env, texts, "sh", "../../examples/pipeline.sh", flow)
	lines := strings.Split(strings.TrimSpace(first), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "demo_00001_.png") ||
		!strings.Contains(lines[1], "demo_00002_.png") {
		t.Fatalf("got\n%s\nwant two jobs with a file each", first)
	}
	if again := command(t, env, texts, "sh", "../../examples/pipeline.sh", flow); again != first {
		t.Errorf("the second time it printed\n%s\nwant the same as before\n%s", again, first)
	}
	if files, err := filepath.Glob(filepath.Join(s.Out, "demo_*.png")); err != nil || len(files) != 2 {
		t.Errorf("got files %v, %v; want two", files, err)
	}
	rec, err := harness.Status(s.Client(), strings.Fields(lines[0])[0])
	if err != nil || rec.State != message.Done {
		t.Errorf("got %+v, %v", rec, err)
	}
}

func goConsumer(t *testing.T, s *harness.Server) {
	program := goProgram(t, "events_go")
	c := s.Client()
	harness.Submit(t, c, "eg1", harness.Quick)
	s.WaitState(c, "eg1", message.Done)
	// the ends of the shell's two jobs are among them
	seen := command(t, nil, "", program, "--nats", s.URL, "--name", "tester", "--count", "3")
	if !strings.Contains(seen, "eg1\texecution_success\tquick_") || strings.Count(seen, "\n") != 3 {
		t.Errorf("got\n%s\nwant three ends, that of eg1 with its file", seen)
	}
	harness.Submit(t, c, "eg2", harness.Quick) // while the consumer does not run
	harness.Submit(t, c, "eg3", harness.DemoFlow(t, 5000))
	s.WaitState(c, "eg3", message.Running)
	harness.Cancel(t, c, "eg3")
	seen = command(t, nil, "", program, "--nats", s.URL, "--name", "tester", "--count", "2")
	if !strings.Contains(seen, "eg2\texecution_success") ||
		!strings.Contains(seen, "eg3\texecution_interrupted\tcancelled: ") || strings.Contains(seen, "eg1") {
		t.Errorf("got\n%s\nwant the ends of eg2 and eg3 alone", seen)
	}
}

func pythonConsumer(t *testing.T, s *harness.Server) {
	py := python(t)
	c := s.Client()
	harness.Submit(t, c, "ep1", strings.Replace(harness.DemoFlow(t, 3), `"seed": 1`, `"seed": 77`, 1))
	s.WaitState(c, "ep1", message.Done)
	seen := command(t, nil, "", py, "../../examples/events.py", "--nats", s.URL, "--all", "--count", "6")
	for _, want := range []string{
		"ep1\tnode 3\tstep 1/3\n", "ep1\tnode 3\tstep 3/3\n", "ep1\texecution_success\tdemo_",
		"eg3\texecution_interrupted",
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("got\n%s\nwant %q in it", seen, want)
		}
	}
}

func bucketRule(t *testing.T, s *harness.Server) {
	program := goProgram(t, "bucket_rule")
	nc, err := nats.Connect(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), harness.Patience)
	defer stop()
	from, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "pictures"})
	if err != nil {
		t.Fatal(err)
	}
	picture := harness.Photo(64)
	if _, err := from.PutBytes(ctx, "photo.png", picture); err != nil { // before the rule runs
		t.Fatal(err)
	}
	line := []string{program, "--nats", s.URL, "--flow", "../../examples/invert.json", "--count", "1"}
	if seen := command(t, nil, "", line...); !strings.Contains(seen, "photo.png\trule-") {
		t.Errorf("got %s", seen)
	}
	to, err := js.ObjectStore(ctx, "results")
	if err != nil {
		t.Fatal(err)
	}
	inverted, err := to.GetBytes(ctx, "photo.png")
	if err != nil {
		t.Fatal(err)
	}
	checkInverted(t, picture, inverted)
	if seen := command(t, nil, "", line...); seen != "photo.png\tis there\n" {
		t.Errorf("the second time it said %q", seen)
	}
	if files, err := filepath.Glob(filepath.Join(s.Out, "inverted_*.png")); err != nil || len(files) != 1 {
		t.Errorf("got files %v, %v; want one", files, err)
	}
	// a result that does not fit in a message
	flow, err := os.ReadFile("../../examples/invert.json")
	if err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(t.TempDir(), "large.json")
	text := strings.Replace(string(flow), `{"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}`,
		`{"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "bilinear", "width": 4600, `+
			`"height": 4600, "crop": "disabled"}`, 1)
	if err := os.WriteFile(large, []byte(strings.Replace(text, "inverted", "large", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if from, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "large"}); err != nil {
		t.Fatal(err)
	}
	if _, err := from.PutBytes(ctx, "large.png", harness.Photo(700)); err != nil {
		t.Fatal(err)
	}
	seen := command(t, nil, "", program, "--nats", s.URL, "--from", "large", "--flow", large, "--count", "1")
	got, err := to.GetBytes(ctx, "large.png")
	if err != nil {
		t.Fatalf("%v: %s", err, seen)
	}
	saved, err := os.ReadFile(filepath.Join(s.Out, "large_00001_.png"))
	if err != nil || !bytes.Equal(saved, got) || len(got) <= int(nc.MaxPayload()) {
		t.Errorf("%v: %d bytes arrived of %d, want all, more than a message of %d", err, len(got), len(saved),
			nc.MaxPayload())
	}
}

// checkInverted checks pixel by pixel that one PNG is the inverse of the other.
func checkInverted(t *testing.T, a, b []byte) {
	t.Helper()
	x, err := png.Decode(bytes.NewReader(a))
	if err != nil {
		t.Fatal(err)
	}
	y, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if x.Bounds() != y.Bounds() {
		t.Fatalf("got a picture of %v, want %v", y.Bounds(), x.Bounds())
	}
	for py := range x.Bounds().Dy() {
		for px := range x.Bounds().Dx() {
			r, _, _, _ := x.At(px, py).RGBA()
			ir, _, _, _ := y.At(px, py).RGBA()
			if sum := r>>8 + ir>>8; sum < 254 || sum > 255 { // ComfyUI truncates to whole levels
				t.Fatalf("red at (%d, %d): %d became %d, want %d or one less", px, py, r>>8, ir>>8, 255-r>>8)
			}
		}
	}
}
