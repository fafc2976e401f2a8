package web

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/tests/bubble"
)

// write writes files below a folder.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEditor serves a folder as the editor: its page at /, its files, scripts and templates that can run, nothing
// outside, and nothing in place of the API.
func TestEditor(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		top := t.TempDir()
		write(t, top, map[string]string{
			"secret.js": "secret", "static/index.html": "<h1>editor</h1>", "static/assets/a-1.js": "a()", "static/m.css": "b{}",
			"static/extensions/core/x.js": "x()", "static/extensions/core/x.txt": "no script", "static/queue": "not the API",
			"templates/index.json": `[{"title": "A", "templates": [{"name": "good"}, {"name": "other"}, {"name": "gone"}]},
				{"title": "B", "templates": [{"name": "other"}]}]`,
			"templates/good.json":   `{"nodes": [{"id": 1, "type": "Wait", "mode": 0}], "links": []}`,
			"templates/other.json":  `{"nodes": [{"id": 1, "type": "NoSuchClass", "mode": 0}], "links": []}`,
			"templates/good-1.webp": "picture",
		})
		for link, to := range map[string]string{"static/link.js": "../secret.js", "static/up": ".."} {
			if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
				t.Fatal(err)
			}
		}
		d := newDoor(t, func(c *Config) {
			c.Frontend, c.FrontendTemplates = filepath.Join(top, "static"), []string{filepath.Join(top, "templates")}
		})
		for _, c := range []struct{ path, text, kind string }{
			{"/", "<h1>editor</h1>", "text/html; charset=utf-8"},
			{"/index.html", "<h1>editor</h1>", "text/html; charset=utf-8"},
			{"/assets/a-1.js", "a()", "text/javascript; charset=utf-8"},
			{"/m.css", "b{}", "text/css; charset=utf-8"},
			{"/extensions/core/x.js", "x()", "text/javascript; charset=utf-8"},
		} {
			status, body, head := d.ask("GET", c.path, nil)
			if status != 200 || string(body) != c.text || head.Get("Content-Type") != c.kind {
				t.Errorf("GET %s: %d %q as %s", c.path, status, body, head.Get("Content-Type"))
			}
			policy := head.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'self'") || strings.Contains(policy, "http") ||
				strings.Contains(policy, "*") || !strings.Contains(policy, "connect-src 'self'") {
				t.Errorf("GET %s: the page may ask others: %s", c.path, policy)
			}
		}
		for _, path := range []string{
			"/secret.js", "/../secret.js", "/%2e%2e/secret.js", "/..%2fsecret.js", "/link.js", "/up/secret.js", "/none",
			"/assets", "/templates/..%2fsecret.js", "/templates/index.de.json", "/assets%2f..%2f..%2fsecret.js",
		} {
			if status, body, _ := d.ask("GET", path, nil); status == 200 || strings.Contains(string(body), "secret") {
				t.Errorf("GET %s: %d %s", path, status, body)
			}
		}
		if list := d.get("/extensions").([]any); !slices.Equal(list, []any{"/extensions/core/x.js"}) {
			t.Errorf("scripts %v", list)
		}
		index := d.get("/templates/index.json").([]any)
		if len(index) != 1 {
			t.Fatalf("templates %v", index)
		}
		group := index[0].(map[string]any)
		if list := group["templates"].([]any); group["title"] != "A" || len(list) != 1 ||
			list[0].(map[string]any)["name"] != "good" {
			t.Errorf("templates %v", index)
		}
		if status, body, _ := d.ask("GET", "/templates/good-1.webp", nil); status != 200 || string(body) != "picture" {
			t.Errorf("a picture of a template: %d %s", status, body)
		}
		if _, ok := d.get("/queue").(map[string]any)["queue_running"]; !ok {
			t.Error("a file of the editor is in place of the API")
		}
		links := 0
		for _, e := range d.page("/patchbay").elements {
			for _, a := range e.Attr {
				if e.Name.Local == "a" && a.Value == "/" {
					links++
				}
			}
		}
		if links != 1 {
			t.Errorf("the page has %d links to the editor", links)
		}
		plain := newDoor(t, nil)
		if _, body, _ := plain.ask("GET", "/", nil); !strings.Contains(string(body), `href="/patchbay"`) {
			t.Errorf("the page at / does not lead to /patchbay: %s", body)
		}
		if list := plain.get("/templates/index.json").([]any); len(list) != 0 {
			t.Errorf("without a package there are the templates %v", list)
		}
	})
}

