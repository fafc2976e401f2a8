package web

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/image/draw"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

type (
	fileView struct {
		Name, URL, Size string
		Picture         bool
		Width, Height   int
	}
	factView struct{ Name, Text string }
	// spanView is a stretch of time: a part of a bar that is a thousand wide.
	spanView struct {
		Name, Class, Time, Begins, Takes string
		At, Wide                         int
	}
	timesView struct {
		Total        string
		Parts, Nodes []spanView
		Runs         []string
	}
	eventView struct {
		At         time.Time
		Attempt    int
		Type, Node string
	}
	eventsView struct {
		Causes []string
		Events []eventView
	}
)

// jobParts makes the parts of the page of a job.
func (h *HTTP) jobParts(ctx context.Context, j *jobs.Listed) ([]part, error) {
	log, _, err := h.jobs.Log(ctx, j.Job)
	if err != nil {
		log = nil // the store does not answer: the record says what it can
	}
	a, known := h.past.asked(ctx, j.Job)
	v := h.viewOf(ctx, j)
	v.Thumb, v.Workflow = "", known
	v.EditorGraph = known && a.extra.In("extra_pnginfo").At("workflow") != nil
	if j.Error != nil {
		v.Error = j.Error.Error()
	}
	v.Warnings = textsIn(j.Metrics["warnings"])
	out := []part{}
	for _, p := range []struct {
		id   string
		data any
	}{
		{"state", v},
		{"pictures", filesOf(&j.Record)},
		{"facts", factsOf(&j.Record, a, &v)},
		{"times", timesOf(&j.Record, log)},
		{"events", eventsOf(&j.Record, log)},
	} {
		made, err := partOf(p.id, p.data)
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
}

// viewURL is where a file of a job is.
func viewURL(ref message.OutputRef) string {
	return "/view?" + url.Values{
		"filename": {ref.Filename}, "subfolder": {ref.Subfolder}, "type": {cmp.Or(ref.Type, "output")},
	}.Encode()
}

// isPicture reports whether a browser shows a file as a picture.
func isPicture(name string) bool {
	return strings.HasPrefix(mediaType(name), "image/") && !active(mediaType(name))
}

func filesOf(rec *message.Record) []fileView {
	var out []fileView
	for _, ref := range rec.Outputs {
		if ref.Filename != "" && rec.Dropped == 0 {
			out = append(out, fileView{
				ref.Filename, viewURL(ref), sizeOf(int64(ref.Bytes)), isPicture(ref.Filename), ref.Width, ref.Height,
			})
		}
	}
	return out
}

// factsOf lists what a job asked for: its texts and seeds, the model, and where and when it ran.
func factsOf(rec *message.Record, a *asked, v *jobView) []factView {
	var out []factView
	add := func(name, text string) {
		if text != "" {
			out = append(out, factView{name, text})
		}
	}
	add("Prompt", rec.About)
	if w, failure := message.ParseWorkflow(string(a.prompt)); failure == nil {
		for _, id := range w.IDs() {
			for _, name := range []string{"seed", "noise_seed"} {
				if seed, _ := w.Input(id, name); seed != nil {
					if n, ok := seed.(int64); ok {
						add("Seed of "+w.Title(id), strconv.FormatInt(n, 10))
					}
				}
			}
		}
	}
	add("Model", rec.Model)
	add("Plan", rec.Plan)
	add("Worker", rec.Worker)
	add("Client", v.Client)
	add("Priority", v.Priority)
	if rec.Attempt > 1 {
		add("Attempts", strconv.Itoa(rec.Attempt))
	}
	for _, at := range []struct {
		name string
		ms   int64
	}{{"Handed in", rec.Created}, {"Began", rec.Started}, {"Ended", rec.Finished}} {
		if at.ms > 0 {
			add(at.name, time.UnixMilli(at.ms).Format("2 Jan 2006 15:04:05"))
		}
	}
	add("Id", rec.Job)
	return out
}

// in returns a value of an object as it is in a message that was made here, or read from the store.
func in(v any, key string) any {
	switch o := v.(type) {
	case map[string]any:
		return o[key]
	case *pyjson.Object:
		return o.At(key)
	}
	return nil
}

func keysOf(v any) []string {
	switch o := v.(type) {
	case map[string]any:
		return slices.Sorted(maps.Keys(o))
	case *pyjson.Object:
		return slices.Sorted(slices.Values(o.Keys()))
	}
	return nil
}

func textsIn(v any) (out []string) {
	switch list := v.(type) {
	case []string:
		return list
	case []any:
		for _, item := range list {
			out = append(out, fmt.Sprint(item))
		}
	}
	return out
}

// timesOf returns where the time of a job went.
func timesOf(rec *message.Record, log []message.Event) timesView {
	var v timesView
	timings := in(any(rec.Metrics), "timings")
	seconds := func(name string) float64 { return numberOf(in(timings, name)) }
	if total := seconds("total"); total > 0 {
		v.Total = durationOf(time.Duration(total * float64(time.Second)))
		at := 0.0
		for _, p := range [][3]string{
			{"load", "load", "loading weights"},
			{"text", "texts", "texts"},
			{"denoise", "denoise", "denoising"},
			{"vae", "vae", "autoencoder"},
			{"other", "other", "other"},
		} {
			took := min(seconds(p[0])/total, 1-at)
			if took <= 0 {
				continue
			}
			v.Parts = append(v.Parts, spanView{
				Name: p[2], Class: p[1], Time: durationOf(time.Duration(seconds(p[0]) * float64(time.Second))),
				At: int(math.Round(1000 * at)), Wide: max(int(math.Round(1000*took)), 2),
			})
			at += took
		}
	}
	runs, _ := in(any(rec.Metrics), "stats").([]any)
	for _, run := range runs {
		v.Runs = append(v.Runs, runLine(run))
	}
	v.Nodes = nodeSpans(rec, log)
	return v
}

// runLine says what one sampling run did, and what its ranks sent.
func runLine(run any) string {
	line := fmt.Sprintf("%v: %v evaluations, plan %v, %v", in(run, "model"), in(run, "evaluations"),
		cmp.Or(fmt.Sprint(in(run, "plan")), "one rank"), in(run, "compute"))
	if n := int64(numberOf(in(run, "peak_bytes"))); n > 0 {
		line += ", at most " + sizeOf(n)
	}
	sent := map[string]int64{}
	ranks, _ := in(run, "ranks").([]any)
	for _, rank := range ranks {
		for _, axis := range keysOf(rank) {
			if n := numberOf(in(in(rank, axis), "bytes")); n > 0 {
				sent[axis] += int64(n)
			}
		}
	}
	for _, axis := range slices.Sorted(maps.Keys(sent)) {
		line += fmt.Sprintf(", %s over %s", sizeOf(sent[axis]), axis)
	}
	return line
}

// maxNodesShown bounds the nodes and the events that a page shows.
const (
	maxNodesShown  = 60
	maxEventsShown = 200
)

// nodeSpans returns when each node of the last attempt ran.
func nodeSpans(rec *message.Record, log []message.Event) []spanView {
	titles := message.TitlesIn(log)
	var out []spanView
	var begins []int64
	start, end, running := int64(0), int64(0), false
	finish := func(ts int64) {
		if running {
			out[len(out)-1].Takes = durationOf(time.Duration(ts-begins[len(begins)-1]) * time.Millisecond)
			running = false
		}
		end = max(end, ts)
	}
	for i := range log {
		switch ev := &log[i]; {
		case ev.Type == message.EventStart:
			start, out, begins, running = ev.TS, nil, nil, false
		case ev.Type == message.EventExecuting:
			finish(ev.TS)
			if node, ok := ev.Data["node"].(string); ok && len(out) < maxNodesShown {
				out = append(out, spanView{
					Name: cmp.Or(titles[node], "node "+node), Begins: durationOf(time.Duration(ev.TS-start) * time.Millisecond),
				})
				begins, running = append(begins, ev.TS), true
			}
		case message.Terminal(ev.Type):
			finish(ev.TS)
		}
	}
	if rec.State == message.Running && len(log) > 0 {
		end = max(end, log[len(log)-1].TS)
	}
	for i := range out {
		until := end
		if i+1 < len(out) {
			until = begins[i+1]
		}
		all := max(end-start, 1)
		out[i].At = int(1000 * (begins[i] - start) / all)
		out[i].Wide = max(int(1000*(until-begins[i])/all), 2)
	}
	return out
}

func eventsOf(rec *message.Record, log []message.Event) eventsView {
	titles := message.TitlesIn(log)
	v := eventsView{Causes: rec.Causes}
	for i := range log {
		ev := &log[i]
		if ev.Type == message.EventProgress {
			continue
		}
		node, _ := ev.Data["node"].(string)
		node = cmp.Or(ev.Node, node)
		v.Events = append(v.Events, eventView{time.UnixMilli(ev.TS), ev.Attempt, ev.Type, cmp.Or(titles[node], node)})
	}
	v.Events = v.Events[max(0, len(v.Events)-maxEventsShown):]
	return v
}

// thumbOf returns the position of the picture that stands for a job; -1: there is none.
func thumbOf(rec *message.Record) int {
	if rec.Dropped > 0 {
		return -1
	}
	return slices.IndexFunc(rec.Outputs, func(ref message.OutputRef) bool {
		return ref.Filename != "" && isPicture(ref.Filename)
	})
}

// thumbSide bounds the sides of a small picture.
const thumbSide = 256

// thumb answers GET /patchbay/jobs/{id}/thumb.
func (h *HTTP) thumb(w http.ResponseWriter, r *http.Request) error {
	found := h.find(r.PathValue("id"))
	i, err := strconv.Atoi(r.URL.Query().Get("file"))
	if found == nil || err != nil || i < 0 || i >= len(found.Outputs) {
		return bare(http.StatusNotFound)
	}
	ref := found.Outputs[i]
	f, info, err := openBelow(h.folder(cmp.Or(ref.Type, "output")), path.Join(ref.Subfolder, ref.Filename))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info.Size() > maxConverted {
		return bare(http.StatusRequestEntityTooLarge)
	}
	h.shrinking.Lock() // one at a time: pictures are large
	defer h.shrinking.Unlock()
	data, err := io.ReadAll(io.LimitReader(f, maxConverted))
	if err != nil {
		return err
	}
	small, err := shrunk(data)
	if err != nil {
		return bare(http.StatusUnsupportedMediaType)
	}
	w.Header().Set("Content-Type", "image/jpeg")
	w.Header().Set("Content-Length", strconv.Itoa(len(small)))
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable") // the page names its checksum
	_, _ = w.Write(small)
	return nil
}

// shrunk returns a picture as a JPEG whose sides are thumbSide at most.
func shrunk(data []byte) ([]byte, error) {
	pixels, y, x, err := rgba(data)
	if err != nil {
		return nil, err
	}
	from := &image.NRGBA{Pix: opaque(pixels), Stride: 4 * x, Rect: image.Rect(0, 0, x, y)}
	scale := min(1, float64(thumbSide)/float64(max(x, y)))
	to := image.NewRGBA(image.Rect(0, 0, max(1, int(scale*float64(x))), max(1, int(scale*float64(y)))))
	draw.ApproxBiLinear.Scale(to, to.Bounds(), from, from.Bounds(), draw.Src, nil)
	var b bytes.Buffer
	err = jpeg.Encode(&b, to, &jpeg.Options{Quality: 80})
	return b.Bytes(), err
}
