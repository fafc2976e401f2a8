package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"patchbay/fault"
	ipcclient "patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// call returns a connection to the port of the daemon.
func (n *node) call() (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	n.mu.Lock()
	up, port, c := n.table != nil && !n.dead, n.port, newCable()
	if up {
		n.cables[c] = true
	}
	n.mu.Unlock()
	if up {
		if port.Offer(c.near) {
			return hangsUp{c.far, n, c}, nil
		}
	}
	c.cut()
	return nil, refused
}

// hangsUp is the client's end of a call.
type hangsUp struct {
	net.Conn
	n *node
	c *cable
}

func (h hangsUp) Close() error {
	h.n.mu.Lock()
	delete(h.n.cables, h.c)
	h.n.mu.Unlock()
	return h.Conn.Close()
}

// goneEarly reports whether a job was cancelled before it began: ComfyUI, and its routes here, know nothing of it then.
func (n *node) goneEarly(id string) bool {
	table := n.up()
	if table == nil {
		return false
	}
	rec, err := table.Get(id)
	return err == nil && rec.State == message.Cancelled && rec.Started == 0
}

// newBrowser returns what speaks HTTP with the daemon, whether it is up or not.
func newBrowser(n *node) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return n.call() },
	}}
}

const origin = "http://127.0.0.1:8188"

// web sends a request over HTTP and decodes the answer into out, if that is not nil. Another status than 200 is a
// *fault.Error, whose code is empty if the answer has none.
func (c client) web(n *node, method, path string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), answered)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, origin+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := n.browser.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var why struct {
			Error struct{ Type, Message string }
		}
		_ = json.Unmarshal(text, &why)
		return &fault.Error{Code: why.Error.Type, Text: fmt.Sprint(resp.StatusCode, " ", why.Error.Message)}
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = text
		return nil
	}
	return json.Unmarshal(text, out)
}

// post returns what hands a job in over HTTP instead. One of two clients watches it from then on.
func (c client) post(n *node) func(ipcclient.Client, *message.RunRequest) (message.Receipt, error) {
	return func(conn ipcclient.Client, req *message.RunRequest) (message.Receipt, error) {
		_ = conn.Close()
		body, err := wire.Encode(req, wire.JSON)
		if err != nil {
			return message.Receipt{}, err
		}
		var out struct {
			Job string `json:"prompt_id"`
		}
		if err := c.web(n, http.MethodPost, "/prompt", body, &out); err != nil {
			return message.Receipt{}, err
		}
		_, retried := c.w.plan.has(c.job, revives)
		if from, ok := req.Client.(string); ok && !retried && c.dice.IntN(2) == 0 {
			c.oracle.reads(out.Job, 1)
			c.w.readers.Go(func() { c.watch(out.Job, from) })
		}
		return message.Receipt{Job: out.Job, Duplicate: true}, nil // the answer does not tell whether it is one
	}
}

// cancelPosted asks over HTTP that the job be cancelled.
func (c client) cancelPosted() error {
	n := c.nodes[c.dice.IntN(len(c.nodes))]
	return c.web(n, http.MethodPost, "/api/jobs/"+c.id+"/cancel", nil, nil)
}

// asked is what GET /api/jobs/{id} says.
type asked struct {
	Status  string
	Outputs map[string]struct {
		Images []struct{ Filename, Subfolder, Type string }
	}
}

func (a asked) ended() bool { return a.Status != "pending" && a.Status != "in_progress" }

// frames are ComfyUI's messages for the ends of jobs.
var frames = map[string]string{
	message.EventSuccess: "completed", message.EventError: "failed", message.EventInterrupted: "cancelled",
}

// slack is how long a socket may keep its client waiting for the end of a job that others can ask for, while nothing is
// wrong.
const slack = 30 * time.Second

// watch follows a job over HTTP to its end, as clients of ComfyUI do: on a websocket of the client it counts for, which
// is opened again when it breaks, and then by asking for the job and for its file.
func (c client) watch(id, from string) {
	c.dice = c.w.plan.dice("watch", id, from)
	for ; c.w.life.Err() == nil; time.Sleep(time.Second) {
		n := c.nodes[c.dice.IntN(len(c.nodes))]
		if a, ok := c.listens(n, id, from); ok && c.fetched(id, a) {
			c.oracle.reads(id, -1)
			return
		}
	}
}

// listens waits on a websocket until a job has ended, and returns what the daemon says of it then; false: the
// connection broke.
func (c client) listens(n *node, id, from string) (a asked, ok bool) {
	ctx, stop := context.WithCancel(c.w.life)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	conn, _, err := websocket.Dial(ctx, origin+"/ws?clientId="+url.QueryEscape(from), &websocket.DialOptions{
		HTTPClient: n.browser,
	})
	if err != nil {
		return a, false
	}
	defer func() { _ = conn.CloseNow() }()
	heard := make(chan string, 1)
	reading.Go(func() {
		defer close(heard)
		for {
			_, text, err := conn.Read(ctx)
			if err != nil {
				return
			}
			var m struct {
				Type string
				Data struct {
					ID string `json:"prompt_id"`
				}
			}
			if json.Unmarshal(text, &m) == nil && m.Data.ID == id && frames[m.Type] != "" {
				c.w.note("socket at %s hears of %s: %s", n.name, id, m.Type)
				heard <- m.Type
				return
			}
		}
	})
	for first, since := true, (time.Time{}); ; {
		a = asked{}
		err := c.web(n, http.MethodGet, "/api/jobs/"+id, nil, &a)
		if err != nil && n.goneEarly(id) {
			return asked{Status: "cancelled"}, true
		}
		if err == nil && a.ended() {
			if first { // before the socket was open, and another one of the client may have heard of it
				return a, true
			}
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > slack && c.w.calm(since) && !c.w.lossy() {
				c.w.violated("a socket at %s that is open does not hear of the end of %s, %s", n.name, id, a.Status)
				return a, true
			}
		}
		first = first && err != nil
		select {
		case kind, open := <-heard:
			if !open {
				return a, false
			}
			if err := c.web(n, http.MethodGet, "/api/jobs/"+id, nil, &a); err != nil {
				return a, false
			}
			if a.Status != frames[kind] && !c.w.lossy() {
				c.w.violated("a socket at %s hears %s of %s, which is %s", n.name, kind, id, a.Status)
			}
			return a, true
		case <-time.After(5 * time.Second):
		}
	}
}

// fetched gets the file of a job that has ended, from the daemon that has it, and tells the oracle; false: it cannot be
// had now.
func (c client) fetched(id string, a asked) bool {
	kind := map[string]string{"completed": message.EventSuccess, "cancelled": message.EventInterrupted}[a.Status]
	if kind == "" { // failed, or expired
		return true
	}
	end, got := message.Event{Type: kind}, []message.File{}
	for _, o := range a.Outputs {
		for _, f := range o.Images {
			var data []byte
			q := url.Values{"filename": {f.Filename}, "subfolder": {f.Subfolder}, "type": {f.Type}}
			for _, n := range c.nodes {
				if c.web(n, http.MethodGet, "/view?"+q.Encode(), nil, &data) == nil {
					got = append(got, message.File{Data: data})
					break
				}
			}
		}
	}
	if kind == message.EventSuccess && len(got) == 0 && !c.oracle.dropping(id) {
		return c.oracle.elsewhere(id)
	}
	c.oracle.hears(id, end, got)
	return true
}
