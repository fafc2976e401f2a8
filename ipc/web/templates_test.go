package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// templates are those of served.
func templates() map[string]string {
	return map[string]string{
		"shot": `{"patchbay": {"about": "a shot", "parameters": {"bytes": "2.n", "prompt": "2.text", "seed": "2.seed",
			"width": "2.width", "height": "2.height", "mode": "2.mode", "picture": "1.image"}},
			"1": {"class_type": "Step", "inputs": {"n": 3, "image": "a.png"}},
			"2": {"class_type": "Picture", "inputs": {"n": 10, "text": "a heart", "seed": 1, "mode": "fast"}}}`,
		"slow": `{"patchbay": {"parameters": {"prompt": "2.text", "ms": "2.n", "image": "2.image", "mask": "2.mask"}},
			"1": {"class_type": "Step", "inputs": {"n": 3}},
			"2": {"class_type": "Wait", "inputs": {"n": 600000, "text": "", "image": ""}},
			"3": {"class_type": "Picture", "inputs": {"n": 5}}}`,
		"fails": `{"patchbay": {"parameters": {"prompt": "1.text"}}, "1": {"class_type": "Fail", "inputs": {"text": ""}}}`,
		"bad":   `{"patchbay": {"parameters": {"a": "7.n"}}, "1": {"class_type": "Wait", "inputs": {"n": 1}}}`,
		"worse": `{"patchbay": {"parameters": {}}, "1": {"class_type": "Nobody", "inputs": {}}}`,
	}
}

