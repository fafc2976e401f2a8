package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// modelServer serves a file at any path, those with "open" in their name without the token.
func modelServer(t *testing.T, data, token string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "open") && r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Header().Set("ETag", `"1"`)
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(data))
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// drawn returns an editor graph that names a VAE, with what it says of it.
func drawn(name, models string) string {
	return fmt.Sprintf(`{"nodes":[{"id":1,"type":"FooNode"},{"id":3,"type":"VAELoader","widgets_values":[%q],
		"properties":{"models":[%s]}},{"id":4,"type":"VAELoader","widgets_values":[%q]}],"links":[]}`, name, models, name)
}

// pulls is a new models folder, and an environment in which no daemon answers.
func pulls(t *testing.T) (models string, pull func(in, flow string, more ...string) (string, error)) {
	t.Helper()
	t.Setenv("PATCHBAY_HOME", t.TempDir())
	t.Setenv("PATCHBAY_NATS_URL", "nats://127.0.0.1:1")
	models = t.TempDir()
	return models, func(in, flow string, more ...string) (string, error) {
		path := filepath.Join(t.TempDir(), "flow")
		if err := os.WriteFile(path, []byte(flow), 0o600); err != nil {
			t.Fatal(err)
		}
		return commandWith(t, in, append([]string{"pull", path, "--models", models}, more...)...)
	}
}

// TestPullShowsAsksFetches pulls one file in the ways in which a command line can agree, and finds nothing missing
// then.
func TestPullShowsAsksFetches(t *testing.T) {
	const data, token = "the weights", "hf_secret"
	s := modelServer(t, data, token)
	models, pull := pulls(t)
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(data)))
	source := fmt.Sprintf(`{"name":"a.safetensors","url":"%s/a","directory":"vae","hash":%q,"hash_type":"SHA256"}`,
		s.URL, sum)
	flow := drawn("a.safetensors", source)
	place := filepath.Join(models, "vae", "a.safetensors")
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	allow := "--token=" + strings.TrimPrefix(s.URL, "http://") + "=@" + tokenFile
	for i, c := range []struct {
		in    string
		args  []string
		fails string
		made  bool
	}{
		{"", nil, "wants a token (401)", false}, // HF_TOKEN is for another host
		{"", []string{allow, "--list"}, "", false},
		{"", []string{allow}, "nothing was fetched", false},
		{"no\n", []string{allow}, "nothing was fetched", false},
		{"y\n", []string{allow}, "", true},
		{"", []string{"--token=" + strings.TrimPrefix(s.URL, "http://") + "=" + token, "--yes"}, "", true},
	} {
		t.Setenv("HF_TOKEN", token)
		out, err := pull(c.in, flow, c.args...)
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%d: got error %v, want %q", i, err, c.fails)
		}
		for _, part := range []string{"vae/", "a.safetensors", s.URL + "/a"} {
			if !strings.Contains(out, part) {
				t.Errorf("%d: it does not show %q:\n%s", i, part, out)
			}
		}
		if i > 0 && (!strings.Contains(out, "11 B (11 bytes)") || !strings.Contains(out, sum)) {
			t.Errorf("%d: it does not show size and hash:\n%s", i, out)
		}
		if strings.Contains(out+fmt.Sprint(err), token) {
			t.Errorf("%d: it shows the token:\n%s\n%v", i, out, err)
		}
		b, err := os.ReadFile(place)
		if made := string(b) == data; made != c.made {
			t.Errorf("%d: the file has %q (%v), fetched is to be %v", i, b, err, c.made)
		}
		if c.made {
			if out, err := pull("", flow); err != nil || !strings.Contains(out, "no model file is missing") {
				t.Errorf("%d: again: %v\n%s", i, err, out)
			}
		}
		_ = os.Remove(place)
	}
}

