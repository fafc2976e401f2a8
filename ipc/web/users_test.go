package web

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"patchbay/ipc/broker"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/rights"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
)

// basic is the header of a user, whose password is in the file of withUsers.
func basic(name string) []string {
	text := base64.StdEncoding.EncodeToString([]byte(name + ":pass of " + name))
	return []string{"Authorization", "Basic " + text}
}

// withUsers reads a file of users as a daemon does: alice is a client, root an admin, gauge may ask for counts alone.
func withUsers(t *testing.T) func(*Config) {
	t.Helper()
	users, err := rights.ParseUsers("client=alice,admin=root")
	if err != nil {
		t.Fatal(err)
	}
	text := rights.ServerConfig(users)
	for _, u := range users {
		text = strings.ReplaceAll(text, "$"+rights.PasswordVariable(u.Name), fmt.Sprintf("%q", "pass of "+u.Name))
	}
	text = strings.Replace(text, "users = [", `users = [
    { user: gauge, password: "pass of gauge", permissions: { publish: "patchbay.v1.stats" } }
    { user: "../up", password: "pass of ../up" }`, 1)
	file := filepath.Join(t.TempDir(), "users.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := broker.StartEmbedded(broker.EmbeddedConfig{Listen: "127.0.0.1:0", Users: file, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	return func(c *Config) { c.Logins = e.Logins() }
}

// TestFoldersOfUsers checks that no two users share a folder, not even with those who are not told apart, and that none
// leads out.
func TestFoldersOfUsers(t *testing.T) {
	users := map[string]string{}
	names := []string{"", "default", "%64efault", "Default", "a b", "a+b", "a%20b", "a/b", ".", "..", "../up", "%2E"}
	for _, name := range names {
		folder := folderOf(name)
		other, taken := users[folder]
		if taken || !filepath.IsLocal(folder) || filepath.Base(folder) != folder || folder == "." {
			t.Errorf("user %q has folder %q, as %q has, or it leads elsewhere", name, folder, other)
		}
		users[folder] = name
	}
	if folderOf("") != "default" {
		t.Errorf("without a user the folder is %q, ComfyUI's is default", folderOf(""))
	}
}

// TestUsersAreLetIn sends requests and opens sockets with and without the password of a user: one that is right and the
// token let in on every route, nothing else does, and the log shows no password.
func TestUsersAreLetIn(t *testing.T) {
	users := withUsers(t)
	bubble.Run(t, func(t *testing.T) {
		var log bytes.Buffer
		logged := func(c *Config) { users(c); c.Log = zerolog.New(&log).Level(zerolog.DebugLevel) }
		d := newDoor(t, logged)
		both := newDoor(t, func(c *Config) { users(c); c.Token = token })
		right := basic("alice")
		for _, c := range []struct {
			d      *door
			path   string
			header []string
			want   int
		}{
			{d, "/queue", right, 200},
			{d, "/queue", []string{right[0], strings.Replace(right[1], "Basic", "basic", 1), "Host", "any.example"}, 200},
			{d, "/queue", append([]string{"Origin", d.Name()}, right...), 200},
			{d, "/queue", append([]string{"Origin", "https://evil.example"}, right...), 403},
			{d, "/queue", append([]string{"Sec-Fetch-Site", "cross-site"}, right...), 403},
			{d, "/healthz", nil, 404}, // there is none, but nobody is asked
			{d, "/queue", []string{"Authorization", "Bearer " + token}, 401},
			{d, "/queue", []string{"Authorization", "Bearer pass of alice"}, 401},
			{d, "/queue?" + cookie + "=" + token, nil, 401},
			{d, "/queue", []string{"Authorization", right[1] + "x"}, 401},
			{d, "/queue", []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"))}, 401},
			{d, "/queue", []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(":"))}, 401},
			{
				d, "/queue", []string{"Authorization", "Basic " +
					base64.StdEncoding.EncodeToString([]byte("alice:pass of root"))}, 401,
			},
			{both, "/queue", right, 200},
			{both, "/queue", []string{"Authorization", "Bearer " + token}, 200},
			{both, "/queue", []string{"Cookie", cookie + "=" + token}, 200},
			{both, "/queue", []string{"Authorization", "Basic " + token}, 401},
			{both, "/queue", basic("nobody"), 401},
		} {
			status, body, head := c.d.ask("GET", c.path, nil, c.header...)
			if status != c.want {
				t.Errorf("GET %s with %v: %d, want %d (%s)", c.path, c.header, status, c.want, body)
			}
			ways := head.Values("WWW-Authenticate")
			if want := map[*door]string{
				d:    `[Basic realm="patchbay", charset="UTF-8"]`,
				both: `[Basic realm="patchbay", charset="UTF-8" Bearer realm="patchbay"]`,
			}[c.d]; (fmt.Sprint(ways) == want) != (status == 401) {
				t.Errorf("status %d of GET %s comes with %v", status, c.path, ways)
			}
		}
		if status, _, _ := d.ask("HEAD", "/healthz", nil); status != 404 {
			t.Errorf("HEAD /healthz: %d, want 404 as GET", status)
		}
		rows := d.routes()
		for i := range rows {
			for _, path := range rows[i].paths() {
				status, body, _ := d.ask(methodOf(&rows[i]), pathOf(path), nil)
				if (status != 401) != rows[i].open {
					t.Errorf("%s %s without a password: %d %s", rows[i].method, path, status, body)
				}
			}
		}
		id := d.postAs("alice", onePicture)
		conn, _, err := d.dial("c", right...)
		if err != nil {
			t.Fatal(err)
		}
		ear := ear{t, conn}
		if heard := types(ear.until(id)); !slices.Contains(heard, "execution_success") {
			t.Errorf("a socket of a user heard %v", heard)
		}
		for _, header := range [][]string{
			nil, basic("nobody"), append([]string{"Origin", "https://evil.example"}, right...),
		} {
			if conn, _, err := d.dial("c", header...); err == nil {
				_ = conn.CloseNow()
				t.Errorf("a socket was opened with %v", header)
			}
		}
		if !strings.Contains(log.String(), "status") || strings.Contains(log.String(), "pass of") ||
			strings.Contains(log.String(), strings.TrimPrefix(right[1], "Basic ")) {
			t.Errorf("the log has no refusals, or a password:\n%s", log.String())
		}
	})
}

