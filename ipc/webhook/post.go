package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// within is how long one request may take.
const within = 20 * time.Second

// client makes requests directly, to the host that was checked: no proxy and no redirect leads elsewhere.
func (s *Sender) client() *http.Client {
	dialer := &net.Dialer{Timeout: within}
	if len(s.cfg.Hosts) == 0 {
		dialer.Control = dial
	}
	return &http.Client{
		Timeout: within,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post reports the end of a job once. An answer with a status of 200 to 299 acknowledges it.
func (s *Sender) post(ctx context.Context, rec *message.Record) error {
	if failure := s.Check(rec.Webhook.URL); failure != nil { // the daemon may have been started with other hosts since
		return failure
	}
	body, err := report(rec)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, rec.Webhook.URL, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	id, at := fmt.Sprintf("%s.%d", rec.Job, rec.EndSeq), strconv.FormatInt(s.cfg.Now().Unix(), 10)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("User-Agent", "Patchbay")
	q.Header.Set("Webhook-Id", id)
	q.Header.Set("Webhook-Timestamp", at)
	q.Header.Set("Webhook-Signature", "v1,"+s.signature(id, at, body))
	resp, err := s.http.Do(q)
	if err != nil {
		return withoutURL(err)
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
	_ = resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the receiver answers with status %d", resp.StatusCode)
	}
	return nil
}

// signature signs a report as Standard Webhooks says.
func (s *Sender) signature(id, at string, body []byte) string {
	mac := hmac.New(sha256.New, s.cfg.Secret)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body) // never fails
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// withoutURL drops the URL from an error for the log: receivers put tokens into them.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// report is the body of a report. It is the same for every try.
func report(rec *message.Record) ([]byte, error) {
	data := pyjson.NewObject("job", rec.Job, "state", rec.State, "attempt", rec.Attempt, "created", rec.Created, "started",
		rec.Started, "finished", rec.Finished, "client", rec.Client, "outputs", append([]message.OutputRef{}, rec.Outputs...))
	if rec.Error != nil {
		data.Set("error", rec.Error)
	}
	return wire.Encode(pyjson.NewObject("type", "job."+string(rec.State), "timestamp",
		time.UnixMilli(rec.Finished).UTC().Format(time.RFC3339), "data", data), wire.JSON)
}
