package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"patchbay/fault"
	"patchbay/ipc/broker"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/node/template"
)

// Config says what the carrier serves, and to whom.
type Config struct {
	Listen   string       // HOST:PORT
	Listener net.Listener // is served in place of Listen; nil: Listen is opened
	// Token or a login must come with every request. Token: as a bearer token, in the cookie or as the parameter of that
	// name; who has it may do everything. Without both, nobody is asked, and only this machine is served.
	Token string
	// Logins returns the user of a name and password, by basic authentication, or nil if there is none; nil: there are
	// no users.
	Logins  func(name, password string) *broker.Login
	Origins []string // of other web pages that may use it: scheme://host[:port]

	Roots  files.Roots
	Stats  func() message.Stats
	Memory func() (total, free int64) // of this machine, in bytes
	// Metrics and Health answer GET /metrics and /healthz; nil: nobody does.
	Metrics, Health http.HandlerFunc

	Body int64 // bytes of the largest request. 0: 64 MiB
	Log  zerolog.Logger
	// Cert and Key are PEM files: HTTPS is spoken then. Empty: HTTP.
	Cert, Key string

	Keep string // folder for what jobs asked for; empty: it is forgotten with the process
	// Frontend is the folder of ComfyUI's editor, FrontendTemplates are those of its templates; empty: there is none.
	Frontend          string
	FrontendTemplates []string
	Users             string // folder for settings and files of users of the editor; empty: they are refused
	Templates         string // folder of workflows with named parameters; empty: there are none
}

// HTTP is the carrier. It implements serve.Carrier.
type HTTP struct {
	cfg     Config
	l       net.Listener
	jobs    *jobs.Table
	classes serve.Classes
	svc     *serve.Service

	hub       *hub
	past      *past
	info      infoCache
	templates template.Folder

	settling sync.Mutex // held while files of users change
	offered  offered    // templates of the editor

	closing   chan struct{} // closed when streams are to end
	streams   atomic.Int64  // pages that are kept up to date
	shrinking sync.Mutex    // held while a picture is made small

	mu     sync.Mutex
	number float64 // of the newest job
}

// Listen opens the address of a carrier. It refuses one that other machines can reach if nobody is asked who
// they are.
func Listen(cfg Config) (*HTTP, error) {
	cfg.Body = cmp.Or(cfg.Body, int64(wire.DefaultLimits().Bytes))
	var pair []tls.Certificate
	if cfg.Cert != "" {
		c, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("--http-cert %s, --http-key %s: %w", cfg.Cert, cfg.Key, err)
		}
		pair = append(pair, c)
	}
	l := cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("--http %s: %w", cfg.Listen, err)
		}
	}
	if addr, ok := l.Addr().(*net.TCPAddr); ok && cfg.asksNobody() && !addr.IP.IsLoopback() {
		_ = l.Close()
		return nil, fmt.Errorf("--http %s: other machines can reach this address: give --http-token-file or --users-file, "+
			"or listen on 127.0.0.1", cfg.Listen)
	}
	if pair != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: pair, MinVersion: tls.VersionTLS12})
	}
	h := &HTTP{cfg: cfg, l: l, number: -1, closing: make(chan struct{})} // the first job has number 0
	h.past, h.hub = newPast(h), newHub(h)
	return h, nil
}

// On sets what the carrier serves. It must be called before Serve.
func (h *HTTP) On(table *jobs.Table, classes serve.Classes) {
	h.jobs, h.classes = table, classes
	for _, j := range table.Select(func(r *message.Record, _ bool) bool { return r.Kind == "" }) {
		h.number = max(h.number, math.Abs(math.Trunc(j.Number)))
	}
	h.past.open()
	h.templates = template.Folder{Dir: h.cfg.Templates, Describe: classes.Describe}
	for _, name := range h.templates.List() {
		if _, err := h.template(name); err != nil {
			h.cfg.Log.Warn().Err(err).Str("template", name).Msg("requests for this template are refused")
		}
	}
}

// Name is the address as a URL.
func (h *HTTP) Name() string {
	if h.cfg.Cert != "" {
		return "https://" + h.Address()
	}
	return "http://" + h.Address()
}

// Address returns HOST:PORT.
func (h *HTTP) Address() string { return h.l.Addr().String() }

// Event passes an event of this daemon on to those who wait for it. It does not block, and does not call the table.
func (h *HTTP) Event(ev message.Event) { h.hub.note(ev) }

// Forget drops what is known about a job. It does not call the table.
func (h *HTTP) Forget(job string) {
	h.past.forget(job)
	h.hub.forget(job)
}

// Close closes the address of a carrier that was never served.
func (h *HTTP) Close() { _ = h.l.Close() }

