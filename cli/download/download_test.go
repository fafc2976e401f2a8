package download

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shop is a server of one file that can misbehave.
type shop struct {
	*httptest.Server
	data []byte
	etag string

	mu       sync.Mutex
	cut      int  // end the next body after so many bytes; 0: do not
	noRange  bool // answer every GET with the whole file
	noHead   bool
	asked    []string // method, Range and If-Range of every request
	sent     int      // bytes of bodies
	decorate func(http.Header)
}

func newShop(t *testing.T, size int) *shop {
	t.Helper()
	s := &shop{data: make([]byte, size), etag: `"one"`}
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(s.data)
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// counted is an answer that may be cut off.
type counted struct {
	http.ResponseWriter
	s    *shop
	left int
}

func (c *counted) Write(b []byte) (int, error) {
	if c.left > 0 && len(b) >= c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.s.sent += c.left
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	if c.left > 0 {
		c.left -= len(b)
	}
	c.s.sent += len(b)
	return c.ResponseWriter.Write(b)
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf("%s %s %s", r.Method, r.Header.Get("Range"), r.Header.Get("If-Range")))
	if s.noHead && r.Method == http.MethodHead {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if w.Header().Set("ETag", s.etag); s.decorate != nil {
		s.decorate(w.Header())
	}
	if s.noRange {
		r.Header.Del("Range")
	}
	left := s.cut
	if r.Method != http.MethodHead {
		s.cut = 0
	}
	http.ServeContent(&counted{w, s, left}, r, "x.bin", time.Time{}, bytes.NewReader(s.data))
}

// file returns what fetches from the shop into a new folder.
func (s *shop) file(t *testing.T) *File {
	t.Helper()
	return &File{Name: "a.safetensors", URL: s.URL + "/a", Root: t.TempDir(), Folder: "vae", SHA256: sum(s.data)}
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// pull is Probe and Fetch.
func pull(c *Fetcher, f *File) error {
	offer, err := c.Probe(context.Background(), f)
	if err != nil {
		return err
	}
	return c.Fetch(context.Background(), f, offer, func(int64) {})
}

// holds checks the names in the folder of a file, and the contents of the file if it is one of them.
func holds(t *testing.T, f *File, data []byte, names ...string) {
	t.Helper()
	var got []string
	entries, _ := os.ReadDir(filepath.Join(f.Root, f.Folder))
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, names) {
		t.Errorf("the folder holds %q, want %q", got, names)
	}
	if slices.Contains(names, f.Name) {
		if b, err := os.ReadFile(filepath.Join(f.Root, f.Folder, f.Name)); err != nil || !bytes.Equal(b, data) {
			t.Errorf("the file has %d bytes (%v), want the %d of the server", len(b), err, len(data))
		}
	}
}

// fails checks that an error is there and says so.
func fails(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %q, want it to say %q", err, part)
		}
	}
}

const megabyte = 1 << 20

// TestCutFilesGoOn cuts a transfer twice and checks that every attempt asks for what is missing of the same version,
// and that no byte is sent twice.
func TestCutFilesGoOn(t *testing.T) {
	s := newShop(t, 5*megabyte+11)
	f, c := s.file(t), New(nil)
	for _, at := range []int{2*megabyte + 3, megabyte} {
		s.cut = at
		fails(t, pull(c, f), "cut off after", "run it again")
	}
	if err := pull(c, f); err != nil {
		t.Fatal(err)
	}
	holds(t, f, s.data, f.Name)
	first, second := 2*megabyte+3, 3*megabyte+3
	want := []string{
		"HEAD  ", "GET  ", "HEAD  ", fmt.Sprintf(`GET bytes=%d- "one"`, first),
		"HEAD  ", fmt.Sprintf(`GET bytes=%d- "one"`, second),
	}
	if !slices.Equal(s.asked, want) || s.sent != len(s.data) {
		t.Errorf("%d bytes were sent on %q, want %d on %q", s.sent, s.asked, len(s.data), want)
	}
	fails(t, pull(c, f), "there already")
}

