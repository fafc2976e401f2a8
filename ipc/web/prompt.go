package web

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/serve"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// postPrompt queues a workflow.
func (h *HTTP) postPrompt(w http.ResponseWriter, r *http.Request) error {
	o, err := h.fields(r)
	if err != nil {
		return err
	}
	if !message.HasField(o, "prompt") && !message.HasField(o, "workflow") {
		return &fault.Error{Code: fault.NoPrompt, Text: "No prompt provided", Details: "No prompt provided"}
	}
	req, receipt, err := h.queue(r, o)
	if err != nil {
		return err
	}
	n := req.Number
	if receipt.Duplicate {
		if rec, err := h.jobs.Get(receipt.Job); err == nil {
			n = rec.Number
		}
	}
	h.send(w, http.StatusOK, pyjson.NewObject("prompt_id", receipt.Job, "number", number(n), "node_errors",
		orEmptyMap(receipt.NodeErrors)))
	return nil
}

// queue puts a job into the queue, with a number and, unless the request names one, an id.
func (h *HTTP) queue(r *http.Request, o *pyjson.Object) (*message.RunRequest, message.Receipt, error) {
	if err := h.count(o); err != nil {
		return nil, message.Receipt{}, err
	}
	if o.At("prompt_id") == nil && o.At("id") == nil && o.At("unique_key") == nil {
		o.Set("id", newUUID())
	}
	if url := r.Header.Get("Patchbay-Webhook"); url != "" {
		o.Set("webhook", url)
	}
	req, receipt, err := h.svc.Submit(&serve.Call{
		Verb: message.VerbSubmit, From: from(r), TraceParent: message.CarriedTraceParent(r.Header), Fields: o,
	})
	if err == nil && !receipt.Duplicate {
		h.past.remember(receipt.Job, req)
	}
	return req, receipt, err
}

// newUUID returns an id for a job, as ComfyUI makes them.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// count gives a request its number, which grows from job to job, unless the client has chosen one. A negative one, as
// in ComfyUI, puts the job ahead of those that wait.
func (h *HTTP) count(o *pyjson.Object) error {
	if given, ok := o.Get("number"); ok {
		var n struct {
			Number *float64 `json:"number"`
		}
		if err := wire.Bind(o, &n); err != nil || n.Number == nil {
			return fault.At(fault.BadRequest, "number", "field number: want a number, got %s", wire.KindOf(given))
		}
		if *n.Number < 0 {
			o.Set("front", true)
		}
		return nil
	}
	h.mu.Lock()
	h.number++
	n := h.number
	h.mu.Unlock()
	if front, _ := o.At("front").(bool); front {
		n = -n
	}
	o.Set("number", n)
	return nil
}

// remaining counts the jobs that wait or run. One whose last event is not in its log yet still runs: what clients read
// when the count falls must be complete.
func (h *HTTP) remaining() int { return len(h.jobs.Select(open)) }

// open reports whether a job is in the queue as ComfyUI shows it.
func open(r *message.Record, ended bool) bool { return r.Kind == "" && !ended }

func (h *HTTP) getPrompt(w http.ResponseWriter, _ *http.Request) error {
	h.send(w, http.StatusOK, map[string]any{"exec_info": map[string]any{"queue_remaining": h.remaining()}})
	return nil
}

// askTime bounds how long a request waits for the store.
const askTime = 10 * time.Second

// cancel cancels a job if its state is among those of only, or in any state if there are none.
func (h *HTTP) cancel(ctx context.Context, r *http.Request, id string, only ...message.State) bool {
	rec, err := h.jobs.Get(id)
	if err != nil || rec.Kind != "" || rec.State.Final() || len(only) > 0 && rec.State != only[0] {
		return false
	}
	var reply message.CancelReply
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	err = h.svc.Ask(ctx, &serve.Call{Verb: message.VerbCancel, From: from(r), Job: id}, &reply)
	return err == nil && reply.Cancelled
}

// interrupt stops one running job, or all if none is named. As in ComfyUI, a body that cannot be read names none.
func (h *HTTP) interrupt(_ http.ResponseWriter, r *http.Request) error {
	o, err := h.fields(r)
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return err
	}
	if id, named := o.At("prompt_id").(string); named && id != "" {
		h.cancel(r.Context(), r, id, message.Running)
		return nil
	}
	running := h.jobs.Select(func(r *message.Record, _ bool) bool {
		return r.Kind == "" && r.State == message.Running
	})
	for _, j := range running {
		if !h.svc.Owns(j.Job) { // what other daemons run is not on this server, as a client sees it
			continue
		}
		h.cancel(r.Context(), r, j.Job, message.Running)
	}
	return nil
}

// free gives up what workers have cached, when the jobs that run have ended: nobody waits for that.
func (h *HTTP) free(_ http.ResponseWriter, r *http.Request) error {
	o, err := h.fields(r)
	if err != nil {
		return err
	}
	unload, _ := o.At("unload_models").(bool)
	memory, _ := o.At("free_memory").(bool)
	if !unload && !memory {
		return nil
	}
	h.svc.Handle(&serve.Call{Verb: message.VerbFree, From: from(r), Reply: &serve.Reply{
		Enc: wire.JSON, Limit: wire.MaxFrame, Send: func([][]byte, []int, *fault.Error, bool) error { return nil },
	}})
	return nil
}