// served starts a carrier with templates.
func served(t *testing.T) *door {
	t.Helper()
	return newDoor(t, func(c *Config) {
		c.Templates = filepath.Join(filepath.Dir(c.Keep), "templates")
		if err := os.Mkdir(c.Templates, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range templates() {
			if err := os.WriteFile(filepath.Join(c.Templates, name+".json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// form returns a multipart body: a value that begins with @ is a file.
func form(t *testing.T, pairs ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		name, value := pairs[i], pairs[i+1]
		data, isFile := strings.CutPrefix(value, "@")
		if !isFile {
			if err := w.WriteField(name, value); err != nil {
				t.Fatal(err)
			}
			continue
		}
		part, err := w.CreateFormFile(name, "x.png")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write([]byte(data))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

// request returns what a job was asked for.
func (d *door) request(job string) *message.RunRequest {
	d.t.Helper()
	req, err := d.jobs.Request(d.t.Context(), job)
	if err != nil {
		d.t.Fatal(err)
	}
	return req
}

// TestRunAnswersWithTheFile runs a template with JSON, a form and nothing: the answer is the file that the job made.
func TestRunAnswersWithTheFile(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		body, kind := form(t, "bytes", "12", "picture", "@PNG bytes")
		for _, c := range []struct {
			body any
			kind string
			want int
		}{
			{nil, "", 10},
			{`{"bytes": 11, "mode": "good"}`, "application/json", 11},
			{body, kind, 12},
			{`{"bytes": 13}`, "application/x-www-form-urlencoded", 13},
		} {
			status, got, head := d.ask("POST", "/patchbay/run/shot", c.body, "Content-Type", c.kind)
			if want := messagetest.Picture("2", c.want).Data; status != 200 || !bytes.Equal(got, want) ||
				head.Get("Content-Type") != "image/png" {
				t.Errorf("%v is answered with %d %s %q", c.body, status, head.Get("Content-Type"), got)
			}
			if job := d.find(head.Get("Patchbay-Job")); job == nil || job.State != message.Done {
				t.Errorf("the job %q is %+v", head.Get("Patchbay-Job"), job)
			}
		}
		list, _ := d.get("/patchbay/templates").(map[string]any)["templates"].([]any)
		about := map[string]string{}
		for _, item := range list {
			text, _ := json.Marshal(item)
			about[item.(map[string]any)["name"].(string)] = string(text)
		}
		for name, want := range map[string]string{
			"shot":  `"mode":{"default":"fast","enum":["fast","good"],"type":"string"}`,
			"bad":   "template bad: parameter a: there is no node 7; there are 1",
			"worse": "template worse: Node 'Nobody' not found",
			"slow":  `"required":["image"]`,
		} {
			if !strings.Contains(about[name], want) {
				t.Errorf("%s is listed as %s, want %s in it", name, about[name], want)
			}
		}
	})
}

// TestRunRefuses sends what cannot run: the answer names code, input and what is allowed.
func TestRunRefuses(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		for _, c := range []struct {
			path, body string
			status     int
			code, kind string
			input      string
		}{
			{"nobody", `{}`, 404, "no_such_template", "", "template"},
			{"bad", `{}`, 422, "bad_workflow", "", ""},
			{"worse", `{}`, 422, "bad_workflow", "missing_node_type", ""},
			{"shot", `{"bytes": -1}`, 422, "bad_workflow", "value_smaller_than_min", "bytes"},
			{"shot", `{"mode": "best"}`, 422, "bad_workflow", "value_not_in_list", "mode"},
			{"shot", `{"size": 3}`, 400, "bad_request", "", "size"},
			{"slow", `{"ms": 3}`, 422, "bad_workflow", "required_input_missing", "image"},
			{"shot", `{"mode": `, 400, "bad_request", "", ""},
			{"shot", `[]`, 400, "bad_request", "", ""},
			{"shot?colour=1", `{}`, 400, "bad_request", "", "colour"},
			{"shot?priority=1", `{}`, 400, "bad_request", "", "priority"},
			{"shot?id=a+b", `{}`, 400, "bad_request", "", ""},
			{"fails", `{}`, 507, "out_of_memory", "out_of_memory", ""},
		} {
			status, body, _ := d.ask("POST", "/patchbay/run/"+c.path, c.body)
			var got struct {
				Error struct {
					Code, Type, Input, Message string
					Extra                      map[string]any `json:"extra_info"`
				}
			}
			if err := json.Unmarshal(body, &got); err != nil {
				t.Errorf("%s %s: %v in %s", c.path, c.body, err, body)
			}
			e := got.Error
			if status != c.status || e.Code != c.code || e.Type != c.kind || e.Input != c.input || e.Message == "" {
				t.Errorf("%s %s is answered with %d %s, want %+v", c.path, c.body, status, body, c)
			}
			if c.input == "mode" && fmt.Sprint(e.Extra["allowed"]) != "[fast good]" {
				t.Errorf("the modes that are allowed are %v", e.Extra)
			}
		}
		status, body, _ := d.ask("POST", "/patchbay/run/shot", `{}`, "Prefer", "wait=soon")
		if status != 400 || !strings.Contains(string(body), "Prefer") {
			t.Errorf("a bad header is answered with %d %s", status, body)
		}
	})
}

// TestRunLater asks for an answer at once; the same request with the job's id gets the picture when there is one.
func TestRunLater(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		for _, prefer := range []string{"respond-async", "wait=0", "handling=lenient, Respond-Async"} {
			status, body, head := d.ask("POST", "/patchbay/run/slow", `{"image": "a.png"}`, "Prefer", prefer)
			job, _ := decoded(t, body).(map[string]any)["job"].(string)
			if status != 202 || job == "" || head.Get("Location") != "/api/jobs/"+job || head.Get("Patchbay-Job") != job {
				t.Fatalf("%s is answered with %d %s %v", prefer, status, body, head)
			}
			if s, _, _ := d.ask("POST", head.Get("Location")+"/cancel", nil); s != 200 {
				t.Errorf("cancelled with status %d", s)
			}
			status, body, _ = d.ask("POST", "/patchbay/run/slow?id="+job, `{"image": "a.png"}`)
			if status != 499 || !strings.Contains(string(body), `"cancelled"`) {
				t.Errorf("a job that was cancelled is answered with %d %s", status, body)
			}
		}
		for range 2 { // sending again is the same job
			status, body, head := d.ask("POST", "/patchbay/run/shot?id=twice&priority=low", `{"bytes": 7}`)
			if status != 200 || len(body) != 7 || head.Get("Patchbay-Job") != "twice" {
				t.Errorf("job twice is answered with %d %q", status, body)
			}
		}
		if status, _, _ := d.ask("POST", "/patchbay/run/shot?id=twice", `{"bytes": 8}`); status != 409 {
			t.Errorf("another request with the id is answered with %d", status)
		}
		if rec, err := d.jobs.Get("twice"); err != nil || rec.Priority != "low" {
			t.Errorf("its record is %+v, %v", rec, err)
		}
	})
}

// TestClientGone closes connections while jobs run: one is cancelled, unless the client has named it and may come back.
func TestClientGone(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		start := func(query string) (job string, hangUp func()) {
			ctx, stop := context.WithCancel(wiretest.Context(t))
			q, err := http.NewRequestWithContext(ctx, "POST", d.Name()+"/patchbay/run/slow"+query,
				strings.NewReader(`{"image": "a.png"}`))
			if err != nil {
				t.Fatal(err)
			}
			before := len(d.jobs.Select(func(*message.Record, bool) bool { return true }))
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := d.http.Do(q); err == nil {
					_ = resp.Body.Close()
				}
			}()
			for ctx.Err() == nil {
				select {
				case <-done:
					t.Fatal("the request has ended")
				default:
				}
				list := d.jobs.Select(func(r *message.Record, _ bool) bool { return r.State == message.Running })
				if all := d.jobs.Select(func(*message.Record, bool) bool { return true }); len(all) > before && len(list) == 1 {
					return list[0].Job, func() { stop(); <-done }
				}
			}
			t.Fatal("no job has begun")
			return "", nil
		}
		job, hangUp := start("")
		hangUp()
		ipctest.WaitState(t, d.jobs, job, message.Cancelled)
		job, hangUp = start("?id=named")
		hangUp()
		// its answer is still waited for when a later request is answered
		status, _, _ := d.ask("POST", "/patchbay/run/shot?id=later&priority=high", `{}`, "Prefer", "respond-async")
		if status != 202 {
			t.Errorf("status %d", status)
		}
		if rec, err := d.jobs.Get(job); err != nil || rec.State != message.Running || job != "named" {
			t.Errorf("job %s is %+v (%v), want it running", job, rec, err)
		}
		if s, _, _ := d.ask("POST", "/api/jobs/named/cancel", nil); s != 200 {
			t.Errorf("cancelled with status %d", s)
		}
	})
}

