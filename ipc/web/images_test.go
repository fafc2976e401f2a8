package web

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// answer is a body of OpenAI's API.
type answer struct {
	Data []struct {
		B64 string `json:"b64_json"`
		URL string `json:"url"`
		ID  string `json:"id"`
	}
	Error struct {
		Message, Type string
		Param, Code   any
	}
}

func (d *door) openAI(method, path string, body any, header ...string) (int, answer, http.Header) {
	d.t.Helper()
	status, b, head := d.ask(method, path, body, header...)
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		d.t.Fatalf("%v in %d %s", err, status, b)
	}
	return status, a, head
}

// TestImages asks for pictures as OpenAI's clients do, in both forms of the answer.
func TestImages(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		var ids []string
		_, models, _ := d.openAI("GET", "/v1/models", nil)
		for _, m := range models.Data {
			ids = append(ids, m.ID)
		}
		if got := strings.Join(ids, " "); got != "fails shot slow" {
			t.Errorf("the models are %s", got)
		}
		want := messagetest.Picture("2", 10).Data
		status, a, head := d.openAI("POST", "/v1/images/generations",
			`{"model": "shot", "prompt": "a star", "n": 3, "size": "64x32", "user": "me", "quality": "high", "mode": "good"}`)
		if status != 200 || len(a.Data) != 3 {
			t.Fatalf("%d %+v", status, a)
		}
		for _, one := range a.Data {
			if got, err := base64.StdEncoding.DecodeString(one.B64); err != nil || !bytes.Equal(got, want) {
				t.Errorf("a picture is %q (%v)", one.B64, err)
			}
		}
		seeds := map[any]bool{}
		for _, job := range strings.Split(head.Get("Patchbay-Job"), ", ") {
			a, known := d.past.asked(t.Context(), job)
			w, fail := message.ParseWorkflow(string(a.prompt))
			if fail != nil || !known {
				t.Fatalf("%v in %s", fail, a.prompt)
			}
			for name, want := range map[string]any{"text": "a star", "width": int64(64), "height": int64(32), "mode": "good"} {
				if got, _ := w.Input("2", name); got != want {
					t.Errorf("%s of job %s is %v, want %v", name, job, got, want)
				}
			}
			seed, _ := w.Input("2", "seed")
			seeds[seed] = true
		}
		if len(seeds) != 3 || seeds[int64(1)] {
			t.Errorf("the seeds are %v, want three that are not the template's", seeds)
		}
		status, a, _ = d.openAI("POST", "/v1/images/generations",
			`{"model": "shot", "prompt": "a star", "seed": 7, "bytes": 4, "response_format": "url", "size": "auto"}`)
		if status != 200 || len(a.Data) != 1 || !strings.HasPrefix(a.Data[0].URL, d.Name()+"/view?") {
			t.Fatalf("%d %+v", status, a)
		}
		if _, got, head := d.ask("GET", strings.TrimPrefix(a.Data[0].URL, d.Name()), nil); len(got) != 4 ||
			head.Get("Content-Type") != "image/png" {
			t.Errorf("%s is %q", a.Data[0].URL, got)
		}
	})
}