// Serve implements serve.Carrier.
func (h *HTTP) Serve(ctx, drain context.Context, s *serve.Service) error {
	h.svc = s
	srv := &http.Server{
		Handler: h.handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 2 * time.Minute,
		WriteTimeout: maxAnswer, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: log.New(quiet{h.cfg.Log}, "", 0),
	}
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := func() { cancel(errStopping) }
	defer stop()
	srv.BaseContext = func(net.Listener) context.Context { return running }
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { h.hub.run(running) })
	failed := make(chan error, 1)
	wg.Go(func() { failed <- srv.Serve(h.l) }) // its error after a shutdown says that there was one
	select {
	case err := <-failed:
		stop()
		h.end()
		return err
	case <-ctx.Done():
	}
	h.end()
	err := srv.Shutdown(drain)
	stop()
	if err != nil {
		err = srv.Close()
	}
	return err
}

// end ends what lasts: sockets and streams.
func (h *HTTP) end() {
	close(h.closing)
	h.hub.close()
}

// maxAnswer is how long an answer may take to be read.
const maxAnswer = 5 * time.Minute

// errStopping is the cause with which requests end that outlive the daemon.
var errStopping = fault.New(fault.Draining, "the daemon is shutting down")

// quiet makes debug lines of what net/http reports, such as connections that end halfway.
type quiet struct{ log zerolog.Logger }

func (q quiet) Write(b []byte) (int, error) {
	q.log.Debug().Msg(strings.TrimSpace(string(b)))
	return len(b), nil
}

// plain is an error with the body that ComfyUI's routes for jobs have: {"error": "text"}.
type plain struct {
	status int
	body   map[string]any
}

func (p *plain) Error() string { return fmt.Sprint(p.body["error"]) }

// wrong returns an error with status 400 and ComfyUI's text.
func wrong(format string, args ...any) error {
	return &plain{http.StatusBadRequest, map[string]any{"error": fmt.Sprintf(format, args...)}}
}

// bare is an error without a text of its own.
type bare int

func (b bare) Error() string { return http.StatusText(int(b)) }

// fail answers a request with an error: {"error": {type, message, details, extra_info}, "code", "message"}. The last
// two are what ComfyUI's openapi.yaml says of errors.
func (h *HTTP) fail(w http.ResponseWriter, err error) {
	var p *plain
	var b bare
	switch {
	case errors.As(err, &b):
		h.send(w, int(b), pyjson.NewObject("code", strings.ReplaceAll(strings.ToLower(b.Error()), " ", "_"), "message",
			b.Error()))
		return
	case errors.As(err, &p):
		h.send(w, p.status, p.body)
		return
	}
	e := h.published(w, err)
	f := e.Form()
	h.send(w, badStatus(e), pyjson.NewObject("error", promptError(e), "code", cmp.Or(f.Type, f.Code), "message", e.Text))
}

// failPrompt answers POST /prompt with an error, as ComfyUI does: {"error": {type, message, details, extra_info},
// "node_errors"}.
func (h *HTTP) failPrompt(w http.ResponseWriter, err error) {
	e := h.published(w, err)
	h.send(w, badStatus(e), pyjson.NewObject("error", promptError(e), "node_errors", orEmptyMap(e.NodeErrors)))
}

func promptError(e *fault.Error) *pyjson.Object {
	f := e.Form()
	return pyjson.NewObject("type", cmp.Or(f.Type, f.Code), "message", e.Text, "details", e.Details, "extra_info",
		orEmptyMap(e.Extra))
}

// published returns an error as clients may see it, and says in the header when to send the request again.
func (h *HTTP) published(w http.ResponseWriter, err error) *fault.Error {
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		err = fault.New(fault.TooLarge, "the body has more than the %d bytes that are allowed", h.cfg.Body)
	}
	e := h.cfg.Roots.Publish(fault.From(err))
	if e.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, e.RetryAfterMS/1000)))
	}
	return e
}

// badStatus returns the status of an error where every fault of a workflow has status 400.
func badStatus(e *fault.Error) int {
	switch e.Public() {
	case fault.BadWorkflow, fault.NoModel, fault.NoNodeType, fault.Unsupported, fault.EmptyBody, fault.PlanRefused:
		return http.StatusBadRequest
	}
	return e.Status()
}

func orEmptyMap(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

// send answers with JSON.
func (h *HTTP) send(w http.ResponseWriter, status int, v any) {
	b, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if b, err = wire.Encode(v, wire.JSON); err != nil {
			h.cfg.Log.Error().Err(err).Msg("an answer cannot be encoded")
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// fields reads the body of a request, a JSON object whatever its Content-Type says.
func (h *HTTP) fields(r *http.Request) (*pyjson.Object, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return h.svc.Decode(body)
}