// TestOtherVersionsStartOver checks that what was fetched of one version is no part of another one, that a server
// without ranges or without a tag sends all again, and that changes between question and transfer are noticed.
func TestOtherVersionsStartOver(t *testing.T) {
	c := New(nil)
	for name, change := range map[string]func(*shop){
		"other version": func(s *shop) { s.data = bytes.Repeat([]byte("x"), len(s.data)); s.etag = `"two"` },
		"no ranges":     func(s *shop) { s.noRange = true },
		"no tag":        func(s *shop) { s.etag = "" },
		"weak tag":      func(s *shop) { s.etag = `W/"one"` },
	} {
		s := newShop(t, 2*megabyte)
		f := s.file(t)
		f.SHA256 = ""
		s.cut = megabyte
		fails(t, pull(c, f), "cut off")
		change(s)
		if err := pull(c, f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		holds(t, f, s.data, f.Name)
	}
	// What has no tag cannot be told apart.
	s := newShop(t, 2*megabyte)
	f := s.file(t)
	f.SHA256, s.etag, s.cut = "", "", megabyte
	fails(t, pull(c, f), "cut off")
	s.data = bytes.Repeat([]byte("y"), len(s.data))
	if err := pull(c, f); err != nil {
		t.Error(err)
	}
	holds(t, f, s.data, f.Name)

	s = newShop(t, megabyte)
	f = s.file(t)
	offer, err := c.Probe(context.Background(), f)
	if err != nil || offer.Size != megabyte {
		t.Fatalf("offer %v, %v", offer, err)
	}
	s.etag = `"two"`
	fails(t, c.Fetch(context.Background(), f, offer, func(int64) {}), "changed since")
	s.data = s.data[1:]
	fails(t, c.Fetch(context.Background(), f, offer, func(int64) {}), "1048575 bytes", "1048576 before")
	holds(t, f, nil)
}

// TestWrongContentsAreRemoved checks hash and size.
func TestWrongContentsAreRemoved(t *testing.T) {
	s := newShop(t, 1000)
	f := s.file(t)
	f.SHA256 = sum([]byte("other"))
	fails(t, pull(New(nil), f), sum(s.data), f.SHA256, "removed")
	holds(t, f, nil)
	f.SHA256 = "12"
	fails(t, pull(New(nil), f), "no SHA256")

	// Hugging Face gives the hash where it refers to the contents.
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Linked-Etag", `"`+sum([]byte("hub"))+`"`)
		http.Redirect(w, r, s.URL+"/a", http.StatusFound)
	}))
	defer hub.Close()
	f.URL, f.SHA256 = hub.URL, ""
	offer, err := New(nil).Probe(context.Background(), f)
	if err != nil || offer.SHA256 != sum([]byte("hub")) || offer.Size != 1000 {
		t.Errorf("offer %v, %v, want the linked hash and 1000 bytes", offer, err)
	}
	fails(t, pull(New(nil), f), sum([]byte("hub")))
	// Whoever the contents come from does not vouch for them.
	s.decorate = func(h http.Header) { h.Set("X-Linked-Etag", sum([]byte("elsewhere"))) }
	if offer, err := New(nil).Probe(context.Background(), f); err != nil || offer.SHA256 != sum([]byte("hub")) {
		t.Errorf("offer %v, %v, want the hash of the host that was asked", offer, err)
	}

	// Nor does a host that was not asked.
	plain := httptest.NewServer(http.RedirectHandler(s.URL+"/a", http.StatusFound))
	defer plain.Close()
	f.URL = plain.URL
	if offer, err := New(nil).Probe(context.Background(), f); err != nil || offer.SHA256 != "" {
		t.Errorf("offer %v, %v, want no hash", offer, err)
	}

	chunks := 100
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "10")
			return
		}
		_ = http.NewResponseController(w).Flush() // chunks: no length
		for range chunks {
			if _, err := w.Write(make([]byte, 8)); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	f.URL = endless.URL
	fails(t, pull(New(nil), f), "more than the 10 bytes")
	holds(t, f, nil)
	chunks = 1 // the body ends well and is too short
	fails(t, pull(New(nil), f), "cut off after 8 of 10 bytes")
}

