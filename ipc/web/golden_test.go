package web

import (
	"bytes"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"patchbay/tests/bubble"
	"patchbay/tests/golden"
)

// recorded is one request to a ComfyUI 0.33.0 with its answer.
type recorded struct {
	Note      string
	Method    string
	Path      string
	Body      json.RawMessage    `json:"json_body"`
	Raw       *string            `json:"raw_body"`
	Multipart map[string]*string `json:"multipart"`
	Case      string
	Response  struct {
		Status      int
		ContentType *string `json:"content_type"`
		JSON        any     `json:"json"`
		Bytes       int
		Disposition string `json:"content_disposition"`
	}
}

// form returns the multipart body of a recorded upload. Its picture differs where the case says so.
func (r *recorded) form(t *testing.T) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for name, value := range r.Multipart {
		switch {
		case value == nil:
		case name == "image":
			part, err := w.CreateFormFile("image", *value)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = part.Write([]byte("picture of the case " + r.Case))
		default:
			if err := w.WriteField(name, *value); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), w.FormDataContentType()
}

// TestAnswersAsRecorded compares statuses, and bodies in JSON, with those of a ComfyUI 0.33.0 for requests that need no
// job of the recording.
func TestAnswersAsRecorded(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		files := map[string]string{"output": "golden_00001_.png", "input": "example.png", "output/sub/dir": "cnt_00001_.png"}
		picture, err := os.ReadFile(golden.Path("server/golden_00001_.png"))
		if err != nil {
			t.Fatal(err)
		}
		for dir, name := range files {
			dir = filepath.Join(filepath.Dir(d.cfg.Roots.Output), dir)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), picture, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var http1 struct{ Requests []recorded }
		var http2 struct{ Steps []recorded }
		if err := golden.JSON("server/http.json", &http1); err != nil {
			t.Fatal(err)
		}
		if err := golden.JSON("server/jobs.json", &http2); err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, r := range append(http1.Requests, http2.Steps...) {
			if r.Method == "" || ofItsJobs(&r) {
				continue
			}
			compared++
			d.compare(t, &r)
		}
		if compared < 75 {
			t.Errorf("compared %d answers, want 75 or more", compared)
		}
		t.Logf("%d answers compared", compared)
	})
}

// ofItsJobs reports whether an answer is about jobs, models or classes that the recorded server had.
func ofItsJobs(r *recorded) bool {
	for _, start := range []string{"/models", "/node_replacements", "/api/assets", "/api/tags", "/prompt"} {
		if strings.HasPrefix(r.Path, start) && (r.Method == "POST" || start != "/prompt") {
			return true
		}
	}
	if strings.HasPrefix(r.Path, "/api/api/") || strings.HasPrefix(r.Path, "/embeddings") {
		return true
	}
	text, _ := json.Marshal(r.Response.JSON)
	return strings.Contains(string(text), "00000000-0000-4000-8000") && r.Response.Status == http.StatusOK ||
		strings.Contains(string(text), `"cancelled":true`) || strings.Contains(string(text), `"total"`)
}

// changed are the answers that differ, which docs/http.md lists, by method and path.
var changed = map[string]int{
	// a path with another method than its own is 405, one that is not there is 404
	"GET /api/jobs/00000000-0000-4000-8000-000000000105/cancel <empty>": 405,
	"POST /jobs/00000000-0000-4000-8000-000000000105/cancel <empty>":    404,
	"POST /queue <empty>": 400, "POST /history <empty>": 400, "POST /upload/image unknown type": 400,
}

func (d *door) compare(t *testing.T, r *recorded) {
	t.Helper()
	var body any
	var header []string
	switch {
	case r.Multipart != nil:
		text, kind := r.form(t)
		body, header = text, []string{"Content-Type", kind}
	case r.Raw != nil:
		body = *r.Raw
	case r.Body != nil:
		body = string(r.Body)
	}
	status, got, head := d.ask(r.Method, r.Path, body, header...)
	want := r.Response.Status
	for _, name := range []string{r.Method + " " + r.Path + " <empty>", r.Method + " " + r.Path + " " + r.Case} {
		if s, ok := changed[name]; ok && (body == nil || r.Case != "") {
			want = s
		}
	}
	if status != want {
		t.Errorf("%s %s %s: status %d, want %d (%s)", r.Method, r.Path, r.Case, status, want, got)
		return
	}
	if r.Response.JSON != nil && want == r.Response.Status && !reflect.DeepEqual(decoded(t, got), r.Response.JSON) {
		t.Errorf("%s %s %s: %s, want %v", r.Method, r.Path, r.Case, got, r.Response.JSON)
	}
	kind := head.Get("Content-Type")
	if r.Response.ContentType != nil && want < 400 && kind != *r.Response.ContentType &&
		!strings.Contains(r.Path, "preview=webp") { // JPEG here
		t.Errorf("%s %s: Content-Type %q, want %q", r.Method, r.Path, kind, *r.Response.ContentType)
	}
	if r.Response.Disposition != "" && head.Get("Content-Disposition") != r.Response.Disposition {
		t.Errorf("%s %s: Content-Disposition %q, want %q", r.Method, r.Path, head.Get("Content-Disposition"),
			r.Response.Disposition)
	}
}
