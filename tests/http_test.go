package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"patchbay/tests/harness"
)

// httpDoor is ComfyUI's HTTP API of a daemon.
type httpDoor struct {
	*harness.Server
	t     *testing.T
	token string
}

// ask sends a request and decodes the answer in JSON into out, unless that is nil.
func (d *httpDoor) ask(method, path string, body, out any) {
	d.t.Helper()
	var now struct{ HTTP string }
	b, err := os.ReadFile(filepath.Join(d.Store, "daemon.json"))
	if err == nil {
		err = json.Unmarshal(b, &now)
	}
	if err != nil || now.HTTP == "" {
		d.t.Fatalf("daemon.json names no address of HTTP: %v in %s", err, b)
	}
	text, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	q, err := http.NewRequest(method, "http://"+now.HTTP+path, bytes.NewReader(text))
	if err != nil {
		d.t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err == nil && out != nil {
		err = json.Unmarshal(got, out)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		d.t.Fatalf("%s %s: %v, %d %.500s", method, path, err, resp.StatusCode, got)
	}
}

// TestHTTPOutlivesKills sends jobs over ComfyUI's HTTP API and kills the daemon twice while they run: each is in the
// history once, with what it asked for and its picture, and the token is in no log. The tests of ipc/web compare the
// answers themselves with recorded ones.
func TestHTTPOutlivesKills(t *testing.T) {
	t.Parallel()
	token := harness.Secret(t, "a-token-of-http-0123456789")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, harness.Build(t), "", "--http", "127.0.0.1:0", "--http-token-file", file)
	d := &httpDoor{s, t, token}
	jobs := 30
	if testing.Short() {
		jobs = 9
	}
	colors := map[string]float64{}
	for i := range jobs {
		graph := map[string]any{
			"1": map[string]any{"class_type": "EmptyImage", "inputs": map[string]any{
				"width": 512, "height": 512, "batch_size": 1, "color": 1000 + i,
			}},
			"9": map[string]any{"class_type": "SaveImage", "inputs": map[string]any{
				"filename_prefix": "storm", "images": []any{"1", 0},
			}},
		}
		var made struct {
			ID string `json:"prompt_id"`
		}
		d.ask("POST", "/prompt?patchbay_token="+token, map[string]any{"prompt": graph, "client_id": "storm"}, &made)
		colors[made.ID] = float64(1000 + i)
		if i%(jobs/2) == jobs/3 {
			s.Kill()
			s.Launch()
		}
	}
	type past struct {
		Prompt  []any
		Outputs map[string]map[string][]map[string]string
		Status  struct {
			Text string `json:"status_str"`
		}
	}
	var all map[string]past
	for end := time.Now().Add(harness.Patience); ; time.Sleep(50 * time.Millisecond) {
		var queue struct {
			Info struct {
				Remaining int `json:"queue_remaining"`
			} `json:"exec_info"`
		}
		if d.ask("GET", "/prompt", nil, &queue); queue.Info.Remaining == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d jobs remain", queue.Info.Remaining)
		}
	}
	s.Kill()
	s.Launch()
	d.ask("GET", "/history", nil, &all)
	if len(all) != jobs {
		t.Errorf("the history has %d jobs, want %d", len(all), jobs)
	}
	names := map[string]bool{}
	for id, p := range all {
		first, _ := p.Prompt[2].(map[string]any)["1"].(map[string]any)
		inputs, _ := first["inputs"].(map[string]any)
		if inputs["color"] != colors[id] || p.Status.Text != "success" || len(p.Outputs["9"]["images"]) != 1 {
			t.Fatalf("the history of job %s, which asked for color %v, is %+v", id, colors[id], p)
		}
		name := p.Outputs["9"]["images"][0]["filename"]
		names[name] = true
		d.ask("GET", "/view?filename="+name, nil, nil)
	}
	files, err := filepath.Glob(filepath.Join(s.Out, "storm_*"))
	if err != nil || len(names) != jobs || len(files) != jobs {
		t.Errorf("%d names of pictures and %d files (%v), want %d", len(names), len(files), err, jobs)
	}
	var queue map[string][]any
	d.ask("GET", "/queue", nil, &queue)
	if fmt.Sprint(queue) != "map[queue_pending:[] queue_running:[]]" {
		t.Errorf("the queue is %v", queue)
	}
}
