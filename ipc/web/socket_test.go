package web

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

// TestLateSockets opens sockets while a job runs and after it has ended: both hear all of it, and one that comes when
// somebody has heard the end does not.
func TestLateSockets(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		id := d.post("late", onePicture)
		ipctest.WaitState(t, d.Jobs, id, message.Done)
		heard := types(d.listen("late").until(id))
		if !slices.Contains(heard, "execution_success") || !slices.Contains(heard, "executed") {
			t.Errorf("a socket that came after the end heard %v", heard)
		}
		e := d.listen("late")
		second := d.post("late", onePicture)
		for _, m := range e.until(second) {
			if m.Data["prompt_id"] == id {
				t.Errorf("a socket that came later is told again: %s", m.raw)
			}
		}
	})
}

// TestUnreadEnds cuts a socket off to which the end of a job waits to be written: the next one is told.
func TestUnreadEnds(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		d.listen("unread") // and reads nothing
		id := d.post("unread", onePicture)
		ipctest.WaitState(t, d.Jobs, id, message.Done)
		d.until(func() bool {
			d.hub.mu.Lock()
			defer d.hub.mu.Unlock()
			return d.hub.open == 0
		})
		if heard := types(d.listen("unread").until(id)); !slices.Contains(heard, "execution_success") {
			t.Errorf("a socket that came after one was cut off heard %v", heard)
		}
	})
}

// TestSocketsOfOneClient opens two sockets of one client, and closes the first: the second hears everything, as do
// both while they are open.
func TestSocketsOfOneClient(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		a, b := d.listen("twice"), d.listen("twice")
		id := d.post("twice", onePicture)
		if got, want := types(a.until(id)), types(b.until(id)); !slices.Contains(got, "execution_success") ||
			!slices.Contains(want, "execution_success") {
			t.Errorf("two sockets heard %v and %v", got, want)
		}
		_ = a.conn.CloseNow()
		id = d.post("twice", onePicture)
		b.until(id)
	})
}

// TestOnlyTheOwnerHears checks that another client is told how many jobs there are, and nothing else.
func TestOnlyTheOwnerHears(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		mine, other := d.listen("mine"), d.listen("other")
		id := d.post("mine", onePicture)
		mine.until(id)
		last := -1.0
		for last != 0 {
			m := other.next()
			n, ok := remainingIn(m)
			if !ok {
				t.Fatalf("another client is told %s", m.raw)
			}
			if m.Data["sid"] == nil {
				last = n
			}
		}
	})
}

// TestPreviewsWhenAskedFor checks which previews a socket gets: none, plain ones, and with metadata where the client
// can read them.
func TestPreviewsWhenAskedFor(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		for i, c := range []struct {
			method string
			flags  bool
			want   uint32
		}{
			{"", false, 0},
			{"none", false, 0},
			{"default", false, 0},
			{"latent2rgb", false, binaryPicture},
			{"auto", true, binaryMetadata},
		} {
			client := fmt.Sprint("p", i)
			e := d.listen(client)
			e.next()
			if c.flags {
				flags := `{"type": "feature_flags", "data": {"supports_preview_metadata": true}}`
				if err := e.conn.Write(wiretest.Context(t), websocket.MessageText, []byte(flags)); err != nil {
					t.Fatal(err)
				}
				if m := e.next(); m.Type != "feature_flags" || m.Data["supports_preview_metadata"] != true {
					t.Errorf("the answer to feature_flags is %s", m.raw)
				}
			}
			more := ""
			if c.method != "" {
				more = fmt.Sprintf(`, "extra_data": {"preview_method": %q}`, c.method)
			}
			id := d.post(client, `{"1": {"class_type": "Step", "inputs": {"n": 1}}, "2": {"class_type": "Wait", "inputs":
				{"n": 100}}}`, more)
			var got uint32
			for _, m := range e.until(id) {
				if m.Type == "" {
					got = binary.BigEndian.Uint32(m.raw)
				}
			}
			if got != c.want {
				t.Errorf("preview_method %q, metadata %v: binary messages of kind %d, want %d", c.method, c.flags, got, c.want)
			}
		}
	})
}

// TestFailures checks what a client is told about a job that fails, and of one that is refused.
func TestFailures(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		e := d.listen("f")
		id := d.post("f", `{"1": {"class_type": "Fail", "inputs": {}}}`)
		all := e.until(id)
		i := slices.IndexFunc(all, func(m said) bool { return m.Type == "execution_error" })
		if i < 0 || all[i].Data["node_id"] != "1" || all[i].Data["node_type"] != "Fail" ||
			all[i].Data["exception_message"] != "no memory" || all[i].Data["current_inputs"] == nil {
			t.Fatalf("the socket heard %v %v", types(all), all[max(i, 0)].Data)
		}
		if got := types(all[i:]); !slices.Equal(got, []string{"execution_error", "status", "executing"}) {
			t.Errorf("after the error the socket heard %v", got)
		}
		status, body, _ := d.ask("POST", "/prompt", `{"prompt": {"1": {"class_type": "NoSuch", "inputs": {}}}}`)
		answer := decoded(t, body).(map[string]any)
		refused := answer["error"].(map[string]any)
		if status != 400 || refused["type"] != "missing_node_type" || answer["node_errors"].(map[string]any)["1"] == nil {
			t.Errorf("an unknown class: %d %s", status, body)
		}
		for _, c := range []struct {
			body, kind string
			status     int
		}{
			{"{}", "no_prompt", 400},
			{"", "bad_request", 400},
			{"{", "bad_request", 400},
			{"[]", "bad_request", 400},
			{`{"prompt": {"1": {"class_type": "Wait"}}, "prompt_id": "ABC"}`, "invalid_prompt_id", 400},
			{`{"prompt": {"1": {"class_type": "Wait"}}, "number": "x"}`, "bad_request", 400},
			{`{"prompt": {"1": {"class_type": "Wait"}}, "number": null}`, "bad_request", 400},
		} {
			status, body, _ := d.ask("POST", "/prompt", c.body)
			got := decoded(t, body).(map[string]any)["error"].(map[string]any)
			if status != c.status || got["type"] != c.kind || got["message"] == "" || got["extra_info"] == nil {
				t.Errorf("POST /prompt %q: %d %s, want %d %s", c.body, status, body, c.status, c.kind)
			}
		}
		for _, path := range []string{"/queue", "/history", "/free", "/upload/image", "/api/jobs/cancel"} {
			status, body, _ := d.ask("POST", path, "{")
			got := decoded(t, body).(map[string]any)
			if path == "/api/jobs/cancel" { // this route of ComfyUI has its own form
				if status != 400 || len(got) != 1 || got["error"] != "Request body must be valid JSON" {
					t.Errorf("POST %s with a broken body: %d %s", path, status, body)
				}
				continue
			}
			if status != 400 || got["code"] != "bad_request" || got["message"] == "" ||
				got["message"] != got["error"].(map[string]any)["message"] {
				t.Errorf("POST %s with a broken body: %d %s, want 400 with code and message", path, status, body)
			}
		}
	})
}

