package web

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"io"
	"path"
	"time"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

// text is a message as ComfyUI sends it: the type comes first, which clients rely on.
func text(kind string, data any) []byte {
	b, err := wire.Encode(pyjson.NewObject("type", kind, "data", data), wire.JSON)
	if err != nil { // a number that JSON lacks, in the inputs of a node that failed
		b, _ = wire.Encode(pyjson.NewObject("type", kind, "data", pyjson.NewObject("left_out", true)), wire.JSON)
	}
	return b
}

// teller turns the events of one job into the messages of ComfyUI.
type teller struct {
	h   *HTTP
	job string
	to  *socket

	nodes   *pyjson.Object // of progress_state, by id
	current string         // the node that runs; "": none
	shown   time.Time      // when progress was last sent
	at      float64        // that progress, from 0 to 1
}

func (t *teller) say(kind string, data *pyjson.Object) {
	t.to.give(frame{data: text(kind, data)})
}

func (t *teller) status() { t.to.give(t.remaining()) }

func (t *teller) remaining() frame {
	return frame{data: text("status", pyjson.NewObject("status", execInfo(t.h.remaining())))}
}

// event tells about one event. ComfyUI's order at the end is the result, the status, and executing without a node;
// that of the log is another.
func (t *teller) event(ev *message.Event) {
	d := ev.Data
	switch ev.Type {
	case message.EventQueued:
		t.status()
	case message.EventStart:
		t.nodes, t.current = pyjson.NewObject(), ""
		t.status()
		t.say(ev.Type, pyjson.NewObject("prompt_id", t.job, "timestamp", stamp(ev)))
	case "execution_cached":
		t.say(ev.Type, pyjson.NewObject("nodes", d["nodes"], "prompt_id", t.job, "timestamp", stamp(ev)))
	case message.EventExecuting:
		if node, ok := d["node"].(string); ok {
			t.runs(node)
		}
	case message.EventProgress:
		t.progress(cmp.Or(ev.Node, t.current), d["value"], d["max"])
	case message.EventExecuted:
		t.executed(ev)
	}
	if message.Terminal(ev.Type) {
		t.end(ev)
	}
}

// stamp returns the time of an event.
func stamp(ev *message.Event) any {
	if at, ok := ev.Data["timestamp"]; ok {
		return at
	}
	return ev.TS
}

// runs notes that a node runs, and that the one before it has ended.
func (t *teller) runs(node string) {
	t.finish()
	t.current, t.shown = node, time.Time{}
	t.set(node, json.RawMessage("0.0"), json.RawMessage("1.0"), "running")
	t.state()
	t.say(message.EventExecuting, pyjson.NewObject("node", node, "display_node", node, "prompt_id", t.job))
}

// set sets what progress_state says of a node; nil values stay as they are.
func (t *teller) set(node string, value, most any, state string) {
	o := t.nodes.In(node)
	if o == nil {
		o = pyjson.NewObject("value", value, "max", most, "state", state, "node_id", node, "prompt_id", t.job,
			"display_node_id", node, "parent_node_id", nil, "real_node_id", node)
		t.nodes.Set(node, o)
	}
	if value != nil {
		o.Set("value", value)
		o.Set("max", most)
	}
	o.Set("state", state)
}

func (t *teller) state() {
	t.say("progress_state", pyjson.NewObject("prompt_id", t.job, "nodes", t.nodes))
}

// finish notes that the node that ran has ended well.
func (t *teller) finish() {
	if t.current == "" {
		return
	}
	o := t.nodes.In(t.current)
	o.Set("value", o.At("max"))
	t.set(t.current, nil, nil, "finished")
	t.current = ""
	t.state()
}

// progress tells about a step: the first and the last, and of the others those that are a tenth of a second and half a
// percent apart. Clients that see previews are told of every one.
func (t *teller) progress(node string, value, most any) {
	v, of := numberOf(value), max(numberOf(most), 1)
	now := time.Now()
	if v > 1 && v < of && (now.Sub(t.shown) < 100*time.Millisecond || v/of-t.at < 0.005) {
		return
	}
	t.shown, t.at = now, v/of
	t.set(node, value, most, "running")
	t.state()
	t.say(message.EventProgress, pyjson.NewObject("value", value, "max", most, "prompt_id", t.job, "node", node))
}

func numberOf(v any) float64 {
	if n, ok := v.(int); ok { // of a job that ran in this process
		return float64(n)
	}
	f, _ := pyjson.Float(v)
	return f
}

