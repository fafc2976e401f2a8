package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
)

func TestMain(m *testing.M) { ipctest.Main(m) }

// noise is a PNG of n x n pixels that no encoder makes small, another one for every node.
func noise(n int, node string) []byte {
	r := rand.New(rand.NewPCG(1, uint64(node[0])))
	im := image.NewNRGBA(image.Rect(0, 0, n, n))
	for i := range im.Pix {
		im.Pix[i] = byte(r.Uint32())
		if i%4 == 3 {
			im.Pix[i] = 255
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, im); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// painter is a fake executor whose nodes Picture n make pictures of n x n pixels.
type painter struct{ *ipctest.Fake }

func (p painter) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	out, err := p.Fake.Run(ctx, task, sink)
	if out != nil {
		for i, f := range out.Files {
			o := f.Output()
			o.Width, o.Height, o.Data = len(o.Data), len(o.Data), noise(len(o.Data), o.Node)
			out.Files[i] = message.FileOf(o)
		}
	}
	return out, err
}

// describe is object_info of the classes of the fake executor.
func describe(class string) map[string]any {
	if !slices.Contains([]string{"Step", "Picture", "Wait", "Fail"}, class) {
		return nil
	}
	n := []any{"INT", pyjson.NewObject("default", int64(1), "min", int64(0), "max", int64(4096))}
	return map[string]any{class: pyjson.NewObject("input", pyjson.NewObject("required", pyjson.NewObject("n", n)))}
}

// rig is a daemon with a fake worker, a server of its templates, and an application that is connected to that.
type rig struct {
	*ipctest.Rig
	app     *sdk.ClientSession
	line    sdk.Connection // of the application
	server  *server
	started chan string
	stop    func()     // what a signal does to the server
	ended   chan error // of the server

	mu   sync.Mutex
	told []*sdk.ProgressNotificationParams
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{started: make(chan string, 10), ended: make(chan error, 1)}
	r.Rig = ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) { sc.Describe = describe }, jobs.Config{},
		jobs.OutputsConfig{}, painter{&ipctest.Fake{Label: "fake", Started: r.started}})
	folder := t.TempDir()
	for name, body := range map[string]string{
		"draw": `{"patchbay": {"about": "noise", "parameters": {"steps": "1.n", "side": ["2.n", "3.n"]}},
			"1": {"class_type": "Step", "inputs": {"n": 4}}, "2": {"class_type": "Picture", "inputs": {"n": 16}},
			"3": {"class_type": "Picture", "inputs": {"n": 16}}}`,
		"wait": `{"patchbay": {"parameters": {}}, "1": {"class_type": "Wait", "inputs": {"n": 3600000}}}`,
		"fail": `{"patchbay": {"parameters": {}}, "7": {"class_type": "Fail", "inputs": {"n": 1}}}`,
		"odd":  `{"patchbay": {"parameters": {"x": "1.x"}}, "1": {"class_type": "Step", "inputs": {"n": 4}}}`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name+".json"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{
		folder: folder, most: leastShown, version: "test", log: zerolog.Nop(),
		dial: func() (client.Client, error) { return ipctest.DialRig(t, r.Rig), nil },
	}
	r.server = s
	here, there := sdk.NewInMemoryTransports()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	t.Cleanup(stop)
	go func() { r.ended <- s.serve(ctx, there) }()
	application := sdk.NewClient(&sdk.Implementation{Name: "test"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) {
			r.mu.Lock()
			r.told = append(r.told, req.Params)
			r.mu.Unlock()
		},
	})
	var err error
	if r.app, err = application.Connect(wiretest.Context(t), seen{here, &r.line}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.app.Close() })
	return r
}

// seen is a transport whose connection the test sees.
type seen struct {
	sdk.Transport
	line *sdk.Connection
}

func (s seen) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := s.Transport.Connect(ctx)
	*s.line = c
	return c, err
}