// TestUserdata does with files and settings of the editor what ComfyUI's own tests of them do, and tries to leave their
// folder.
func TestUserdata(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		top := t.TempDir()
		d := newDoor(t, func(c *Config) { c.Users = filepath.Join(top, "users") })
		files := filepath.Join(top, "users", "default")
		for i, c := range []struct {
			method, path, body string
			status             int
			want               string // in the answer
		}{
			{"GET", "/users", "", 200, `"migrated":false`},
			{"POST", "/users", `{"username": "__system"}`, 400, `{"error":"users are those`},
			{"GET", "/settings", "", 200, `{}`},
			{"GET", "/userdata?dir=workflows", "", 404, ""},
			{"GET", "/userdata", "", 400, ""},
			{"GET", "/v2/userdata", "", 200, `[]`},
			{"POST", "/settings", `{"a.b": 1, "c": [true]}`, 200, ""},
			{"POST", "/api/settings/x.y", `"z"`, 200, ""},
			{"GET", "/settings", "", 200, `{"a.b":1,"c":[true],"x.y":"z"}`},
			{"GET", "/settings/x.y", "", 200, `"z"`},
			{"GET", "/settings/none", "", 200, `null`},
			{"POST", "/settings", `[1]`, 400, "bad_request"},
			{"POST", "/settings", `{`, 400, "bad_request"},
			{"POST", "/settings/a", ``, 400, "bad_request"},
			{"GET", "/users", "", 200, `"migrated":true`},
			{"POST", "/userdata/workflows%2Fa.json", "one", 200, `"workflows/a.json"`},
			{"POST", "/api/userdata/workflows%2Fa.json?overwrite=false&full_info=true", "two", 409, ""},
			{"GET", "/userdata/workflows%2Fa.json", "", 200, "one"},
			{"POST", "/userdata/workflows%2Fsub%2Fb.json?overwrite=false&full_info=true", "three", 200, `"size":5`},
			{"GET", "/userdata?dir=workflows", "", 200, `["a.json"]`},
			{"GET", "/userdata?dir=workflows&recurse=true", "", 200, `["a.json","sub/b.json"]`},
			{"GET", "/userdata?dir=workflows&recurse=true&split=true", "", 200, `["sub/b.json","sub","b.json"]`},
			{"GET", "/userdata?dir=workflows&recurse=true&split=false&full_info=true", "", 200, `"path":"sub/b.json","size":5,`},
			{"GET", "/v2/userdata?path=workflows", "", 200, `{"name":"sub","path":"workflows/sub","type":"directory"}`},
			{"GET", "/v2/userdata?path=none", "", 404, ""},
			{"POST", "/userdata/workflows%2Fa.json/move/workflows%2Fsub%2Fb.json?overwrite=false", "", 409, ""},
			{"POST", "/userdata/workflows%2Fa.json/move/new%2Fc.json", "", 200, `"new/c.json"`},
			{"POST", "/userdata/none/move/c.json", "", 404, ""},
			{"GET", "/userdata/new%2Fc.json", "", 200, "one"},
			{"DELETE", "/userdata/new%2Fc.json", "", 204, ""},
			{"DELETE", "/userdata/new%2Fc.json", "", 404, ""},
			{"DELETE", "/userdata/new", "", 404, ""}, // a folder
			{"POST", "/userdata/workflows", "x", 400, ""},
			{"POST", "/userdata/workflows%2Fsub%2Fb.json%2Fc", "x", 400, ""},
			{"POST", "/userdata/page.html", "<script>", 200, ""},
			{"GET", "/userdata/..%2F..%2Fsecret", "", 403, ""},
			{"GET", "/userdata/%2Fetc%2Fpasswd", "", 403, ""},
			{"GET", "/userdata/a%2F..%2F..%2F..%2Fsecret", "", 403, ""},
			{"GET", "/userdata/..%5C..%5Csecret", "", 403, ""},
			{"GET", "/userdata/link", "", 404, ""},
			{"GET", "/userdata/up%2Fsecret", "", 404, ""},
			{"POST", "/userdata/up%2Fnew", "x", 400, ""},
			{"POST", "/userdata/..%2Fnew", "x", 403, ""},
			{"POST", "/userdata/page.html/move/..%2Fnew", "", 403, ""},
			{"POST", "/userdata/page.html/move/up%2Fnew", "", 400, ""},
			{"GET", "/userdata?dir=..", "", 403, ""},
			{"GET", "/userdata?dir=up", "", 404, ""},
			{"GET", "/v2/userdata?path=..", "", 400, ""},
			{"GET", "/userdata/a%00b", "", 403, ""},
		} {
			if i == 15 { // the folder is there by now
				if err := os.WriteFile(filepath.Join(top, "secret"), []byte("secret"), 0o600); err != nil {
					t.Fatal(err)
				}
				for link, to := range map[string]string{"link": "../../secret", "up": "../.."} {
					if err := os.Symlink(to, filepath.Join(files, link)); err != nil {
						t.Fatal(err)
					}
				}
			}
			status, body, head := d.ask(c.method, c.path, c.body)
			if status != c.status || !strings.Contains(string(body), c.want) || strings.Contains(string(body), "secret") {
				t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, status, body, c.status, c.want)
			}
			if c.method == "GET" && strings.HasPrefix(c.path, "/userdata/") && status == 200 &&
				head.Get("Content-Disposition") != "attachment" {
				t.Errorf("%s is shown in the page's origin", c.path)
			}
		}
		if _, _, head := d.ask("GET", "/userdata/page.html", nil); head.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("a page of a user is sent as %s", head.Get("Content-Type"))
		}
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) != 2 {
			t.Errorf("something was written outside: %v %v", entries, err)
		}
		if status, _, _ := newDoor(t, nil).ask("POST", "/userdata/a", "x"); status != http.StatusNotFound {
			t.Errorf("without a folder: %d", status)
		}
	})
}