// dial opens a socket; the test ends it.
func (d *door) dial(client string, header ...string) (*websocket.Conn, *http.Response, error) {
	head := http.Header{}
	for i := 0; i < len(header); i += 2 {
		head.Set(header[i], header[i+1])
	}
	//nolint:bodyclose // Dial closes it
	conn, resp, err := websocket.Dial(wiretest.Context(d.t), "ws://"+d.Address()+"/ws?clientId="+client,
		&websocket.DialOptions{HTTPClient: d.http, HTTPHeader: head})
	if err == nil {
		conn.SetReadLimit(64 << 20)
		d.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, resp, err
}

// postAs queues a workflow as a user, for the client c.
func (d *door) postAs(name, graph string) string {
	d.t.Helper()
	status, b, _ := d.ask("POST", "/prompt", fmt.Sprintf(`{"client_id": "c", "prompt": %s}`, graph), basic(name)...)
	if status != http.StatusOK {
		d.t.Fatalf("POST /prompt: %d %s", status, b)
	}
	return decoded(d.t, b).(map[string]any)["prompt_id"].(string)
}

// methodOf is the method of a row, without the answers that never end.
func methodOf(r *route) string {
	if r.method == http.MethodGet && !r.open {
		return http.MethodHead
	}
	return r.method
}

// pathOf fills in the parameters of a path.
func pathOf(path string) string {
	return parameter.ReplaceAllString(strings.TrimSuffix(path, "{$}"), "none")
}

// TestUsersHaveTheRightsOfNATS asks for every route as users with different rights. What a client may not do over NATS
// is listed here by hand, as is what every user may do: a new route that is in neither list needs the right to a verb.
func TestUsersHaveTheRightsOfNATS(t *testing.T) {
	users := withUsers(t)
	admin := []string{
		"POST /free", "POST /history", "POST /patchbay/jobs/{id}/move", "POST /patchbay/jobs/{id}/delete",
		"POST /patchbay/pause", "POST /patchbay/resume",
	}
	gauge := []string{"GET /system_stats", "GET /metrics"}
	everybody := []string{
		"GET /{$}", "GET /features", "GET /extensions", "GET /openapi.yaml", "GET /healthz", "GET /patchbay/page.css",
		"GET /patchbay/page.js", "GET /patchbay/icon.svg", "GET /i18n", "GET /workflow_templates", "GET /global_subgraphs",
		"GET /node_replacements", "GET /internal/logs", "GET /internal/logs/raw", "PATCH /internal/logs/subscribe",
		"GET /templates/{file}", "GET /{file...}",
	}
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, func(c *Config) { users(c); c.Frontend = t.TempDir() })
		rows := d.routes()
		for i := range rows {
			r := &rows[i]
			row := r.method + " " + r.path
			for name, may := range map[string]bool{
				"root": true, "alice": !slices.Contains(admin, row),
				"gauge": slices.Contains(gauge, row) || slices.Contains(everybody, row),
			} {
				for _, path := range r.paths() {
					body := map[bool]any{true: "{}"}[r.method == http.MethodPost]
					status, text, _ := d.ask(methodOf(r), pathOf(path), body, basic(name)...)
					if (status != http.StatusForbidden) != may {
						t.Errorf("%s as %s: %d %s, want let in: %v", row, name, status, text, may)
					}
				}
			}
		}
		status, body, _ := d.ask("POST", "/free", `{"unload_models": true}`, basic("alice")...)
		if status != http.StatusForbidden ||
			string(body) != "this needs the right to patchbay.v1.free, which user alice lacks\n" {
			t.Errorf("a client frees: %d %s", status, body)
		}
		status, body, _ = d.ask("POST", "/v1/images/generations", `{}`, basic("gauge")...)
		if status != http.StatusForbidden || !strings.Contains(string(body), `{"error":{"message":"this needs the right to`) {
			t.Errorf("OpenAI's clients are told: %d %s", status, body)
		}
	})
}