// call calls a tool and decodes its text, which must equal its structured content unless it is an error.
func (r *rig) call(t *testing.T, name string, args map[string]any) (*pyjson.Object, *sdk.CallToolResult) {
	t.Helper()
	p := &sdk.CallToolParams{Name: name, Arguments: args}
	p.SetProgressToken("p")
	out, err := r.app.CallTool(wiretest.Context(t), p)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	v, err := pyjson.Decode([]byte(out.Content[0].(*sdk.TextContent).Text))
	if err != nil {
		t.Fatal(err)
	}
	if !out.IsError {
		var a, b any
		structured, err := json.Marshal(out.StructuredContent)
		if err = errors.Join(err, json.Unmarshal(structured, &a),
			json.Unmarshal([]byte(out.Content[0].(*sdk.TextContent).Text), &b)); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s: the text is %v, the structured content %v", name, b, a)
		}
	}
	return v.(*pyjson.Object), out
}

// done calls a tool that must not fail.
func (r *rig) done(t *testing.T, name string, args map[string]any) (*pyjson.Object, []sdk.Content) {
	t.Helper()
	o, out := r.call(t, name, args)
	if out.IsError {
		t.Fatalf("%s %v: %s", name, args, out.Content[0].(*sdk.TextContent).Text)
	}
	return o, out.Content[1:]
}

// TestTools lists the tools with their schemas.
func TestTools(t *testing.T) {
	r := newRig(t)
	var got []string
	for tl, err := range r.app.Tools(wiretest.Context(t), nil) {
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(tl.InputSchema.(map[string]any)["required"])
		got = append(got, fmt.Sprintf("%s%s read-only %t", tl.Name, b, tl.Annotations.ReadOnlyHint))
	}
	slices.Sort(got)
	want := []string{
		`cancel["job"] read-only false`, `generate["template"] read-only false`, `list_templates[] read-only true`,
		`status["job"] read-only true`, `submit["template"] read-only false`, `view["job"] read-only true`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the tools are %v, want %v", got, want)
	}
}

// TestListTemplates lists templates with what their parameters may be, and one that is wrong with the reason.
func TestListTemplates(t *testing.T) {
	r := newRig(t)
	o, _ := r.done(t, "list_templates", nil)
	list, _ := o.At("templates").([]any)
	if len(list) != 4 {
		t.Fatalf("there are %d templates, want 4", len(list))
	}
	draw, odd := list[0].(*pyjson.Object), list[2].(*pyjson.Object)
	if steps := draw.In("parameters").In("properties").In("steps"); draw.Text("about") != "noise" ||
		steps.Text("type") != "integer" || steps.At("maximum") != int64(4096) || steps.At("default") != int64(4) {
		t.Errorf("draw is described as %v", list[0])
	}
	if odd.In("error").Text("code") != fault.BadWorkflow || !strings.Contains(odd.In("error").Text("message"), "input x") {
		t.Errorf("odd is described as %v", list[2])
	}
}

