package web

import (
	"encoding/base64"
	"net/http"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// eventStream writes server-sent events.
type eventStream struct {
	w    http.ResponseWriter
	conn *http.ResponseController
}

func newEventStream(w http.ResponseWriter) *eventStream {
	head := w.Header()
	head.Set("Content-Type", "text/event-stream; charset=utf-8")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Accel-Buffering", "no") // proxies must pass on what there is
	w.WriteHeader(http.StatusOK)
	return &eventStream{w, http.NewResponseController(w)}
}

// send sends one event, or a comment without a kind. The client has a time to read it.
func (s *eventStream) send(kind string, data any) error {
	text := []byte(": waiting\n\n")
	if kind != "" {
		b, err := wire.Encode(data, wire.JSON)
		if err != nil {
			return err
		}
		text = append(append([]byte("event: "+kind+"\ndata: "), b...), "\n\n"...)
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(maxSilence))
	_, err := s.w.Write(text)
	if err == nil {
		err = s.conn.Flush()
	}
	return err
}

// streamed answers with the events of the jobs in waiting, one after the other: previews while a picture is drawn, then
// the picture.
func (h *HTTP) streamed(w http.ResponseWriter, r *http.Request, d *drawing, waiting *[]string) error {
	s := newEventStream(w)
	about := func(kind, b64 string) *pyjson.Object {
		return pyjson.NewObject("type", d.kind+"."+kind, "b64_json", b64, "created_at", time.Now().Unix(), "size", "auto",
			"quality", "auto", "background", "auto", "output_format", d.format())
	}
	for len(*waiting) > 0 {
		sent, done := 0, 0.0
		rec, err := h.patiently(w, r, (*waiting)[0], -1, false, func(it jobs.Item) error {
			switch {
			case it.Event != nil:
				if of := numberOf(it.Event.Data["max"]); it.Event.Type == message.EventProgress && of > 0 {
					done = numberOf(it.Event.Data["value"]) / of
				}
				return nil
			case it.Preview == nil:
				return s.send("", nil)
			case sent >= d.partial || done < float64(sent+1)/float64(d.partial+1): // they come evenly
				return nil
			}
			o := about("partial_image", base64.StdEncoding.EncodeToString(it.Preview.Data))
			o.SetAll("output_format", "jpeg", "partial_image_index", sent)
			sent++
			return s.send(d.kind+".partial_image", o)
		})
		for i := 0; err == nil && i < len(answering(rec)); i++ {
			var one *pyjson.Object
			if one, err = h.drawn(r, d, rec, answering(rec)[i]); err != nil {
				break
			}
			o := about("completed", one.Text("b64_json"))
			o.Set("usage", pyjson.NewObject("input_tokens", 0, "output_tokens", 0, "total_tokens", 0,
				"input_tokens_details", pyjson.NewObject("image_tokens", 0, "text_tokens", 0)))
			err = s.send(d.kind+".completed", o)
		}
		if err != nil { // the status has been sent: the error is an event
			e := h.cfg.Roots.Publish(fault.From(err))
			_ = s.send("error", openAIError(e, badStatus(e)))
			return nil
		}
		*waiting = (*waiting)[1:]
	}
	return nil
}