// TestUsersSeeAllJobs checks the rule of NATS: a client sees, follows and cancels the jobs of others, but does not take
// away what is there. Jobs count for their user, and the page has the buttons that its reader may press.
func TestUsersSeeAllJobs(t *testing.T) {
	users := withUsers(t)
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, func(c *Config) { users(c); c.Users = t.TempDir() })
		d.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		as := func(name, method, path string, body any, want int) string {
			t.Helper()
			status, text, _ := d.ask(method, path, body, basic(name)...)
			if status != want {
				t.Fatalf("%s %s as %s: %d %s, want %d", method, path, name, status, text, want)
			}
			return string(text)
		}
		done := d.postAs("root", onePicture)
		ipctest.WaitState(t, d.Jobs, done, message.Done)
		d.until(func() bool { return d.find(done).Ended })
		as("root", "POST", "/patchbay/pause", "", http.StatusSeeOther)
		waits := []string{d.postAs("root", onePicture), d.postAs("alice", onePicture)}
		for i, from := range []string{"root", "alice"} {
			if rec, err := d.Jobs.Get(waits[i]); err != nil || rec.From != from {
				t.Errorf("the job of %s counts for %q (%v)", from, rec.From, err)
			}
		}
		for path, want := range map[string]string{
			"/queue": waits[0], "/history": done, "/history/" + done: done, "/api/jobs": waits[0],
			"/api/jobs/" + waits[0]: waits[0],
		} {
			if got := as("alice", "GET", path, nil, 200); !strings.Contains(got, want) {
				t.Errorf("GET %s as a client lacks the job of another: %s", path, got)
			}
		}
		for name, want := range map[string]bool{"alice": false, "root": true} {
			board, job := as(name, "GET", "/patchbay", nil, 200), as(name, "GET", "/patchbay/jobs/"+done, nil, 200)
			for _, button := range []string{`id="pause"`, `id="move-`, `id="delete-`} {
				if strings.Contains(board+job, button) != want {
					t.Errorf("the page of %s has the button %s: %v", name, button, !want)
				}
			}
			if !strings.Contains(board, `id="cancel-`) {
				t.Errorf("the page of %s has no button to cancel", name)
			}
		}
		as("alice", "POST", "/history", `{"clear": true}`, 403)
		as("alice", "POST", "/patchbay/jobs/"+done+"/delete", "", 403)
		as("alice", "POST", "/patchbay/jobs/"+waits[1]+"/move?to=front", "", 403)
		if d.find(done) == nil || d.find(done).Dropped != 0 {
			t.Error("a client took away a job, or its files")
		}
		as("alice", "POST", "/api/jobs/"+waits[0]+"/cancel", "", 200)
		ipctest.WaitState(t, d.Jobs, waits[0], message.Cancelled)

		as("alice", "POST", "/settings/Color", `"dark"`, 200)
		for name, want := range map[string]string{"alice": `"dark"`, "root": "null", "../up": "null"} {
			if got := as(name, "GET", "/settings/Color", nil, 200); got != want {
				t.Errorf("the setting of %s is %s", name, got)
			}
		}
		as("../up", "POST", "/settings/Color", `"up"`, 200)
		for path, there := range map[string]bool{"alice": true, "%2E%2E%2Fup": true, "../up": false} {
			if _, err := os.Stat(filepath.Join(d.cfg.Users, path)); (err == nil) != there {
				t.Errorf("folder %s of a user: %v", path, err)
			}
		}
		d.uploads()
		as("root", "POST", "/patchbay/resume", "", http.StatusSeeOther)
		d.until(func() bool { return len(d.Jobs.Select(open)) == 0 })
	})
}

// uploads stores files of one name as a client and as an admin.
func (d *door) uploads() {
	d.t.Helper()
	for _, c := range []struct {
		name, data, overwrite, gets string
		want                        int
	}{
		{"root", "first", "", "a.png", 200},
		{"alice", "first", "true", "a.png", 200}, // it is the same
		{"alice", "second", "true", "patchbay.v1.delete.*", 403},
		{"alice", "second", "", "a (1).png", 200},
		{"root", "third", "true", "a.png", 200},
		{"alice", "other", "1", "patchbay.v1.delete.*", 403},
	} {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		part, err := w.CreateFormFile("image", "a.png")
		if err != nil {
			d.t.Fatal(err)
		}
		_, _ = part.Write([]byte(c.data))
		if err := w.WriteField("overwrite", c.overwrite); err != nil {
			d.t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			d.t.Fatal(err)
		}
		q := append([]string{"Content-Type", w.FormDataContentType()}, basic(c.name)...)
		status, text, _ := d.ask("POST", "/upload/image", b.String(), q...)
		if status != c.want || !strings.Contains(string(text), c.gets) {
			d.t.Errorf("an upload of %q by %s, overwrite %q: %d %s", c.data, c.name, c.overwrite, status, text)
		}
	}
	if b, err := os.ReadFile(filepath.Join(d.cfg.Roots.Input, "a.png")); err != nil || string(b) != "third" {
		d.t.Errorf("the file has %q (%v), want what the admin has sent last", b, err)
	}
}