// TestGenerate draws two pictures: the answer has them within the bytes that it may have, the ids of the job and its
// files, and before it came progress that grows and names the step.
func TestGenerate(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		side int
		kind string
	}{{16, "image/png"}, {300, "image/jpeg"}} {
		o, pictures := r.done(t, "generate", map[string]any{
			"template": "draw", "values": map[string]any{"side": c.side, "steps": 3},
		})
		rec, err := r.Jobs.Get(o.Text("job"))
		if err != nil || rec.State != message.Done {
			t.Fatalf("job %q is %v (%v)", o.Text("job"), rec.State, err)
		}
		files, _ := o.At("files").([]any)
		if len(pictures) != 2 || len(files) != 2 {
			t.Fatalf("there are %d pictures and %d files, want 2", len(pictures), len(files))
		}
		for i, p := range pictures {
			im := p.(*sdk.ImageContent)
			cfg, format, err := image.DecodeConfig(bytes.NewReader(im.Data))
			if err != nil || im.MIMEType != c.kind || "image/"+format != c.kind || len(im.Data) > leastShown/2 ||
				cfg.Width > c.side || cfg.Width < 16 {
				t.Errorf("picture %d of side %d is %s with %d bytes, %d wide (%v)", i, c.side, im.MIMEType, len(im.Data),
					cfg.Width, err)
			}
			f := files[i].(*pyjson.Object)
			if f.At("width") != int64(c.side) || (f.Text("shown") != "") != (c.side == 300) {
				t.Errorf("file %d is described as %v", i, f)
			}
			if c.side == 16 && !bytes.Equal(im.Data, noise(16, fmt.Sprint(2+i))) {
				t.Errorf("picture %d is not the file", i)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var texts []string
	for i, p := range r.told {
		if i > 0 && p.Progress <= r.told[i-1].Progress && !strings.HasPrefix(p.Message, "job ") {
			t.Errorf("progress %v follows %v", p.Progress, r.told[i-1].Progress)
		}
		if p.Total != 3 || p.ProgressToken != "p" {
			t.Errorf("progress %+v, want a total of 3", p)
		}
		texts = append(texts, p.Message)
	}
	if all := strings.Join(texts, "; "); !strings.Contains(all, "node 1: 3 of 3") || !strings.Contains(all, "node 3") {
		t.Errorf("the progress was %s", all)
	}
}

// TestSubmitAndView follows a job by its id, or the beginning of one.
func TestSubmitAndView(t *testing.T) {
	r := newRig(t)
	o, _ := r.done(t, "submit", map[string]any{"template": "draw", "values": map[string]any{"side": 20}})
	job := o.Text("job")
	ipctest.WaitState(t, r.Jobs, job, message.Done)
	o, _ = r.done(t, "status", map[string]any{"job": job[:10]})
	if files, _ := o.At("files").([]any); o.Text("state") != "done" || o.Text("job") != job || len(files) != 2 {
		t.Errorf("status says %v", o)
	}
	_, pictures := r.done(t, "view", map[string]any{"job": job, "index": 1})
	if len(pictures) != 1 || !bytes.Equal(pictures[0].(*sdk.ImageContent).Data, noise(20, "3")) {
		t.Errorf("view shows %d pictures, or another one", len(pictures))
	}
	o, _ = r.done(t, "cancel", map[string]any{"job": job})
	if o.At("cancelled") != false || o.Text("state") != "done" {
		t.Errorf("cancel of a job that is done says %v", o)
	}
	o, _ = r.done(t, "submit", map[string]any{"template": "wait"})
	ipctest.WaitState(t, r.Jobs, o.Text("job"), message.Running)
	waits, _ := r.call(t, "view", map[string]any{"job": o.Text("job")})
	if waits.In("error").Text("code") != fault.BadRequest {
		t.Errorf("view of a job that runs says %v", waits)
	}
	o, _ = r.done(t, "cancel", map[string]any{"job": o.Text("job")})
	if o.At("cancelled") != true {
		t.Errorf("cancel says %v", o)
	}
	ipctest.WaitState(t, r.Jobs, o.Text("job"), message.Cancelled)
}

// TestErrors checks that errors reach the model with the code, the node, the field and what is allowed.
func TestErrors(t *testing.T) {
	r := newRig(t)
	allowed := func(values ...string) string { return fmt.Sprintf("%q", values) }
	for _, c := range []struct {
		tool, args                       string
		code, kind, input, node, allowed string
	}{
		{"generate", `{"template": "no"}`, fault.NoTemplate, "", "template", "", allowed("draw", "fail", "odd", "wait")},
		{"generate", `{"values": {}}`, fault.BadWorkflow, fault.InputMissing, "template", "", ""},
		{"generate", `{"template": "draw", "values": {"x": 1}}`, fault.BadRequest, "", "x", "", allowed("steps", "side")},
		{"submit", `{"template": "draw", "values": {"side": -1}}`, fault.BadWorkflow, fault.TooSmall, "side", "", "minimum"},
		{"submit", `{"template": "draw", "values": [1]}`, fault.BadRequest, "", "values", "", ""},
		{"submit", `{"template": "../draw"}`, fault.NoTemplate, "", "template", "", allowed("draw", "fail", "odd", "wait")},
		{"submit", `{"template": "odd"}`, fault.BadWorkflow, "", "", "", ""},
		{"generate", `{"template": "fail"}`, fault.OutOfMemory, "", "", "7", ""},
		{"status", `{"job": "nobody"}`, fault.NoJob, "", "", "", ""},
		{"cancel", `{"job": 7}`, fault.BadRequest, "", "job", "", ""},
		{"view", `{"job": "x", "colour": 1}`, fault.BadRequest, "", "colour", "", allowed("job", "index")},
	} {
		var args map[string]any
		if err := json.Unmarshal([]byte(c.args), &args); err != nil {
			t.Fatal(err)
		}
		o, out := r.call(t, c.tool, args)
		e := o.In("error")
		extra, _ := json.Marshal(e.In("extra_info").At("allowed"))
		if !out.IsError || e.Text("code") != c.code || c.kind != "" && e.Text("type") != c.kind ||
			e.Text("input") != c.input || e.Text("node") != c.node || e.Text("message") == "" ||
			!strings.Contains(strings.ReplaceAll(string(extra), ",", " "), c.allowed) {
			t.Errorf("%s %s answers %s", c.tool, c.args, out.Content[0].(*sdk.TextContent).Text)
		}
	}
}

// TestAway checks that a daemon that is not there, or goes away, is what a model hears of, and that the next call finds
// one that is back.
func TestAway(t *testing.T) {
	r := newRig(t)
	there := r.server.dial
	for name, dial := range map[string]func() (client.Client, error){
		"none": func() (client.Client, error) { return nil, fmt.Errorf("%w: nobody listens", client.ErrNoDaemon) },
		"lost": func() (client.Client, error) {
			c, err := there()
			return c, errors.Join(err, c.Close())
		},
	} {
		for _, tool := range []string{"generate", "list_templates"} {
			args := map[string]any{}
			if tool == "generate" {
				args["template"] = "draw"
			}
			r.server.dial = dial
			o, out := r.call(t, tool, args)
			if !out.IsError || o.In("error").Text("code") != fault.NoCapacity || o.In("error").At("retryable") != true {
				t.Errorf("%s, %s: %v", name, tool, o)
			}
			r.server.dial = there
			r.done(t, tool, args)
		}
	}
}

// TestStopped checks that a job is cancelled when the call that waits for it is, when the application hangs up, and
// when a signal ends the server.
func TestStopped(t *testing.T) {
	for _, how := range []string{"cancelled", "hung up", "signal"} {
		r := newRig(t)
		ctx, stop := context.WithCancel(wiretest.Context(t))
		failed := make(chan error, 1)
		go func() {
			out, err := r.app.CallTool(ctx, &sdk.CallToolParams{
				Name: "generate", Arguments: map[string]any{"template": "wait"},
			})
			if err == nil && !out.IsError {
				err = nil
			} else {
				err = errors.Join(err, errors.New("stopped"))
			}
			failed <- err
		}()
		job := <-r.started
		switch how {
		case "cancelled":
			stop()
		case "hung up":
			_ = r.line.Close()
		case "signal":
			r.stop()
		}
		ipctest.WaitState(t, r.Jobs, job, message.Cancelled)
		if how != "cancelled" {
			if err := <-r.ended; err != nil {
				t.Errorf("%s: the server ends with %v", how, err)
			}
		}
		stop()
		if err := <-failed; err == nil {
			t.Errorf("%s: the call has an answer", how)
		}
	}
}

// TestBounded checks that every picture fits, and what is none says so.
func TestBounded(t *testing.T) {
	for _, most := range []int{800, 5000, leastShown} {
		kind, shown, note := bounded(noise(400, "1"), most)
		if _, _, err := image.DecodeConfig(bytes.NewReader(shown)); err != nil || kind != "image/jpeg" || len(shown) > most ||
			most > 1000 && len(shown) < most/4 || note == "" {
			t.Errorf("within %d: %s of %d bytes, %q (%v)", most, kind, len(shown), note, err)
		}
	}
	if _, shown, note := bounded(noise(400, "1"), 100); shown != nil || note == "" {
		t.Errorf("within 100 bytes there is a picture of %d, %q", len(shown), note)
	}
	if _, shown, note := bounded([]byte("\x00\x00\x00\x18ftypmp42"), 1000); shown != nil || note == "" {
		t.Errorf("a video is a picture of %d bytes, %q", len(shown), note)
	}
}