// TestPullReadsEveryForm pulls from a request in API format with the graph of the editor beside it, from standard
// input, and from a picture.
func TestPullReadsEveryForm(t *testing.T) {
	s := modelServer(t, "weights", "none")
	models, pull := pulls(t)
	graph := drawn("a.safetensors", fmt.Sprintf(`{"name":"a.safetensors","url":"%s/open","directory":"vae"}`, s.URL))
	api := `{"3":{"class_type":"VAELoader","inputs":{"vae_name":"a.safetensors"}}}`
	var plain bytes.Buffer
	if err := png.Encode(&plain, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		t.Fatal(err)
	}
	picture := plain.String()[:33] // signature and IHDR
	for key, text := range map[string]string{"prompt": api, "workflow": graph} {
		chunk := "tEXt" + key + "\x00" + strings.Join(strings.Fields(text), "")
		picture += string(binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-4))) + chunk +
			string(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(chunk))))
	}
	picture += plain.String()[33:]
	body := fmt.Sprintf(`{"prompt":%s,"extra_data":{"extra_pnginfo":{"workflow":%s}}}`, api, graph)
	for name, flow := range map[string]string{
		"API format": body, "picture": picture, "request": `{"workflow":` + graph + `}`,
	} {
		if out, err := pull("", flow, "--yes"); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if err := os.Remove(filepath.Join(models, "vae", "a.safetensors")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := commandWith(t, graph, "pull", "-", "--models", models); err == nil ||
		!strings.Contains(err.Error(), "--yes") {
		t.Errorf("standard input without --yes: got %v", err)
	}
	if out, err := commandWith(t, graph, "pull", "-", "--models", models, "--yes"); err != nil {
		t.Errorf("standard input: %v\n%s", err, out)
	}
}

// TestPullRefuses checks workflows that name other places than folders of models, and servers that do not answer: all
// is listed, nothing is fetched.
func TestPullRefuses(t *testing.T) {
	s := modelServer(t, "weights", "none")
	away := modelServer(t, "", "")
	away.Close()
	models, pull := pulls(t)
	if err := os.Symlink(t.TempDir(), filepath.Join(models, "loras")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, url, directory, hash, says string }{
		{"a.safetensors", away.URL, "vae", "", "refused"},
		{"../a.safetensors", s.URL + "/open", "vae", "", "no plain name"},
		{"a/b.safetensors", s.URL + "/open", "vae", "", "no plain name"},
		{"a.safetensors", s.URL + "/open", "../vae", "", "no plain folder"},
		{"a.safetensors", s.URL + "/open", "/tmp", "", "no plain folder"},
		{"a.safetensors", s.URL + "/open", "custom_nodes", "", "looks into vae"},
		{"a.safetensors", s.URL + "/open", "loras", "", "looks into vae"},
		{"a.py", s.URL + "/open", "vae", "", "not looked for"},
		{"a.safetensors", "file:///etc/passwd", "vae", "", "no http or https"},
		{"a.safetensors", "https://me:secret@example.org/a", "vae", "", "user or password"},
		{"a.safetensors", s.URL + "/open", "vae", "12", "no SHA256"},
		{"a.safetensors", s.URL + "/open", "vae", strings.Repeat("0", 64), "it has the SHA256"},
		{"a.safetensors", "", "vae", "", "no http or https"},
	} {
		flow := drawn(c.name, fmt.Sprintf(`{"name":%q,"url":%q,"directory":%q,"hash":%q}`, c.name, c.url, c.directory,
			c.hash))
		out, err := pull("", flow, "--yes")
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(out+err.Error(), "secret") {
			t.Errorf("%v: got %v, want %q", c, err, c.says)
		}
		if !strings.Contains(out, filepath.Base(c.name)) {
			t.Errorf("%v: it does not list the file:\n%s", c, out)
		}
		if found, _ := filepath.Glob(filepath.Join(models, "*", "*")); len(found) > 0 {
			t.Errorf("%v: it made %q", c, found)
		}
	}
	flow := drawn("a.safetensors", fmt.Sprintf(`{"name":"a.safetensors","url":%q,"directory":"vae","hash":%q}`, away.URL,
		strings.Repeat("7", 64)))
	out, err := pull("", flow, "--list")
	if err == nil || !strings.Contains(out, "size    not known") || !strings.Contains(out, strings.Repeat("7", 64)) {
		t.Errorf("without a server it shows, with error %v:\n%s\nwant an unknown size and the hash", err, out)
	}
	out, err = pull("", `{"3":{"class_type":"VAELoader","inputs":{"vae_name":"a.safetensors"}}}`, "--yes")
	if err == nil || !strings.Contains(err.Error(), "does not say where it is from") {
		t.Errorf("without sources: %v\n%s", err, out)
	}
	lora := fmt.Sprintf(`{"nodes":[{"id":3,"type":"LoraLoaderModelOnly","widgets_values":["a.safetensors",1],
		"properties":{"models":[{"name":"a.safetensors","url":"%s/open","directory":"loras"}]}}],"links":[]}`, s.URL)
	if out, err := pull("", lora, "--yes"); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("into a link: %v\n%s", err, out)
	}
	if _, err := readTokens([]string{"host=bad token"}); err == nil || strings.Contains(err.Error(), "bad") {
		t.Errorf("a token with a space: got %v", err)
	}
}
