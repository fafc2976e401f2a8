package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// socket is one websocket of a client, who may have several. For every job of the client that waits or runs a goroutine
// reads the job's log and writes frames; it waits when the client does not read.
type socket struct {
	hub  *hub
	id   string // of the client
	conn *websocket.Conn
	ctx  context.Context
	stop context.CancelFunc

	mu        sync.Mutex
	out       []frame
	bytes     int // of out
	changed   chan struct{}
	metadata  bool            // previews come with it
	flags     bool            // the client has sent its first message
	told      map[string]told // by job
	following map[string]bool
}

// told is what a client knows of a job.
type told struct {
	next uint64 // the first event that it was not told about
	end  uint64 // the number of the end that it was told about; 0: of none
}

// frame is one message to a client. One with a key replaces the one of that key that has not been sent.
type frame struct {
	data   []byte
	binary bool
	key    string
	ends   string // the job of whose end this is the last message
}

const (
	maxBehind   = 1 << 20          // bytes that wait for a client to read, before who writes them waits too
	maxSilence  = 30 * time.Second // how long a client may not read what waits for it
	maxReceived = 64 << 10         // bytes of a message from a client
	maxMessages = 200              // from a client in ten seconds
)

// ws answers GET /ws.
func (h *HTTP) ws(w http.ResponseWriter, r *http.Request) error {
	id := r.URL.Query().Get("clientId")
	if len(id) > 256 {
		return fault.At(fault.BadRequest, "clientId", "clientId has %d bytes, at most 256 are allowed", len(id))
	}
	if id == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		id = hex.EncodeToString(b[:])
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // guard has checked it
	if err != nil {
		return nil //nolint:nilerr // Accept has answered
	}
	conn.SetReadLimit(maxReceived)
	s := &socket{
		hub: h.hub, id: id, conn: conn, changed: make(chan struct{}), told: map[string]told{},
		following: map[string]bool{},
	}
	// The handler returns, so that an idle socket has neither the request nor its buffers and stack.
	s.ctx, s.stop = context.WithCancel(context.Background())
	if !h.hub.enter(s) {
		s.stop()
		_ = conn.Close(websocket.StatusTryAgainLater, "too many sockets, or the daemon is shutting down")
		return nil
	}
	n := h.remaining()
	s.put(frame{data: text("status", pyjson.NewObject("status", execInfo(n), "sid", id))})
	h.hub.follow(id)
	go s.write()
	go s.read()
	return nil
}

func execInfo(remaining int) any {
	return pyjson.NewObject("exec_info", pyjson.NewObject("queue_remaining", remaining))
}

// read reads what a client says: feature_flags, first of all. The rest is passed over, as in ComfyUI.
func (s *socket) read() {
	defer s.hub.leave(s)
	defer s.stop()
	count, since := 0, time.Now()
	for {
		kind, body, err := s.conn.Read(s.ctx)
		if err != nil {
			return
		}
		if time.Since(since) > 10*time.Second {
			count, since = 0, time.Now()
		}
		if count++; count > maxMessages {
			_ = s.conn.Close(websocket.StatusPolicyViolation, "too many messages")
			return
		}
		first := !s.flags
		s.flags = true
		if kind != websocket.MessageText || !first {
			continue
		}
		o, err := message.Guarded(func() (*pyjson.Object, error) {
			return wire.Decode(body, wire.JSON, wire.DefaultLimits())
		})
		if err != nil || o.Text("type") != "feature_flags" {
			continue
		}
		s.mu.Lock()
		s.metadata, _ = o.In("data").At("supports_preview_metadata").(bool)
		s.mu.Unlock()
		s.put(frame{data: text("feature_flags", serverFeatures())})
	}
}

// write sends what waits until the socket ends.
func (s *socket) write() {
	defer s.stop()
	for {
		s.mu.Lock()
		out := s.out
		changed := s.changed
		s.mu.Unlock()
		if len(out) == 0 {
			select {
			case <-s.ctx.Done():
				_ = s.conn.Close(websocket.StatusGoingAway, "")
				return
			case <-changed:
			}
			continue
		}
		kind := websocket.MessageText
		if out[0].binary {
			kind = websocket.MessageBinary
		}
		ends := out[0].ends
		if ends != "" { // first, since who has read it may open another socket at once
			s.hub.hears(ends)
		}
		ctx, done := context.WithTimeout(s.ctx, maxSilence)
		err := s.conn.Write(ctx, kind, out[0].data)
		done()
		if err != nil {
			if ends != "" {
				s.hub.unheard(ends)
			}
			_ = s.conn.CloseNow() // in the middle of a message there is no room to say why
			return
		}
		s.mu.Lock()
		s.bytes -= len(s.out[0].data)
		s.out = s.out[1:]
		s.touch()
		s.mu.Unlock()
	}
}

// touch wakes who waits for a change. The caller must hold s.mu.
func (s *socket) touch() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// put adds a frame to what waits, and does not block.
func (s *socket) put(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.key != "" {
		for i := 1; i < len(s.out); i++ { // the first one may be on its way
			if s.out[i].key == f.key {
				s.bytes -= len(s.out[i].data)
				s.out = slices.Delete(s.out, i, i+1)
				break
			}
		}
	}
	s.out = append(s.out, f)
	s.bytes += len(f.data)
	s.touch()
}

// give is put for who can wait until the client has read what was sent before. It returns false when the socket ends.
func (s *socket) give(f frame) bool {
	for {
		s.mu.Lock()
		room, changed := len(s.out) == 0 || s.bytes+len(f.data) <= maxBehind, s.changed
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			return false
		}
		if room {
			s.put(f)
			return true
		}
		select {
		case <-s.ctx.Done():
			return false
		case <-changed:
		}
	}
}

// status tells a client how many jobs wait and run.
func (s *socket) status(n int) {
	s.put(frame{data: text("status", pyjson.NewObject("status", execInfo(n))), key: "status"})
}

// follow starts to tell the client about a job of its, unless that is being done. It does not block.
func (s *socket) follow(job string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.following[job] || s.ctx.Err() != nil {
		return
	}
	s.following[job] = true
	known := s.told[job]
	go func() {
		known := s.tell(job, known)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.following, job)
		s.told[job] = known
	}()
}

// tell tells the client what it does not know yet of a job, until the job or the socket ends, and returns what it knows
// then. Of a job that has ended a cursor returns the end again.
func (s *socket) tell(job string, known told) told {
	h := s.hub.h
	cur, err := h.jobs.Follow(s.ctx, job, known.next, true)
	if err != nil {
		return known
	}
	defer cur.Close()
	t := &teller{h: h, job: job, to: s, nodes: pyjson.NewObject()}
	for {
		it, err := cur.Next(s.ctx)
		switch {
		case errors.Is(err, jobs.ErrEnd), err != nil:
			return known
		case it.Preview != nil:
			t.preview(it.Preview)
			continue
		}
		ends := message.Terminal(it.Event.Type)
		if ends && it.Event.Seq == known.end {
			continue
		}
		t.event(it.Event)
		known.next = max(known.next, it.Event.Seq+1)
		if ends {
			known.end = it.Event.Seq
		}
	}
}
