package web

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/harness"
)

const token = "0123456789abcdef0123"

// TestOthersAreRefused sends requests as web pages of others make them, under names bound to this machine, and without
// the token.
func TestOthersAreRefused(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		open, closed := newDoor(t, nil), newDoor(t, func(c *Config) { c.Token = token })
		trusting := newDoor(t, func(c *Config) { c.Origins = []string{"https://app.example"} })
		for _, c := range []struct {
			d      *door
			method string
			path   string
			header []string
			want   int
		}{
			{open, "GET", "/queue", nil, 200},
			{open, "GET", "/queue", []string{"Authorization", "Bearer whatever"}, 200},
			{open, "GET", "/queue?clientId=x&other=1", nil, 200},
			{open, "GET", "/queue", []string{"Origin", open.Name()}, 200},
			{open, "GET", "/queue", []string{"Host", "localhost:8188"}, 200},
			{open, "GET", "/queue", []string{"Host", "[::1]:8188"}, 200},
			{open, "GET", "/queue", []string{"Host", "evil.example"}, 403},
			{open, "GET", "/queue", []string{"Host", "127.0.0.1.evil.example:8188"}, 403},
			{open, "GET", "/queue", []string{"Host", "192.168.1.5:8188"}, 403},
			{open, "GET", "/queue", []string{"Origin", "https://evil.example"}, 403},
			{open, "GET", "/queue", []string{"Origin", "null"}, 403},
			{open, "GET", "/queue", []string{"Sec-Fetch-Site", "cross-site"}, 403},
			{open, "POST", "/interrupt", []string{"Sec-Fetch-Site", "same-site"}, 403},
			{open, "OPTIONS", "/prompt", nil, 200},
			{closed, "GET", "/queue", nil, 401},
			{closed, "GET", "/", nil, 401},
			{closed, "GET", "/ws", nil, 401},
			{closed, "GET", "/queue", []string{"Authorization", "Bearer " + token + "x"}, 401},
			{closed, "GET", "/queue", []string{"Authorization", "Basic " + token}, 401},
			{closed, "GET", "/queue", []string{"Authorization", "Bearer " + token}, 200},
			{closed, "GET", "/queue", []string{"Authorization", "bearer " + token, "Host", "any.example"}, 200},
			{closed, "GET", "/queue", []string{"Cookie", cookie + "=" + token}, 200},
			{closed, "GET", "/queue?" + cookie + "=" + token, nil, 200},
			{closed, "GET", "/queue?" + cookie + "=wrong", nil, 401},
			{trusting, "GET", "/queue", []string{"Origin", "https://app.example"}, 200},
			{trusting, "POST", "/interrupt", []string{"Origin", "https://app.example", "Sec-Fetch-Site", "cross-site"}, 200},
			{trusting, "GET", "/queue", []string{"Origin", "http://app.example"}, 403},
		} {
			if got, body, _ := c.d.ask(c.method, c.path, nil, c.header...); got != c.want {
				t.Errorf("%s %s with %v: %d, want %d (%s)", c.method, c.path, c.header, got, c.want, body)
			}
		}
		_, _, head := trusting.ask("OPTIONS", "/prompt", nil, "Origin", "https://app.example")
		if head.Get("Access-Control-Allow-Origin") != "https://app.example" {
			t.Errorf("a trusted page is allowed %q", head.Get("Access-Control-Allow-Origin"))
		}
		options := &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"https://evil.example"}}}
		//nolint:bodyclose // Dial closes it
		if _, _, err := websocket.Dial(wiretest.Context(t), "ws://"+open.Address()+"/ws", options); err == nil {
			t.Error("a page of another origin opened a socket")
		}
	})
}