// TestTokensStayWithTheirHost checks that a token reaches its host and not the host that this one refers to, which
// differs in its port only, that it comes back if a redirect does, and that no error has it.
func TestTokensStayWithTheirHost(t *testing.T) {
	const token = "hf_verysecret"
	s := newShop(t, 1000)
	var seen []string
	note := func(name string, r *http.Request) { seen = append(seen, name+" "+r.Header.Get("Authorization")) }
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("other", r)
		s.ServeHTTP(w, r)
	}))
	defer other.Close()
	status := http.StatusFound
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("first", r)
		if status != http.StatusFound {
			w.WriteHeader(status)
			return
		}
		http.Redirect(w, r, other.URL+"/b?signature=1", status)
	}))
	defer first.Close()
	f := s.file(t)
	f.URL = first.URL + "/a"
	c := New(map[string]string{strings.TrimPrefix(first.URL, "http://"): token, "huggingface.co": "another"})
	if err := pull(c, f); err != nil {
		t.Fatal(err)
	}
	want := []string{"first Bearer " + token, "other ", "first Bearer " + token, "other "}
	if !slices.Equal(seen, want) {
		t.Errorf("the servers saw %q, want %q", seen, want)
	}
	for code, says := range map[int]string{401: "wants a token", 403: "licence", 404: "does not have it", 500: "500"} {
		status = code
		err := pull(c, f)
		if fails(t, err, says); strings.Contains(err.Error(), token) {
			t.Errorf("%d: the error has the token: %v", code, err)
		}
	}
	// Over plain HTTP to another machine it is not sent at all.
	sent := ""
	a := &authorized{
		trip(func(r *http.Request) { sent += r.URL.Scheme + r.Header.Get("Authorization") + " " }),
		map[string]string{"huggingface.co": token},
	}
	for _, at := range []string{"http://huggingface.co/a", "https://huggingface.co/a", "https://cdn.huggingface.co/a"} {
		r := httptest.NewRequest(http.MethodGet, at, nil)
		r.Header.Set("Authorization", "Bearer stale")
		_, _ = a.RoundTrip(r) //nolint:bodyclose // there is no answer
	}
	if want := "http httpsBearer " + token + " https "; sent != want {
		t.Errorf("sent %q, want %q", sent, want)
	}
}

type trip func(*http.Request)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) {
	f(r)
	return nil, http.ErrHandlerTimeout
}

