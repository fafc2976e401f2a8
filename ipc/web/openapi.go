package web

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"patchbay/node/graph"
)

// parameter finds the parameters in the path of a row.
var parameter = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// openAPI describes the routes as an OpenAPI 3.1 document, written from their table.
func (h *HTTP) openAPI(w http.ResponseWriter, _ *http.Request) error {
	var b strings.Builder
	fmt.Fprintf(&b, "openapi: 3.1.0\ninfo:\n  title: Patchbay\n  version: %q\n  description: %q\npaths:\n",
		h.cfg.Stats().Version, "ComfyUI "+graph.Compat+"'s HTTP API")
	written := map[string]bool{}
	rows := h.routes()
	for i := range rows {
		for _, path := range rows[i].paths() {
			name := shownPath(path)
			if written[name] {
				continue
			}
			written[name] = true
			fmt.Fprintf(&b, "  %q:\n", name)
			for _, same := range rows {
				for _, other := range same.paths() {
					if shownPath(other) == name {
						operation(&b, &same, other)
					}
				}
			}
		}
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write([]byte(b.String()))
	return nil
}

func shownPath(path string) string {
	return parameter.ReplaceAllString(strings.TrimSuffix(path, "{$}"), "{$1}")
}

func operation(b *strings.Builder, r *route, path string) {
	fmt.Fprintf(b, "    %s:\n      summary: %q\n", strings.ToLower(r.method), r.about)
	if names := parameter.FindAllStringSubmatch(path, -1); len(names) > 0 {
		b.WriteString("      parameters:\n")
		for _, n := range names {
			fmt.Fprintf(b, "        - {name: %s, in: path, required: true, schema: {type: string}}\n", n[1])
		}
	}
	b.WriteString("      responses:\n        \"200\": {description: the answer}\n")
	b.WriteString("        default: {description: an error}\n")
}
