package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Scrape reads /metrics as Prometheus does: one number for every name with its labels.
func (s *Server) Scrape() map[string]float64 {
	s.T.Helper()
	code, body := s.Look("/metrics")
	if code != http.StatusOK {
		s.T.Fatalf("/metrics: %d\n%s", code, body)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok {
			name, value, ok = strings.Cut(lines.Text(), " ")
		} else {
			name += "}"
		}
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.T.Fatalf("line %q: %v", lines.Text(), err)
		}
		out[name] = v
	}
	return out
}

// Look requests a path from the daemon's metrics server and returns the status and the body.
func (s *Server) Look(path string) (int, string) {
	s.T.Helper()
	var file struct{ Metrics string }
	b, err := os.ReadFile(filepath.Join(s.Store, "daemon.json"))
	if err == nil {
		err = json.Unmarshal(b, &file)
	}
	if err != nil {
		s.T.Fatal(err)
	}
	r, err := http.Get("http://" + file.Metrics + path)
	if err != nil {
		s.T.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		s.T.Fatal(err)
	}
	watch(string(text))
	return r.StatusCode, string(text)
}

// Logged waits for a line of the log that holds all of these.
func (s *Server) Logged(message string, parts ...string) {
	s.T.Helper()
	s.Until(fmt.Sprintf("the log has %q with %q", message, parts), func() bool {
		for line := range strings.Lines(s.Log.String()) {
			all := strings.Contains(line, `"message":"`+message+`"`)
			for _, p := range parts {
				all = all && strings.Contains(line, p)
			}
			if all {
				return true
			}
		}
		return false
	})
}