// TestFlood checks that a client who says too much, or reads nothing, is cut off, and that others are not hurt.
func TestFlood(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		e := d.listen("flood")
		ctx := wiretest.Context(t)
		for range maxMessages + 1 {
			if err := e.conn.Write(ctx, websocket.MessageText, []byte(`{"type": "noise"}`)); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		for err == nil {
			_, _, err = e.conn.Read(ctx)
		}
		if code := websocket.CloseStatus(err); code != websocket.StatusPolicyViolation {
			t.Errorf("who says too much was closed with %d (%v), want %d", code, err, websocket.StatusPolicyViolation)
		}
		long := d.listen("long")
		if err := long.conn.Write(ctx, websocket.MessageText, make([]byte, maxReceived+1)); err == nil {
			for err == nil {
				_, _, err = long.conn.Read(ctx)
			}
		}
		ok := d.listen("ok")
		ok.until(d.post("ok", onePicture))
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			d.hub.mu.Lock()
			n := d.hub.open
			d.hub.mu.Unlock()
			if n == 1 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d sockets are open, want 1", n)
			}
		}
	})
}

// TestBodiesAreBounded sends a body that is too long.
func TestBodiesAreBounded(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, func(c *Config) { c.Body = 1000 })
		status, body, _ := d.ask("POST", "/prompt", `{"prompt": "`+string(make([]byte, 2000))+`"}`)
		if status != 413 || decoded(t, body).(map[string]any)["error"].(map[string]any)["type"] != "too_large" {
			t.Errorf("a body that is too long: %d %s", status, body)
		}
	})
}

// TestSilentReader opens a socket that reads nothing: what waits for it is bounded, and it is cut off.
func TestSilentReader(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		d.listen("silent")
		synctest.Wait() // until it is one of those that are open
		big := make([]byte, maxBehind)
		ended := make(chan int)
		d.hub.of("silent", func(s *socket) {
			go func() {
				frames, most := 0, 0
				for ; frames < 1000 && s.give(frame{data: big, binary: true}); frames++ {
					s.mu.Lock()
					most = max(most, s.bytes)
					s.mu.Unlock()
				}
				if most > 2*maxBehind || frames == 1000 {
					t.Errorf("%d bytes wait for a client, after %d frames", most, frames)
				}
				ended <- frames
			}()
		})
		t.Logf("%d frames of 1 MiB until the socket ended", <-ended)
		d.until(func() bool {
			d.hub.mu.Lock()
			defer d.hub.mu.Unlock()
			return d.hub.open == 0
		})
	})
}

// TestIdleSocketsAreSmall checks that an open socket has given up its request with its buffers and stack: 10,000 idle
// ones cost 345 MB with them, 246 without.
func TestIdleSocketsAreSmall(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		ears := make([]*ear, 20)
		for i := range ears {
			ears[i] = d.listen("idle")
		}
		synctest.Wait()
		all := make([]byte, 4<<20)
		all = all[:runtime.Stack(all, true)]
		reading := strings.Count(string(all), "web.(*socket).read(")
		if inside := strings.Count(string(all), "web.(*HTTP).ws("); reading != len(ears) || inside > 0 {
			t.Errorf("of %d sockets %d are read, %d requests wait for their end", len(ears), reading, inside)
		}
		id := d.post("idle", onePicture)
		for _, e := range ears {
			e.until(id)
		}
	})
}

// TestJobsOfOtherDaemonsAreHeard has a job run at one daemon and a socket of its client at another, which looks once a
// second what there is: the job begins and ends between two looks.
func TestJobsOfOtherDaemonsAreHeard(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		server := bubble.Start(t, natsserver.Inside(t.TempDir()))
		var doors [2]*door
		for i, owner := range []string{"a", "b"} {
			store, err := jobs.OpenJetStream(wiretest.Context(t), jobs.JetStreamConfig{
				URL: server.URL, InProcess: server, Owner: owner, Log: zerolog.Nop(),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			doors[i] = newDoorOn(t, nil, store)
		}
		e := doors[1].listen("c1")
		time.Sleep(1500 * time.Millisecond)
		id := doors[0].post("c1", onePicture)
		if heard := types(e.until(id)); !slices.Contains(heard, "execution_success") {
			t.Errorf("the socket heard %v", heard)
		}
	})
}
