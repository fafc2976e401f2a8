package webhook

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/client"
	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire/wiretest"
)

// secret and the rest are an example of the specification's own libraries.
const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestSignature signs the example.
func TestSignature(t *testing.T) {
	key, err := ParseSecret(secret + "\n")
	if err != nil {
		t.Fatal(err)
	}
	got := New(Config{Secret: key}).signature("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if got != "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("the signature is %s", got)
	}
	for _, bad := range []string{"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_%"} {
		if _, err := ParseSecret(bad); err == nil {
			t.Errorf("the secret %q is taken", bad)
		}
	}
}

// receiver is a server that fails so many times before it acknowledges a report.
type receiver struct {
	*httptest.Server
	fails int

	mu     sync.Mutex
	bodies map[string][]string // by id
	ids    []string            // acknowledged
	acked  chan string
}

func newReceiver(t *testing.T, fails int) *receiver {
	t.Helper()
	r := &receiver{fails: fails, bodies: map[string][]string{}, acked: make(chan string, 100)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		id := q.Header.Get("Webhook-Id")
		key, _ := ParseSecret(secret)
		want := "v1," + (&Sender{cfg: Config{Secret: key}}).signature(id, q.Header.Get("Webhook-Timestamp"), body)
		if _, bad := strconv.ParseInt(q.Header.Get("Webhook-Timestamp"), 10, 64); bad != nil || err != nil ||
			q.Header.Get("Webhook-Signature") != want || q.Method != http.MethodPost {
			t.Errorf("a report has the headers %v", q.Header)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies[id] = append(r.bodies[id], string(body))
		switch n := len(r.bodies[id]); {
		case n > r.fails:
			r.ids = append(r.ids, id)
			r.acked <- id
		case n%3 == 0:
			panic(http.ErrAbortHandler) // the connection ends
		case n%3 == 1:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			http.Redirect(w, q, "/elsewhere", http.StatusFound)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) next(t *testing.T) string {
	t.Helper()
	select {
	case id := <-r.acked:
		return id
	case <-wiretest.Context(t).Done():
		t.Fatal("no report has come")
		return ""
	}
}

// rig is a service whose jobs may name webhooks.
func rig(t *testing.T, cfg Config) (*Sender, *ipctest.Rig) {
	t.Helper()
	var err error
	if cfg.Secret, err = ParseSecret(secret); err != nil {
		t.Fatal(err)
	}
	cfg.Log, cfg.First, cfg.Longest = zerolog.Nop(), time.Millisecond, 2*time.Millisecond
	s := New(cfg)
	r := ipctest.NewTunedRig(t, func(sc *serve.ServiceConfig) { sc.Webhook = s.Check }, jobs.Config{OnEvent: s.Event},
		jobs.OutputsConfig{})
	return s, r
}

// start runs a sender until the test or the returned function ends it.
func start(t *testing.T, s *Sender, table *jobs.Table) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx, table); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func host(r *receiver) string { return strings.TrimPrefix(r.URL, "http://") }

// TestReported ends jobs in every way while the receiver fails 9 of 10 times: each end is acknowledged once, with the
// same body at every try, and the record says so.
func TestReported(t *testing.T) {
	r := newReceiver(t, 9)
	s, rig := rig(t, Config{Hosts: []string{host(r)}})
	start(t, s, rig.Jobs)
	c := ipctest.DialRig(t, rig)
	for job, nodes := range map[string][]string{
		"done": {"Step 2", "Picture 10"}, "failed": {"Fail 1"}, "cancelled": {"Wait 600000"},
	} {
		_, err := client.Submit(t.Context(), c, &message.RunRequest{
			ID: job, Workflow: messagetest.Graph(nodes...), Webhook: r.URL + "/hook?token=x", Client: "me",
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := client.Cancel(t.Context(), c, "cancelled"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.next(t)
	}
	for job, state := range map[string]message.State{
		"done": message.Done, "failed": message.Failed, "cancelled": message.Cancelled,
	} {
		rec := waitReported(t, rig.Jobs, job)
		id := job + "." + strconv.FormatUint(rec.EndSeq, 10)
		bodies := r.bodies[id]
		if len(bodies) != 10 {
			t.Fatalf("%s was sent %d times, want 10", id, len(bodies))
		}
		var got struct {
			Type, Timestamp string
			Data            struct {
				Job, State, Client string
				Outputs            []message.OutputRef
				Error              *struct{ Code string }
			}
		}
		if err := json.Unmarshal([]byte(bodies[0]), &got); err != nil {
			t.Fatal(err)
		}
		if got.Type != "job."+string(state) || got.Data.Job != job || got.Data.State != string(state) ||
			got.Data.Client != "me" || len(got.Data.Outputs) != len(rec.Outputs) || (got.Data.Error == nil) != (job == "done") {
			t.Errorf("the report of job %s is %s", job, bodies[0])
		}
		for _, b := range bodies[1:] {
			if b != bodies[0] {
				t.Errorf("a later report differs: %s, first %s", b, bodies[0])
			}
		}
	}
}

// waitReported waits until the record of a job says that its end was reported.
func waitReported(t *testing.T, table *jobs.Table, job string) message.Record {
	t.Helper()
	for ctx := wiretest.Context(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if rec, err := table.Get(job); err == nil && rec.EndSeq > 0 && rec.Webhook.Reported == rec.EndSeq {
			return rec
		}
	}
	t.Fatalf("the record of job %s does not say that its end was reported", job)
	return message.Record{}
}

// TestReportedAfterAStop ends a sender while the receiver refuses: the next one goes on. What the record says is
// acknowledged is not sent again.
func TestReportedAfterAStop(t *testing.T) {
	r := newReceiver(t, 5)
	s, rig := rig(t, Config{Hosts: []string{"127.0.0.1"}})
	stop := start(t, s, rig.Jobs)
	c := ipctest.DialRig(t, rig)
	_, err := client.Submit(t.Context(), c, &message.RunRequest{
		ID: "a", Workflow: messagetest.Graph("Step 1"), Webhook: r.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	ipctest.WaitState(t, rig.Jobs, "a", message.Done)
	stop()
	start(t, s, rig.Jobs)
	r.next(t)
	waitReported(t, rig.Jobs, "a")
	again := New(s.cfg)
	start(t, again, rig.Jobs)
	again.wake()
	if _, err := client.Submit(t.Context(), c, &message.RunRequest{
		ID: "b", Workflow: messagetest.Graph("Step 1"), Webhook: r.URL,
	}); err != nil {
		t.Fatal(err)
	}
	if id := r.next(t); !strings.HasPrefix(id, "b.") {
		t.Errorf("%s was reported again", id)
	}
}

// TestTooOld leaves alone what ended too long ago.
func TestTooOld(t *testing.T) {
	s := New(Config{For: time.Hour})
	now := time.UnixMilli(1e12)
	rec := message.Record{EndSeq: 4, Finished: 1e12 - 1, Webhook: &message.Hook{URL: "https://x.example"}}
	if !s.pending(&rec, now) || s.pending(&rec, now.Add(time.Hour)) {
		t.Error("what is pending does not go by the time of the end")
	}
	if rec.Webhook.Reported = 4; s.pending(&rec, now) {
		t.Error("what was reported is pending")
	}
}

// TestTargets checks which URLs a job may name, and that a name which leads to this machine is not followed there.
func TestTargets(t *testing.T) {
	r := newReceiver(t, 0)
	_, rig := rig(t, Config{})
	c := ipctest.DialRig(t, rig)
	for url, ok := range map[string]bool{
		"https://hooks.example/x?y=z": true, "http://203.0.114.9/": true, "https://[2606:4700::1]:8443/": true,
		"": true, "ftp://hooks.example": false, "hooks.example": false, "https://": false, "https://u:p@hooks.example": false,
		"https://hooks.example/#x": false, "http://127.0.0.1:80/": false, "http://localhost/": false, "http://[::1]/": false,
		"http://169.254.169.254/latest": false, "http://10.1.2.3": false, "http://192.168.0.1": false,
		"http://[::ffff:127.0.0.1]/": false, "http://0.0.0.0/": false, "http://100.64.0.1/": false,
		"http://[fe80::1]/": false, "http://[64:ff9b::7f00:1]/": false, "http://224.0.0.1/": false,
		"https://x.example/" + strings.Repeat("y", 3000): false,
	} {
		_, err := client.Submit(t.Context(), c, &message.RunRequest{Workflow: messagetest.Graph("Step 1"), Webhook: url})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "webhook") {
			t.Errorf("%.60s is answered with %v, want it taken: %v", url, err, ok)
		}
	}
	none := ipctest.NewRig(t, jobs.Config{}, jobs.OutputsConfig{})
	_, err := client.Submit(t.Context(), ipctest.DialRig(t, none), &message.RunRequest{
		Workflow: messagetest.Graph("Step 1"), Webhook: "https://hooks.example",
	})
	if err == nil || !strings.Contains(err.Error(), "--webhook-secret-file") {
		t.Errorf("without webhooks: %v", err)
	}
	// what a name leads to counts when the connection is made
	s := New(Config{})
	rec := &message.Record{Job: "a", EndSeq: 1, Webhook: &message.Hook{URL: "http://named.example:" + port(t, r) + "/x"}}
	s.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		d := net.Dialer{Control: dial}
		return d.DialContext(ctx, network, host(r))
	}
	if err := s.post(t.Context(), rec); err == nil || !strings.Contains(err.Error(), "127.0.0.1 is not public") {
		t.Errorf("a name that leads to this machine: %v", err)
	}
	if public(netip.MustParseAddr("::ffff:10.0.0.1")) || !public(netip.MustParseAddr("1.1.1.1")) {
		t.Error("public addresses are told from private ones wrongly")
	}
	other := New(Config{Hosts: []string{"hooks.example:8443"}})
	for url, ok := range map[string]bool{
		"https://hooks.example:8443/": true, "https://hooks.example/": false, "http://1.1.1.1/": false,
	} {
		if failure := other.Check(url); (failure == nil) != ok {
			t.Errorf("%s: %v", url, failure)
		}
	}
}

func port(t *testing.T, r *receiver) string {
	t.Helper()
	_, p, err := net.SplitHostPort(host(r))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
