package web

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"patchbay/tests/bubble"
)

var update = flag.Bool("update", false, "write the list of routes in docs/http.md")

// TestRoutesAreListed keeps the list in docs/http.md equal to the table of routes: -update writes it.
func TestRoutesAreListed(t *testing.T) {
	const page, begin, end = "../../docs/http.md", "<!-- routes -->\n", "<!-- /routes -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("docs/http.md has no markers for the list of routes")
	}
	var b strings.Builder
	for _, r := range (&HTTP{}).routes() {
		path := r.path
		if r.onlyAPI {
			path = "/api" + path
		}
		line := fmt.Sprintf("- %s %s: %s\n", r.method, shownPath(path), r.about)
		if len(line) > 121 {
			t.Errorf("%s is too long for a line", line)
		}
		b.WriteString(line)
	}
	want := head + begin + b.String() + end + tail
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatal("the list in docs/http.md is not that of the routes: run go test ./ipc/web -run Listed -update")
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestOpenAPI reads /openapi.yaml, and asks for every path in it that needs no more than a GET.
func TestOpenAPI(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		_, text, _ := d.ask("GET", "/openapi.yaml", nil)
		var doc struct {
			OpenAPI string
			Paths   map[string]map[string]struct {
				Summary    string
				Responses  map[string]any
				Parameters []any
			}
		}
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		operations := 0
		for path, methods := range doc.Paths {
			for method, o := range methods {
				operations++
				if o.Summary == "" || len(o.Responses) == 0 || (len(o.Parameters) > 0) != strings.Contains(path, "{") {
					t.Errorf("%s %s is described by %+v", method, path, o)
				}
				if method != "get" || strings.Contains(path, "{") || strings.HasSuffix(path, "/ws") ||
					strings.HasSuffix(path, "/view") || path == "/userdata" || path == "/api/userdata" || path == "/metrics" ||
					path == "/healthz" || path == "/patchbay/events" {
					continue
				}
				if status, body, _ := d.ask("GET", path, nil); status != 200 {
					t.Errorf("GET %s: %d %s", path, status, body)
				}
			}
		}
		if operations < 45 {
			t.Errorf("%d operations, want 45 or more", operations)
		}
	})
}
