package web

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
	"patchbay/node/template"
)

// modelOf describes a template as OpenAI does a model.
func (h *HTTP) modelOf(name string) *pyjson.Object {
	created := int64(0)
	if info, err := os.Stat(path.Join(h.templates.Dir, name+".json")); err == nil {
		created = info.ModTime().Unix()
	}
	return pyjson.NewObject("id", name, "object", "model", "created", created, "owned_by", "patchbay")
}

// listModels answers GET /v1/models: templates that can be used.
func (h *HTTP) listModels(w http.ResponseWriter, _ *http.Request) error {
	list := []any{}
	for _, name := range h.usable() {
		list = append(list, h.modelOf(name))
	}
	h.send(w, http.StatusOK, pyjson.NewObject("object", "list", "data", list))
	return nil
}

// oneModel answers GET /v1/models/{model}.
func (h *HTTP) oneModel(w http.ResponseWriter, r *http.Request) error {
	t, err := h.model(r.PathValue("model"))
	if err == nil {
		h.send(w, http.StatusOK, h.modelOf(t.Name))
	}
	return err
}

// usable returns the names of the templates whose workflows can run.
func (h *HTTP) usable() []string {
	return slices.DeleteFunc(h.templates.List(), func(name string) bool {
		_, err := h.template(name)
		return err != nil
	})
}

// model returns the template that a request names as its model. Without a name there must be just one.
func (h *HTTP) model(name string) (*template.Template, error) {
	if name == "" {
		all := h.usable()
		if len(all) != 1 {
			return nil, fault.At(fault.InputMissing, "model", "model is missing; there are %s", fault.List(all))
		}
		name = all[0]
	}
	t, err := h.templates.Open(name)
	if e := fault.From(err); err != nil {
		e.Field = "model"
		return nil, e
	}
	return t, nil
}

// failLikeOpenAI answers with an error as OpenAI's API does.
func (h *HTTP) failLikeOpenAI(w http.ResponseWriter, err error) {
	e := h.published(w, err)
	h.send(w, badStatus(e), openAIError(e, badStatus(e)))
}

func openAIError(e *fault.Error, status int) *pyjson.Object {
	f, kind := e.Form(), "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	var param any
	if e.Field != "" {
		param = e.Field
	}
	return pyjson.NewObject("error", pyjson.NewObject("message", e.Error(), "type", kind, "param", param, "code",
		cmp.Or(f.Type, f.Code)))
}

// drawing is a request for pictures in OpenAI's form.
type drawing struct {
	kind     string // image_generation or image_edit
	template *template.Template
	values   *pyjson.Object // of the template's parameters
	n        int
	url      bool // of the pictures, in place of their bytes
	jpeg     bool
	quality  int // of JPEG
	stream   bool
	partial  int // pictures of the unfinished one
}

// meaningless are fields of OpenAI's API that a template may have a parameter for, and that are passed over if not.
func meaningless() []string {
	return []string{"user", "quality", "style", "background", "moderation", "input_fidelity"}
}

// newDrawing reads a request. Its fields are OpenAI's, and the parameters of the template.
func (h *HTTP) newDrawing(r *http.Request, kind string) (*drawing, error) {
	given, err := h.values(r)
	if err != nil {
		return nil, err
	}
	d := &drawing{kind: kind, values: pyjson.NewObject(), n: 1, quality: 100}
	if d.template, err = h.model(given.Text("model")); err != nil {
		return nil, err
	}
	for _, name := range given.Keys() {
		if err := d.set(name, given.At(name)); err != nil {
			return nil, err
		}
	}
	if d.url && d.stream {
		return nil, fault.At(fault.BadRequest, "response_format", "response_format: a stream has pictures as b64_json only")
	}
	if d.n > 1 && d.template.Find("seed") == nil {
		return nil, fault.At(fault.BadRequest, "n", "n: template %s has no parameter seed: all pictures would be equal",
			d.template.Name)
	}
	if kind == "image_edit" && !d.values.Has("image") {
		return nil, fault.At(fault.InputMissing, "image", "image is missing")
	}
	if kind == "image_generation" && !d.values.Has("prompt") {
		return nil, fault.At(fault.InputMissing, "prompt", "prompt is missing")
	}
	return d, nil
}

var sides = regexp.MustCompile(`^([0-9]{1,6})x([0-9]{1,6})$`)

// set takes one field of a request.
func (d *drawing) set(name string, v any) error {
	if v == nil {
		return nil
	}
	text, _ := v.(string)
	switch name {
	case "model":
		if _, ok := v.(string); !ok {
			return fault.At(fault.BadRequest, name, "model: want the name of a template")
		}
		return nil
	case "n":
		return whole(name, v, 1, 10, &d.n)
	case "partial_images":
		return whole(name, v, 0, 3, &d.partial)
	case "output_compression":
		return whole(name, v, 0, 100, &d.quality)
	case "stream":
		d.stream = v == true || text == "true"
		if _, isBool := v.(bool); !isBool && text != "true" && text != "false" {
			return fault.At(fault.BadRequest, name, "stream: want true or false")
		}
		return nil
	case "response_format":
		d.url = text == "url"
		return oneOf(name, text, "b64_json", "url")
	case "output_format":
		d.jpeg = text == "jpeg"
		return oneOf(name, text, "png", "jpeg")
	case "size":
		return d.size(text)
	}
	needless := slices.Contains(meaningless(), name) || name == "prompt" && d.kind == "image_edit"
	if needless && d.template.Find(name) == nil { // every edit has a prompt, also one that needs none
		return nil
	}
	d.values.Set(name, v) // a name that is no parameter is refused when the workflow is filled in
	return nil
}