// TestNothingLeavesTheFolder checks names, folders, links and URLs that lead elsewhere.
func TestNothingLeavesTheFolder(t *testing.T) {
	s := newShop(t, 100)
	c := New(nil)
	outside := t.TempDir()
	for _, change := range []func(*File){
		func(f *File) { f.Name = "../a.safetensors" },
		func(f *File) { f.Name = "sub/a.safetensors" },
		func(f *File) { f.Name = `sub\a.safetensors` },
		func(f *File) { f.Name = "/tmp/a.safetensors" },
		func(f *File) { f.Name = ".." },
		func(f *File) { f.Name = ".hidden.safetensors" },
		func(f *File) { f.Name = "a\n.safetensors" },
		func(f *File) { f.Name = "a\u202e.safetensors" },
		func(f *File) { f.Name = "" },
		func(f *File) { f.Folder = ".." },
		func(f *File) { f.Folder = "../vae" },
		func(f *File) { f.Folder = "vae/sub" },
		func(f *File) { f.Folder = outside },
		func(f *File) { f.Folder = "" },
		func(f *File) { f.Folder = "link" },
		func(f *File) { f.Folder = "inner" },
		func(f *File) { f.Folder = "file" },
		func(f *File) { f.URL = "file:///etc/passwd" },
		func(f *File) { f.URL = "ftp" + strings.TrimPrefix(f.URL, "http") },
		func(f *File) { f.URL = "http://" },
		func(f *File) { f.URL = strings.Replace(f.URL, "//", "//me:secret@", 1) },
	} {
		f := s.file(t)
		for _, err := range []error{
			os.Mkdir(filepath.Join(f.Root, "vae"), 0o755), os.Symlink(outside, filepath.Join(f.Root, "link")),
			os.Symlink("vae", filepath.Join(f.Root, "inner")),
			os.WriteFile(filepath.Join(f.Root, "file"), nil, 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		change(f)
		err := pull(c, f)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q in %q from %s: got %v, want a refusal", f.Name, f.Folder, f.URL, err)
		}
		// Fetch does not rely on Probe.
		if err := c.Fetch(context.Background(), f, Offer{Size: 100, Tag: s.etag}, func(int64) {}); err == nil {
			t.Errorf("%q in %q from %s is fetched without Probe", f.Name, f.Folder, f.URL)
		}
		for _, dir := range []string{outside, filepath.Join(f.Root, "vae"), filepath.Dir(f.Root)} {
			if found, _ := filepath.Glob(filepath.Join(dir, "*.safetensors*")); len(found) > 0 {
				t.Errorf("%q in %q made %q", f.Name, f.Folder, found)
			}
		}
	}
	// A name that is there, be it a link into nowhere, is not replaced, and neither does a link stand in for a part.
	f := s.file(t)
	if err := os.MkdirAll(filepath.Join(f.Root, "vae"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "x"), filepath.Join(f.Root, "vae", f.Name)); err != nil {
		t.Fatal(err)
	}
	fails(t, pull(c, f), "there already")
	for _, to := range []string{"file:///etc/passwd", "ftp://127.0.0.1/a"} {
		away := httptest.NewServer(http.RedirectHandler(to, http.StatusFound))
		defer away.Close()
		f.URL = away.URL
		fails(t, pull(c, f), "no http or https URL")
	}
}

// TestServersThatAreOdd checks servers without HEAD, without a length, and those that answer with a page.
func TestServersThatAreOdd(t *testing.T) {
	s := newShop(t, megabyte)
	s.noHead = true
	f := s.file(t)
	offer, err := New(nil).Probe(context.Background(), f)
	if err != nil || offer.Size != megabyte {
		t.Errorf("without HEAD: %v, %v, want %d bytes", offer, err, megabyte)
	}
	if err := pull(New(nil), f); err != nil {
		t.Error(err)
	}
	holds(t, f, s.data, f.Name)

	vague := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(s.data)
	}))
	defer vague.Close()
	f = s.file(t)
	f.URL = vague.URL
	if err := pull(New(nil), f); err != nil {
		t.Error(err)
	}
	holds(t, f, s.data, f.Name)

	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
	}))
	f.URL = page.URL
	fails(t, pull(New(nil), f), "web page")
	page.Close()
	err = pull(New(nil), f)
	if fails(t, err, "refused", strings.TrimPrefix(page.URL, "http://")); strings.Contains(err.Error(), "http://") {
		t.Errorf("the error has the URL: %v", err)
	}
}

// TestFullDisk lowers the largest size of a file: what fits stays, and the file is complete once there is room.
func TestFullDisk(t *testing.T) {
	s := newShop(t, 3*megabyte)
	f := s.file(t)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	lower := unix.Rlimit{Cur: 2 * megabyte, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &lower); err != nil {
		t.Fatal(err)
	}
	err := pull(New(nil), f)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	fails(t, err, "disk is full", "make room")
	s.asked = nil
	if err := pull(New(nil), f); err != nil {
		t.Fatal(err)
	}
	holds(t, f, s.data, f.Name)
	if !strings.HasPrefix(s.asked[1], "GET bytes=") {
		t.Errorf("after the disk was full it asked %q, want the rest only", s.asked)
	}
	f.Name = "b.safetensors"
	err = New(nil).Fetch(context.Background(), f, Offer{Size: 1 << 60, Tag: s.etag}, func(int64) {})
	fails(t, err, "3145728 bytes") // the size is compared first
	fails(t, f.room(1<<60), "are missing")
}

// TestOneAtATime checks that a second fetch of a file that is being fetched is refused.
func TestOneAtATime(t *testing.T) {
	s := newShop(t, 3*megabyte)
	f := s.file(t)
	offer, err := New(nil).Probe(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	tried := false
	err = New(nil).Fetch(context.Background(), f, offer, func(int64) {
		if !tried {
			tried = true
			fails(t, New(nil).Fetch(context.Background(), f, offer, func(int64) {}), "another patchbay pull")
		}
	})
	if err != nil || !tried {
		t.Errorf("the first one: %v, tried beside it: %v", err, tried)
	}
	holds(t, f, s.data, f.Name)
}
