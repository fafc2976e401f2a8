package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"patchbay/ipc/rights"
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
	status, got, _ := d.send(method, path, body, func(q *http.Request) {
		q.Header.Set("Authorization", "Bearer "+d.token)
	})
	var err error
	if out != nil {
		err = json.Unmarshal(got, out)
	}
	if err != nil || status != http.StatusOK {
		d.t.Fatalf("%s %s: %v, %d %.500s", method, path, err, status, got)
	}
}

// address returns HOST:PORT.
func (d *httpDoor) address() string {
	d.t.Helper()
	var now struct{ HTTP string }
	b, err := os.ReadFile(filepath.Join(d.Store, "daemon.json"))
	if err == nil {
		err = json.Unmarshal(b, &now)
	}
	if err != nil || now.HTTP == "" {
		d.t.Fatalf("daemon.json names no address of HTTP: %v in %s", err, b)
	}
	return now.HTTP
}

// send sends a request, to which login adds who sends it, and returns status, body and header of the answer.
func (d *httpDoor) send(method, path string, body any, login func(*http.Request)) (int, []byte, http.Header) {
	d.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	q, err := http.NewRequest(method, "http://"+d.address()+path, bytes.NewReader(text))
	if err != nil {
		d.t.Fatal(err)
	}
	login(q)
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, got, resp.Header
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

// TestHTTPUsers gives a daemon a file of users, whose passwords are there in plain and hashed: what each may do is the
// same over HTTP and over NATS, a picture is drawn for a client, and no log or error shows a password. A file that lets
// nobody in over HTTP is refused.
func TestHTTPUsers(t *testing.T) {
	t.Parallel()
	program, dir := harness.Build(t), t.TempDir()
	alice, root := harness.Secret(t, "alice-passw0rd"), harness.Secret(t, "r00t: passw0rd")
	hash, err := bcrypt.GenerateFromPassword([]byte(root), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	_, conf := harness.Try(t, program, nil, "serve", "--print-permissions=client=alice,admin=root")
	conf = strings.Replace(conf, "$"+rights.PasswordVariable("root"), fmt.Sprintf("%q", hash), 1)
	users := filepath.Join(dir, "users.conf")
	if err := os.WriteFile(users, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.Start(t, program, rights.PasswordVariable("alice")+"="+alice+` exec "$@"`, "--listen", "127.0.0.1:0",
		"--http", "0.0.0.0:0", "--users-file", users)
	d := &httpDoor{Server: s, t: t}
	as := func(name, password string) func(*http.Request) {
		return func(q *http.Request) { q.SetBasicAuth(name, password) }
	}
	nobody := func(*http.Request) {}
	for _, c := range []struct {
		method, path string
		login        func(*http.Request)
		want         int
	}{
		{"GET", "/queue", nobody, 401},
		{"GET", "/queue", as("alice", root), 401},
		{"GET", "/queue", as("root", string(hash)), 401},
		{"GET", "/queue", as("alice", alice), 200},
		{"GET", "/queue", as("root", root), 200},
		{"POST", "/free", as("alice", alice), 403},
		{"POST", "/history", as("alice", alice), 403},
		{"POST", "/patchbay/pause", as("alice", alice), 403},
		{"POST", "/free", as("root", root), 200},
	} {
		status, body, head := d.send(c.method, c.path, map[string]any{}, c.login)
		if status != c.want || (status == 401) != strings.HasPrefix(head.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s %s: %d %v, want %d (%.500s)", c.method, c.path, status, head["Www-Authenticate"], c.want, body)
		}
	}
	for login, may := range map[string]bool{"alice:" + alice: false, "root:" + url.PathEscape(root): true} {
		code, out := harness.Try(t, program, nil, "free", "--nats", "nats://"+login+"@"+strings.TrimPrefix(s.URL, "nats://"))
		if (code == 0) != may {
			t.Errorf("free over NATS as %.5s: %d\n%s", login, code, out)
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	socket := "ws://" + d.address() + "/ws?clientId=me"
	//nolint:bodyclose // Dial closes it
	if _, _, err := websocket.Dial(ctx, socket, nil); err == nil {
		t.Error("a socket was opened without a password")
	}
	q := &http.Request{Header: http.Header{}}
	q.SetBasicAuth("alice", alice)
	//nolint:bodyclose // as above
	conn, _, err := websocket.Dial(ctx, socket, &websocket.DialOptions{HTTPHeader: q.Header})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	graph := map[string]any{
		"1": map[string]any{"class_type": "EmptyImage", "inputs": map[string]any{
			"width": 64, "height": 64, "batch_size": 1, "color": 7,
		}},
		"9": map[string]any{"class_type": "SaveImage", "inputs": map[string]any{
			"filename_prefix": "users", "images": []any{"1", 0},
		}},
	}
	status, body, _ := d.send("POST", "/prompt", map[string]any{"prompt": graph, "client_id": "me"}, as("alice", alice))
	if status != http.StatusOK {
		t.Fatalf("POST /prompt: %d %s", status, body)
	}
	for over := false; !over; {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		over = strings.Contains(string(b), `"execution_success"`)
	}
	status, body, _ = d.send("GET", "/view?filename=users_00001_.png", nil, as("root", root))
	if status != http.StatusOK || !bytes.HasPrefix(body, []byte("\x89PNG")) {
		t.Errorf("the picture of the client: %d %.100q", status, body)
	}

	_, key := keyPair(t, dir, "user.nk", nkeys.CreateUser)
	if err := os.WriteFile(users, []byte("authorization { users: [ { nkey: "+key+" } ] }"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := harness.Try(t, program, nil, "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--users-file",
		users, "--store", t.TempDir(), "--socket", "off", "--models", harness.DemoModels(t))
	if code != 2 || !strings.Contains(out, "no user in it has a password") {
		t.Errorf("a file of users without passwords: %d\n%s", code, out)
	}
}