// size takes WIDTHxHEIGHT, or auto for that of the workflow.
func (d *drawing) size(text string) error {
	m := sides.FindStringSubmatch(text)
	switch {
	case text == "auto":
		return nil
	case m == nil:
		return fault.At(fault.InvalidInput, "size", "size: want WIDTHxHEIGHT or auto, got %s", pyjson.Excerpt(text))
	case d.template.Find("width") == nil || d.template.Find("height") == nil:
		return fault.At(fault.BadRequest, "size", "size: template %s has no parameters width and height: leave it out",
			d.template.Name)
	}
	d.values.SetAll("width", m[1], "height", m[2])
	return nil
}

// whole reads a whole number, from JSON or a form.
func whole(name string, v any, least, most int, out *int) error {
	n, err := strconv.Atoi(pyjson.Str(v))
	if err != nil || n < least || n > most {
		return fault.At(fault.InvalidInput, name, "%s: want a whole number from %d to %d", name, least, most)
	}
	*out = n
	return nil
}

func oneOf(name, text string, values ...string) error {
	if slices.Contains(values, text) {
		return nil
	}
	return fault.At(fault.NotInList, name, "%s: want one of %s, got %s", name, strings.Join(values, ", "),
		pyjson.Excerpt(text))
}

// generate answers POST /v1/images/generations, edit POST /v1/images/edits.
func (h *HTTP) generate(w http.ResponseWriter, r *http.Request) error {
	return h.draw(w, r, "image_generation")
}

func (h *HTTP) edit(w http.ResponseWriter, r *http.Request) error { return h.draw(w, r, "image_edit") }

// draw queues the jobs of a request, one for each picture, and answers when all have ended.
func (h *HTTP) draw(w http.ResponseWriter, r *http.Request, kind string) (err error) {
	d, err := h.newDrawing(r, kind)
	if err != nil {
		return err
	}
	var waiting []string
	defer func() {
		if errors.Is(context.Cause(r.Context()), errStopping) {
			return // they go on after the next start
		}
		for _, job := range waiting { // another one has failed, or the client is gone
			h.cancel(context.WithoutCancel(r.Context()), r, job)
		}
	}()
	seed, chosen := d.values.Get("seed")
	for i := range d.n {
		if d.template.Find("seed") != nil && (!chosen || i > 0) {
			d.values.Set("seed", rand.Int64N(1<<32)) // as with OpenAI's models, the same prompt gives another picture
		}
		if first, ok := seed.(int64); ok && chosen {
			d.values.Set("seed", first+int64(i))
		}
		job, err := h.order(r, d.template, d.values, pyjson.NewObject("preview", d.stream && d.partial > 0))
		if err != nil {
			return err
		}
		waiting = append(waiting, job)
	}
	w.Header().Set("Patchbay-Job", strings.Join(waiting, ", "))
	if d.stream {
		return h.streamed(w, r, d, &waiting)
	}
	data := []any{}
	for len(waiting) > 0 {
		rec, err := h.patiently(w, r, waiting[0], -1, false, nil)
		if err != nil {
			return err
		}
		waiting = waiting[1:]
		for _, i := range answering(rec) {
			one, err := h.drawn(r, d, rec, i)
			if err != nil {
				return err
			}
			data = append(data, one)
		}
	}
	h.send(w, http.StatusOK, pyjson.NewObject("created", time.Now().Unix(), "data", data, "output_format", d.format()))
	return nil
}

func (d *drawing) format() string {
	if d.jpeg {
		return "jpeg"
	}
	return "png"
}

// drawn is one picture of an answer.
func (h *HTTP) drawn(r *http.Request, d *drawing, rec *message.Record, i int) (*pyjson.Object, error) {
	if d.url {
		return pyjson.NewObject("url", fileURL(r, d, rec.Outputs[i])), nil
	}
	data, err := h.svc.File(r.Context(), rec, i)
	if err == nil && d.jpeg {
		var pixels []byte
		var y, x int
		if pixels, y, x, err = rgba(data); err == nil {
			data, err = asJPEG(opaque(pixels), y, x, d.quality)
		}
	}
	if err != nil {
		return nil, err
	}
	return pyjson.NewObject("b64_json", base64.StdEncoding.EncodeToString(data)), nil
}

// fileURL returns the address of a file at /view, under the name by which the client has reached this server.
func fileURL(r *http.Request, d *drawing, ref message.OutputRef) string {
	q := url.Values{"filename": {ref.Filename}, "subfolder": {ref.Subfolder}, "type": {cmp.Or(ref.Type, "output")}}
	if d.jpeg {
		q.Set("preview", "jpeg;"+strconv.Itoa(max(d.quality, 1)))
	}
	u := url.URL{Scheme: "http", Host: r.Host, Path: "/view", RawQuery: q.Encode()}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String()
}
