package download

import (
	"cmp"
	"context"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
)

// Offer is what a server says of a file.
type Offer struct {
	Size int64 // -1: not known
	// SHA256 is that of File, or else what Hugging Face says; "" if neither is known.
	SHA256 string
	Tag    string // ETag or Last-Modified that tells versions of the file apart; "": there is none
}

// Probe asks a server for size and version of a file, without fetching it. With an error, the offer has what File says.
func (c *Fetcher) Probe(ctx context.Context, f *File) (Offer, error) {
	offer := Offer{Size: -1, SHA256: strings.ToLower(f.SHA256)}
	if err := f.Check(); err != nil {
		return offer, err
	}
	resp, linked, err := c.ask(ctx, http.MethodHead, f.URL, nil)
	if err != nil {
		return offer, err
	}
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented: // it may only know GET
		if resp, linked, err = c.ask(ctx, http.MethodGet, f.URL, http.Header{"Range": {"bytes=0-0"}}); err != nil {
			return offer, err
		}
	}
	if err := statusError(resp, http.StatusOK, http.StatusPartialContent); err != nil {
		return offer, err
	}
	return Offer{Size: total(resp), SHA256: cmp.Or(offer.SHA256, linked), Tag: tag(resp.Header)}, nil
}

// ask sends a request and closes the body of its answer. linked is the SHA256 that Hugging Face gives of large files
// when it refers to where they lie.
func (c *Fetcher) ask(ctx context.Context, method, at string, header http.Header) (resp *http.Response, linked string,
	err error,
) {
	req, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, "", err
	}
	for key, values := range header {
		req.Header[key] = values
	}
	resp, err = c.http.Do(req)
	if err != nil {
		return nil, "", shortened(err)
	}
	_ = resp.Body.Close() // what is left of it is not wanted
	for r := resp; r != nil; r = r.Request.Response {
		if r.Request.URL.Host == req.URL.Host {
			if sum := strings.Trim(r.Header.Get("X-Linked-Etag"), `"`); isSHA256(sum) {
				linked = strings.ToLower(sum)
			}
		}
	}
	return resp, linked, nil
}

func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == 32
}

// total returns the size of the whole file of which an answer has all or a part, -1 if it does not say.
func total(resp *http.Response) int64 {
	if resp.StatusCode != http.StatusPartialContent {
		return resp.ContentLength
	}
	_, text, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// tag returns the strong validator of an answer, which If-Range may name.
func tag(h http.Header) string {
	if etag := h.Get("ETag"); strings.HasPrefix(etag, `"`) {
		return etag
	}
	return h.Get("Last-Modified")
}