// TestImageErrors compares errors with OpenAI's shape: message, type, param, code.
func TestImageErrors(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		for _, c := range []struct {
			body        string
			status      int
			param, code any
		}{
			{`{"model": "shot"}`, 400, "prompt", "required_input_missing"},
			{`{"model": "nobody", "prompt": "x"}`, 404, "model", "no_such_template"},
			{`{"model": "bad", "prompt": "x"}`, 400, "model", "bad_workflow"},
			{`{"prompt": "x"}`, 400, "model", "required_input_missing"},
			{`{"model": "shot", "prompt": "x", "n": 11}`, 400, "n", "invalid_input_type"},
			{`{"model": "shot", "prompt": "x", "n": "many"}`, 400, "n", "invalid_input_type"},
			{`{"model": "slow", "prompt": "x", "n": 2}`, 400, "n", "bad_request"},
			{`{"model": "slow", "prompt": "x", "size": "64x64"}`, 400, "size", "bad_request"},
			{`{"model": "shot", "prompt": "x", "size": "big"}`, 400, "size", "invalid_input_type"},
			{`{"model": "shot", "prompt": "x", "size": "8x64"}`, 400, "width", "value_smaller_than_min"},
			{`{"model": "shot", "prompt": "x", "response_format": "tiff"}`, 400, "response_format", "value_not_in_list"},
			{`{"model": "shot", "prompt": "x", "output_format": "webp"}`, 400, "output_format", "value_not_in_list"},
			{`{"model": "shot", "prompt": "x", "colour": 1}`, 400, "colour", "bad_request"},
			{
				`{"model": "shot", "prompt": "x", "stream": true, "response_format": "url"}`, 400, "response_format",
				"bad_request",
			},
			{`{"model": "fails", "prompt": "x"}`, 507, nil, "out_of_memory"},
			{`{"model": `, 400, nil, "bad_request"},
		} {
			status, a, _ := d.openAI("POST", "/v1/images/generations", c.body)
			kind := "invalid_request_error"
			if status >= 500 {
				kind = "server_error"
			}
			e := a.Error
			if status != c.status || e.Param != c.param || e.Code != c.code || e.Message == "" || e.Type != kind {
				t.Errorf("%s is answered with %d %+v, want %+v", c.body, status, e, c)
			}
		}
		body, kind := form(t, "model", "slow", "prompt", "x")
		if status, a, _ := d.openAI("POST", "/v1/images/edits", body, "Content-Type", kind); status != 400 ||
			a.Error.Param != "image" {
			t.Errorf("an edit without a picture is answered with %d %+v", status, a)
		}
		closed := newDoor(t, func(c *Config) { c.Token = token })
		status, a, _ := closed.openAI("GET", "/v1/models", nil)
		if status != 401 || a.Error.Code != "invalid_api_key" {
			t.Errorf("without a token: %d %+v", status, a)
		}
		if status, _, _ := closed.openAI("GET", "/v1/models", nil, "Authorization", "Bearer "+token); status != 200 {
			t.Errorf("with the token: %d", status)
		}
	})
}

// TestImageStream reads the events of a stream: previews while the picture is drawn, an error if that fails, or the
// picture.
func TestImageStream(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := served(t)
		stream := func(path, body, kind string, each func(event string, data map[string]any) bool) {
			t.Helper()
			q, err := http.NewRequestWithContext(wiretest.Context(t), "POST", d.Name()+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Content-Type", kind)
			resp, err := d.http.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
				t.Fatalf("%d %v", resp.StatusCode, resp.Header)
			}
			event, lines := "", bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
					event = name
				}
				if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok &&
					!each(event, decoded(t, []byte(text)).(map[string]any)) {
					return
				}
			}
		}
		body, kind := form(t, "model", "slow", "prompt", "x", "stream", "true", "partial_images", "1", "image[]",
			"@\x89PNG\r\n\x1a\n", "mask", "@\x89PNG\r\n\x1a\n")
		var seen []string
		stream("/v1/images/edits", body, kind, func(event string, data map[string]any) bool {
			seen = append(seen, event)
			if event == "image_edit.partial_image" {
				if data["type"] != event || data["b64_json"] != base64.StdEncoding.EncodeToString([]byte("jpeg")) ||
					data["partial_image_index"] != 0.0 || data["output_format"] != "jpeg" {
					t.Errorf("a partial picture is %v", data)
				}
				for _, j := range d.jobs.Select(func(*message.Record, bool) bool { return true }) {
					d.ask("POST", "/api/jobs/"+j.Job+"/cancel", nil)
				}
			}
			if event == "error" && data["error"].(map[string]any)["code"] != "cancelled" {
				t.Errorf("the error is %v", data)
			}
			return true
		})
		if got := strings.Join(seen, " "); got != "image_edit.partial_image error" {
			t.Errorf("the events are %s", got)
		}
		seen = nil
		stream("/v1/images/generations", `{"model": "shot", "prompt": "x", "n": 2, "stream": true}`, "application/json",
			func(event string, data map[string]any) bool {
				seen = append(seen, event)
				got, err := base64.StdEncoding.DecodeString(data["b64_json"].(string))
				if err != nil || !bytes.Equal(got, messagetest.Picture("2", 10).Data) || data["type"] != event {
					t.Errorf("%s: %v", event, data)
				}
				return true
			})
		if got := strings.Join(seen, " "); got != "image_generation.completed image_generation.completed" {
			t.Errorf("the events are %s", got)
		}
	})
}