// executed tells what a node has made. One whose result was there before has no other message.
func (t *teller) executed(ev *message.Event) {
	node, _ := ev.Data["node"].(string)
	if t.pictures(node, ev.Data["output"]) {
		return
	}
	t.say(ev.Type, pyjson.NewObject("node", node, "display_node", node, "output", ev.Data["output"], "prompt_id", t.job))
	switch {
	case node == t.current:
		t.finish()
	case t.nodes.In(node) == nil:
		t.set(node, 1, 1, "finished")
		t.state()
	}
}

// pictures sends what a node has made for the socket alone, as its ui dictionary lists it, and reports whether there
// was any. Clients take for its pictures what comes while it runs.
func (t *teller) pictures(node string, ui any) (sent bool) {
	b, err := wire.Encode(ui, wire.JSON)
	if err != nil {
		return false
	}
	var listed map[string]json.RawMessage
	var refs []files.FileRef
	if json.Unmarshal(b, &listed) != nil || json.Unmarshal(listed[files.KindSocket], &refs) != nil {
		return false
	}
	for _, ref := range refs {
		if !sent && node != t.current {
			t.runs(node)
		}
		sent = true
		f, _, err := openBelow(t.h.folder(ref.Type), path.Join(ref.Subfolder, ref.Filename))
		if err != nil {
			t.h.cfg.Log.Warn().Str("job", t.job).Str("file", ref.Filename).Msg("a picture for the socket is gone")
			continue
		}
		data, err := io.ReadAll(f)
		if _ = f.Close(); err == nil {
			t.to.give(frame{data: t.picture(node, "image/png", formatPNG, data), binary: true})
		}
	}
	return sent
}

// end tells how the job has ended. A job that was cancelled while it waited just goes: the record says that it had not
// begun, since the event that it begins may have been lost.
func (t *teller) end(ev *message.Event) {
	kind, data := lastFrame(ev)
	if found, ok := t.h.jobs.Find(t.job); ok && !over(&found.Record, found.Ended) {
		f := t.remaining()
		f.ends = t.job
		t.to.give(f)
		return
	}
	if kind == message.EventSuccess {
		t.finish()
	}
	t.say(kind, data)
	t.status()
	t.to.give(frame{
		data: text(message.EventExecuting, pyjson.NewObject("node", nil, "prompt_id", t.job)), ends: t.job,
	})
}

// lastFrame returns the type and data of ComfyUI's message for the end of a job.
func lastFrame(ev *message.Event) (string, *pyjson.Object) {
	d, out := ev.Data, pyjson.NewObject()
	take := func(names ...string) {
		for _, name := range names {
			out.Set(name, d[name])
		}
	}
	take("prompt_id")
	kind := ev.Type
	switch kind {
	case message.EventInterrupted:
		take("node_id", "node_type", "executed")
	case message.EventError:
		take("node_id", "node_type", "executed", "exception_message", "exception_type", "traceback", "current_inputs",
			"current_outputs")
	case message.EventExpired:
		kind = message.EventError
		text := "the job has expired"
		if ev.Error != nil {
			text = ev.Error.Error()
		}
		out.SetAll("node_id", nil, "node_type", nil, "executed", []any{}, "exception_message", text, "exception_type",
			"expired", "traceback", []any{}, "current_inputs", pyjson.NewObject(), "current_outputs", []any{})
	}
	out.Set("timestamp", stamp(ev))
	return kind, out
}

// The numbers of binary messages, and of the formats of pictures in them.
const (
	binaryPicture  = 1 // u32 format, picture
	binaryMetadata = 4 // u32 length, JSON, picture
	formatJPEG     = 1
	formatPNG      = 2
)

// preview sends the newest preview. Those that the client has not read yet are replaced.
func (t *teller) preview(p *message.Preview) {
	t.to.give(frame{
		data: t.picture(p.Node, p.Format, formatJPEG, p.Data), binary: true, key: "preview " + t.job + " " + p.Node,
	})
}

// picture is a binary message with a picture.
func (t *teller) picture(node, kind string, format uint32, data []byte) []byte {
	t.to.mu.Lock()
	metadata := t.to.metadata
	t.to.mu.Unlock()
	b := make([]byte, 0, len(data)+256)
	if !metadata {
		b = binary.BigEndian.AppendUint32(b, binaryPicture)
		b = binary.BigEndian.AppendUint32(b, format)
		return append(b, data...)
	}
	about, _ := wire.Encode(pyjson.NewObject("node_id", node, "prompt_id", t.job, "display_node_id", node,
		"parent_node_id", nil, "real_node_id", node, "image_type", kind), wire.JSON)
	b = binary.BigEndian.AppendUint32(b, binaryMetadata)
	b = binary.BigEndian.AppendUint32(b, uint32(len(about)))
	return append(append(b, about...), data...)
}
