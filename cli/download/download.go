// Package download fetches files over HTTP into folders that they cannot leave: what a server has is asked first
// (probe.go), then fetched into a file beside the final one, from where an earlier attempt was cut (fetch.go).
package download

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

// File is what to fetch, and where to.
type File struct {
	Name   string // of the file; it must be one, not a path
	URL    string // http or https
	Root   string // a folder that exists
	Folder string // below Root, a name
	SHA256 string // in hex; "" if it is not known
}

// Fetcher fetches files.
type Fetcher struct {
	http *http.Client
}

// Times after which a server counts as away.
const (
	answerWithin = time.Minute
	silentFor    = time.Minute // in the middle of a file
)

// New returns a Fetcher. tokens are sent as bearer tokens, each to its host (host or host:port) and to no other that a
// server refers to, and only over TLS or to this machine.
func New(tokens map[string]string) *Fetcher {
	base, _ := http.DefaultTransport.(*http.Transport)
	base = base.Clone()
	base.ResponseHeaderTimeout, base.DisableCompression = answerWithin, true
	return &Fetcher{&http.Client{Transport: &authorized{base, tokens}, CheckRedirect: followed}}
}

// authorized adds its token to every request for a host. Redirects pass through it too.
type authorized struct {
	base   http.RoundTripper
	tokens map[string]string
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	if token := a.tokens[strings.ToLower(req.URL.Host)]; token != "" && private(req.URL) {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return a.base.RoundTrip(req)
}

// private reports whether nobody between here and the host of a URL can read what is sent.
func private(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// followed refuses redirects that give up TLS, are no HTTP or too many.
func followed(req *http.Request, via []*http.Request) error {
	if err := checkURL(req.URL); err != nil {
		return fmt.Errorf("redirected: %w", err)
	}
	if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("redirected from https to http")
	}
	if len(via) > 9 {
		return errors.New("redirected ten times")
	}
	return nil
}

func checkURL(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q is no http or https URL", u.Redacted())
	case u.Host == "":
		return fmt.Errorf("%q has no host", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("%q has a user or password in it", u.Redacted())
	}
	return nil
}

// Check returns an error for a file that may not be fetched: a URL that is not of HTTP, a name or folder that is more
// than a name, a hash that is none.
func (f *File) Check() error {
	u, err := url.Parse(f.URL)
	if err != nil {
		return errors.New("its URL cannot be read")
	}
	if err := checkURL(u); err != nil {
		return err
	}
	if f.SHA256 != "" && !isSHA256(f.SHA256) {
		return fmt.Errorf("its hash %q is no SHA256", f.SHA256)
	}
	for what, name := range map[string]string{"name": f.Name, "folder": f.Folder} {
		shown := !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
		if name == "" || name[0] == '.' || strings.ContainsAny(name, `/\:`) || !shown || len(name) > 200 {
			return fmt.Errorf("%q is no plain %s", name, what)
		}
	}
	return nil
}

// statusError returns what the status of an answer means, nil if it is one of wanted.
func statusError(resp *http.Response, wanted ...int) error {
	host := resp.Request.URL.Host
	for _, status := range wanted {
		if resp.StatusCode == status {
			if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
				return fmt.Errorf("%s answers with a web page, not a file: it may ask to log in or to accept a licence", host)
			}
			return nil
		}
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Errorf("%s wants a token (401): set HF_TOKEN for huggingface.co, or give --token", host)
	case http.StatusForbidden:
		return fmt.Errorf("%s refuses it (403): the token may lack the right, or the licence may have to be accepted there",
			host)
	case http.StatusNotFound, http.StatusGone:
		return fmt.Errorf("%s does not have it (%d)", host, resp.StatusCode)
	}
	return fmt.Errorf("%s answers %s", host, resp.Status)
}

// shortened takes the URL out of an error of package http, which may have signatures in its query.
func shortened(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		host := "the server"
		if u, bad := url.Parse(e.URL); bad == nil && u.Host != "" {
			host = u.Host
		}
		return fmt.Errorf("%s: %w", host, e.Err)
	}
	return err
}