// TestWhatTheEditorAsks fetches what has no use here, but must be there.
func TestWhatTheEditorAsks(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		for _, path := range []string{"/i18n", "/global_subgraphs", "/node_replacements", "/workflow_templates"} {
			if got, ok := d.get("/api" + path).(map[string]any); !ok || len(got) != 0 {
				t.Errorf("%s: %v", path, got)
			}
		}
		if log, ok := d.get("/internal/logs").(string); !ok || !strings.Contains(log, "Patchbay") {
			t.Errorf("log %q", log)
		}
		raw := d.get("/internal/logs/raw").(map[string]any)
		if len(raw["entries"].([]any)) != 1 || raw["size"].(map[string]any)["cols"] == nil {
			t.Errorf("log %v", raw)
		}
		for body, want := range map[string]int{`{"clientId": "a", "enabled": true}`: 200, `{`: 400} {
			if status, _, _ := d.ask("PATCH", "/internal/logs/subscribe", body); status != want {
				t.Errorf("subscribe %s: %d", body, status)
			}
		}
		write(t, d.cfg.Roots.Output, map[string]string{"a.png": "a", ".hidden": "b"})
		if list := d.get("/internal/files/output").([]any); len(list) != 1 || list[0] != "a.png [output]" {
			t.Errorf("files %v", list)
		}
		if status, _, _ := d.ask("GET", "/internal/files/models", nil); status != 400 {
			t.Errorf("another folder: %d", status)
		}
	})
}