// TestFilesOfForms checks which bytes a job gets for a picture in a form, in a data: URL and in the input folder.
func TestFilesOfForms(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		body, kind := form(t, "image", "@\x89PNG\r\n\x1a\n1")
		for _, c := range []struct{ body, kind, name, want string }{
			{body, kind, "patchbay-image.png", "\x89PNG\r\n\x1a\n1"},
			{`{"image": "data:image/jpeg;base64,/9j/4AAQ"}`, "", "patchbay-image.jpg", "\xff\xd8\xff\xe0\x00\x10"},
			{`{"image": "a.png"}`, "", "a.png", ""},
		} {
			status, got, head := d.ask("POST", "/patchbay/run/slow", c.body, "Content-Type", c.kind, "Prefer", "respond-async")
			if status != 202 {
				t.Fatalf("%d %s", status, got)
			}
			req := d.request(head.Get("Patchbay-Job"))
			w, fail := message.ParseWorkflow(req.Workflow)
			if fail != nil {
				t.Fatal(fail)
			}
			if name, _ := w.Input("2", "image"); name != c.name || string(req.Inputs[c.name]) != c.want {
				t.Errorf("the picture is %v: %q, want %s: %q", name, req.Inputs, c.name, c.want)
			}
			d.ask("POST", "/api/jobs/"+head.Get("Patchbay-Job")+"/cancel", nil)
		}
	})
}