// TestOnlyThisMachine checks that an address of others is refused where nobody is asked for a token.
func TestOnlyThisMachine(t *testing.T) {
	for addr, token := range map[string]string{"0.0.0.0:0": "", ":0": "", "127.0.0.1:0": token, "0.0.0.0:0 ": token} {
		h, err := Listen(Config{Listen: strings.TrimSpace(addr), Token: token})
		if (err == nil) != (token != "") {
			t.Errorf("listening on %q with the token %q: %v", addr, token, err)
		}
		if err == nil {
			h.Close()
		}
	}
}

// TestPathsStayInside names files outside the folders, in a view and in an upload.
func TestPathsStayInside(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		top := filepath.Dir(d.cfg.Roots.Output)
		for _, dir := range []string{d.cfg.Roots.Output, d.cfg.Roots.Input} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		secret := filepath.Join(top, "secret.png")
		if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		for link, to := range map[string]string{"link.png": secret, "up": top} {
			if err := os.Symlink(to, filepath.Join(d.cfg.Roots.Output, link)); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{
			"/view?filename=../secret.png", "/view?filename=%2e%2e/secret.png", "/view?filename=" + secret,
			"/view?filename=secret.png&subfolder=..", "/view?filename=secret.png&subfolder=%2e%2e",
			"/view?filename=secret.png&subfolder=/..", "/view?filename=secret.png&subfolder=" + top,
			"/view?filename=link.png", "/view?filename=secret.png&subfolder=up", "/view?filename=link.png&preview=jpeg",
			"/view?filename=a%00b.png", "/view?filename=up", "/view?filename=..\\secret.png", "/view?filename=x&type=../",
		} {
			if status, body, _ := d.ask("GET", path, nil); status < 400 || strings.Contains(string(body), "secret") {
				t.Errorf("GET %s: %d %q", path, status, body)
			}
		}
		for _, c := range []struct{ name, sub, kind string }{
			{"../x.png", "", "input"},
			{"/x.png", "", "input"},
			{"..", "", "input"},
			{"a/x.png", "", "input"},
			{"x.png", "..", "input"},
			{"x.png", "../up", "input"},
			{"x.png", "/tmp", "input"},
			{"x.png", "up", "output"}, // a link that leads out
			{"x.png", "", "models"},
		} {
			text := func(s string) *string { return &s }
			r := recorded{Multipart: map[string]*string{"image": text(c.name), "subfolder": text(c.sub), "type": text(c.kind)}}
			body, kind := r.form(t)
			if status, got, _ := d.ask("POST", "/upload/image", body, "Content-Type", kind); status != http.StatusBadRequest {
				t.Errorf("an upload of %q into %q of %s: %d %s, want 400", c.name, c.sub, c.kind, status, got)
			}
		}
		if _, err := os.Stat(filepath.Join(top, "x.png")); err == nil {
			t.Error("an upload left the folders")
		}
	})
}

// TestTLS asks for a list of jobs over HTTPS, and over plain HTTP on the same address.
func TestTLS(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		authority := harness.Authority(t, dir)
		authority.Sign(t, filepath.Join(dir, "server"))
		cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")
		d := newDoor(t, func(c *Config) { c.Cert, c.Key = cert, key })
		roots := x509.NewCertPool()
		pem, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
		if err != nil || !roots.AppendCertsFromPEM(pem) {
			t.Fatal(err)
		}
		d.http.Transport = &http.Transport{
			DialContext: d.port.Dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		}
		if status, body, _ := d.ask("GET", "/api/jobs", nil); status != 200 {
			t.Errorf("over HTTPS: %d %s", status, body)
		}
		plain := http.Client{Transport: &http.Transport{DialContext: d.port.Dial}}
		if resp, err := plain.Get("http://" + d.Address() + "/queue"); err == nil { //nolint:noctx // it fails at once
			_ = resp.Body.Close()
			if resp.StatusCode == 200 {
				t.Error("plain HTTP is answered too")
			}
		}
		if _, err := Listen(Config{Listen: "127.0.0.1:0", Cert: cert, Key: cert}); err == nil {
			t.Error("a certificate without its key was taken")
		}
	})
}
