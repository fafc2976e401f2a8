package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"patchbay/fault"
	"patchbay/ipc/jobs"
	"patchbay/node/pyjson"
)

// getHistory answers with the jobs that have ended, or with one of them.
func (h *HTTP) getHistory(w http.ResponseWriter, r *http.Request) error {
	var list []jobs.Listed
	id := r.PathValue("id")
	if id == "" {
		list = h.ended()
	} else if found := h.find(id); found != nil && over(&found.Record, found.Ended) {
		list = []jobs.Listed{*found}
	}
	count, offset := len(list), -1
	q := r.URL.Query()
	for name, n := range map[string]*int{"max_items": &count, "offset": &offset} {
		if id != "" || !q.Has(name) {
			continue
		}
		v, err := strconv.Atoi(q.Get(name))
		if err != nil {
			return fault.At(fault.BadRequest, name, "%s: want an integer, got %q", name, q.Get(name))
		}
		*n = v
	}
	if offset < 0 && q.Has("max_items") {
		offset = len(list) - min(max(count, 0), len(list))
	}
	offset = min(max(offset, 0), len(list))
	list = list[offset:]
	list = list[:min(max(count, 0), len(list))]
	out := pyjson.NewObject()
	for i := range list {
		one, err := h.past.history(r.Context(), &list[i].Record)
		if err != nil {
			return err
		}
		out.Set(list[i].Job, one)
	}
	b, err := joined(out)
	if err != nil {
		return err
	}
	cached(w, r, jsonType, b)
	return nil
}

// joined writes an object of finished texts: encoding them again would cost a hundred times as much.
func joined(o *pyjson.Object) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, k := range o.Keys() {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(k)
		if err != nil {
			return nil, err
		}
		text, _ := o.At(k).(json.RawMessage)
		b.Write(key)
		b.WriteByte(':')
		b.Write(text)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

const jsonType = "application/json; charset=utf-8"

// cached answers with bytes of a type that the client may have already: the answer is 304 then.
func cached(w http.ResponseWriter, r *http.Request, kind string, b []byte) {
	sum := sha256.Sum256(b)
	w.Header().Set("Content-Type", kind)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:12])+`"`)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

// find returns one job; nil: there is none.
func (h *HTTP) find(id string) *jobs.Listed {
	found, ok := h.jobs.Find(id)
	if !ok || found.Kind != "" {
		return nil
	}
	return &found
}

// postHistory forgets jobs that have ended.
func (h *HTTP) postHistory(_ http.ResponseWriter, r *http.Request) error {
	o, err := h.fields(r)
	if err != nil {
		return err
	}
	ids := named(o.At("delete"))
	if pyjson.Bool(o.At("clear")) {
		for _, j := range h.ended() {
			ids = append(ids, j.Job)
		}
	}
	for _, id := range ids {
		if found := h.find(id); found != nil && over(&found.Record, found.Ended) {
			h.jobs.Forget(id)
		}
	}
	return nil
}
