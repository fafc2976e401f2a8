package web

import (
	"bufio"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/ipc/wire/wiretest"
	"patchbay/node/pyjson"
	"patchbay/tests/bubble"
	"patchbay/tests/natsserver"
)

// shown is a page as a browser without scripts has it: texts by the id of the part they are in, and its elements.
type shown struct {
	texts    map[string]string
	elements []xml.StartElement
}

func (p *shown) attr(el xml.StartElement, name string) string {
	for _, a := range el.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// page fetches a page and reads it. It fails for what a browser or a screen reader would stumble over: an id that is
// there twice, a picture without alt, a form that does not POST, a script or style inside the page, which the
// Content-Security-Policy forbids.
func (d *door) page(path string) *shown {
	d.t.Helper()
	status, body, head := d.ask("GET", path, nil)
	if status != http.StatusOK || !strings.Contains(head.Get("Content-Security-Policy"), "default-src 'self'") {
		d.t.Fatalf("GET %s: %d %v %s", path, status, head, body)
	}
	p := &shown{texts: map[string]string{}}
	r := xml.NewDecoder(strings.NewReader(string(body)))
	r.Strict, r.AutoClose, r.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	ids, part := map[string]bool{}, ""
	for {
		token, err := r.Token()
		if errors.Is(err, io.EOF) {
			for id, text := range p.texts {
				p.texts[id] = strings.Join(strings.Fields(text), " ")
			}
			return p
		}
		if err != nil {
			d.t.Fatalf("GET %s: %v in\n%s", path, err, body)
		}
		switch e := token.(type) {
		case xml.CharData:
			p.texts[part] += " " + string(e)
		case xml.StartElement:
			e = e.Copy()
			p.elements = append(p.elements, e)
			id := p.attr(e, "id")
			if id != "" && ids[id] {
				d.t.Errorf("GET %s: the id %q is there twice", path, id)
			}
			ids[id] = true
			if p.attr(e, "data-sum") != "" {
				part = id
			}
			name := e.Name.Local
			if name == "img" && !slices.ContainsFunc(e.Attr, func(a xml.Attr) bool { return a.Name.Local == "alt" }) ||
				name == "form" && p.attr(e, "method") != "post" || name == "style" || p.attr(e, "style") != "" ||
				name == "script" && p.attr(e, "src") == "" ||
				slices.ContainsFunc(e.Attr, func(a xml.Attr) bool { return strings.HasPrefix(a.Name.Local, "on") }) {
				d.t.Errorf("GET %s has %v", path, e)
			}
		}
	}
}

// posts returns where the forms of a page lead.
func (p *shown) posts() (out []string) {
	for _, e := range p.elements {
		if e.Name.Local == "form" {
			out = append(out, p.attr(e, "action"))
		}
	}
	return out
}

// wants fails unless a part of a page has all of some texts.
func (p *shown) wants(t *testing.T, part string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.texts[part], text) {
			t.Errorf("%s has no %q: %s", part, text, p.texts[part])
		}
	}
}

const waits = `{"1": {"class_type": "Step", "inputs": {"n": 7, "text": "a blue star"}}, "2": {"class_type": "Wait",
	"inputs": {"n": 100000}, "_meta": {"title": "Rest"}}}`

// TestPageOfJobs reads the page of all jobs with scripts off: what runs and how far it is, what waits and why, what has
// ended, devices, what is ill.
func TestPageOfJobs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		stats := message.Stats{
			Version: "v1.2.3", Daemon: "a", Devices: []string{"cpu"}, Rate: 1.5, Axes: map[string]uint64{"ulysses": 3 << 20},
			Workers: []message.WorkerStats{{Name: "worker 0", PID: 17, Restarts: 2}},
			Store:   &message.StoreStats{Bytes: 1 << 20, Limit: 4 << 20},
		}
		d := newDoor(t, func(c *Config) {
			c.Stats = func() message.Stats { return stats }
			c.Health = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte("no worker answers\n"))
			}
		})
		good, bad := d.post("c", onePicture), d.post("c", `{"1": {"class_type": "Fail", "inputs": {"text": "<script>x"}}}`)
		ipctest.WaitState(t, d.Jobs, good, message.Done)
		ipctest.WaitState(t, d.Jobs, bad, message.Failed)
		running := d.post("anna", waits)
		ipctest.WaitState(t, d.Jobs, running, message.Running)
		first := d.post("c", onePicture)
		late := d.post("c", onePicture, `, "extra_data": {}, "not_before": 9999999999999`)
		for range waitingShown {
			d.post("c", onePicture)
		}
		d.until(func() bool { log, _, err := d.Jobs.Log(t.Context(), running); return err == nil && len(log) >= 11 })
		p := d.page("/patchbay")
		p.wants(t, "summary", "v1.2.3", "1 running, 27 waiting", "1.50 steps/s", "no worker answers", "1 MiB of 4 MiB")
		p.wants(t, "running", "a blue star", "Rest on fake for", "anna")
		p.wants(t, "waiting", "next: for a worker that is free", "2 jobs are ahead of it", "not before 20 Nov", "normal",
			"And 2 more.")
		p.wants(t, "done", "Job "+good, "<script>x", "no memory", "Retry")
		p.wants(t, "devices", "cpu", "1 GiB of 2 GiB", "worker 0", "17", "3 MiB over ulysses")
		for _, want := range []string{"/cancel " + running, "/cancel " + first, "/retry " + bad} {
			verb, id, _ := strings.Cut(want, " ")
			if !slices.Contains(p.posts(), "/patchbay/jobs/"+id+verb) {
				t.Errorf("no form for %s: %v", want, p.posts())
			}
		}
		if slices.Contains(p.posts(), "/patchbay/jobs/"+good+"/retry") {
			t.Error("a job that is done can be retried")
		}
		d.page("/patchbay/jobs/"+late).wants(t, "state", "waiting", "not before 20 Nov")
		d.page("/patchbay/jobs/"+bad).wants(t, "state", "failed", "no memory")
		if status, _, _ := d.ask("GET", "/patchbay/jobs/none", nil); status != http.StatusNotFound {
			t.Errorf("a job that is not there: %d", status)
		}
		d.cancelAll()
	})
}

// TestPageIsSmall sums up what a browser fetches for a page with as many jobs as it shows, but for pictures.
func TestPageIsSmall(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		long := strings.Repeat("a very long prompt ", 10)
		for range doneShown + 2 {
			id := d.post("c", `{"1": {"class_type": "Fail", "inputs": {"text": "`+long+`"}}}`)
			ipctest.WaitState(t, d.Jobs, id, message.Failed)
		}
		ipctest.WaitState(t, d.Jobs, d.post("c", waits), message.Running)
		for range waitingShown + 1 {
			d.post("c", `{"1": {"class_type": "Wait", "inputs": {"n": 1, "text": "`+long+`"}}}`)
		}
		sum := 0
		for _, path := range []string{"", "/page.css", "/page.js", "/icon.svg"} {
			_, body, _ := d.ask("GET", "/patchbay"+path, nil)
			t.Logf("/patchbay%s: %d bytes", path, len(body))
			sum += len(body)
		}
		if sum > 60_000 {
			t.Errorf("the page takes %d bytes, want at most 60,000", sum)
		}
		p := d.page("/patchbay?page=2")
		if n := strings.Count(p.texts["done"], "Retry"); n != 2 {
			t.Errorf("the second page has %d jobs, want 2", n)
		}
		d.cancelAll()
	})
}

// TestPageOfOneJob reads the page of a job that is done, with its times, and what it links to.
func TestPageOfOneJob(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		id := d.post("c", `{"1": {"class_type": "Step", "inputs": {"n": 3, "seed": 18446744073709551615, "text": "a kite"}},
			"9": {"class_type": "Picture", "inputs": {"n": 500, "noise_seed": 42}, "_meta": {"title": "Save it"}}}`,
			`, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w", "nodes": []}}}`)
		d.until(func() bool { return d.find(id).Ended })
		rec := d.find(id).Record
		p := d.page("/patchbay/jobs/" + id)
		p.wants(t, "state", "done")
		p.wants(t, "pictures", rec.Outputs[0].Filename, "500 B")
		p.wants(t, "facts", "a kite", "Seed of Save it 42", id)
		p.wants(t, "times", "Save it")
		p.wants(t, "events", "execution_success")
		var srcs []string
		for _, e := range p.elements {
			if e.Name.Local == "img" {
				srcs = append(srcs, p.attr(e, "src"))
			}
		}
		if len(srcs) != 1 {
			t.Fatalf("pictures %v", srcs)
		}
		if status, body, _ := d.ask("GET", srcs[0], nil); status != 200 || len(body) != 500 {
			t.Errorf("GET %s: %d, %d bytes", srcs[0], status, len(body))
		}
		for form, want := range map[string]string{"": "Save it", "?form=editor": `"nodes":[]`} {
			status, body, head := d.ask("GET", "/patchbay/jobs/"+id+"/workflow"+form, nil)
			if status != 200 || !json.Valid(body) || !strings.Contains(string(body), want) ||
				!strings.HasPrefix(head.Get("Content-Disposition"), "attachment") {
				t.Errorf("workflow%s: %d %s", form, status, body)
			}
		}
		thumb := "/patchbay/jobs/" + id + "/thumb?file=0"
		if status, _, _ := d.ask("GET", thumb, nil); status != http.StatusUnsupportedMediaType {
			t.Errorf("a small picture of what is none: %d", status)
		}
		f, err := os.Create(filepath.Join(d.cfg.Roots.Output, rec.Outputs[0].Subfolder, rec.Outputs[0].Filename))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(png.Encode(f, image.NewGray(image.Rect(0, 0, 1000, 400))), f.Close()); err != nil {
			t.Fatal(err)
		}
		_, body, _ := d.ask("GET", thumb, nil)
		small, _, err := image.Decode(strings.NewReader(string(body)))
		if err != nil || small.Bounds().Dx() != 256 || small.Bounds().Dy() != 102 {
			t.Errorf("the small picture: %v, %v", err, small)
		}
		for _, path := range []string{"/thumb?file=1", "/thumb?file=-1", "/thumb", "/preview"} {
			if status, _, _ := d.ask("GET", "/patchbay/jobs/"+id+path, nil); status != http.StatusNotFound {
				t.Errorf("%s: %d", path, status)
			}
		}
	})
}

// TestTimesOfAJob computes by hand where the parts of a bar begin, from metrics as they are made and as stored.
func TestTimesOfAJob(t *testing.T) {
	timings := map[string]any{"total": 10.0, "load": 2.0, "text": 1.0, "denoise": 5.0, "vae": 1.5, "other": 0.5}
	run := map[string]any{
		"model": "flux", "plan": "ulysses=2", "compute": "bf16", "evaluations": 4, "peak_bytes": 2 << 30,
		"ranks": []any{map[string]any{"ulysses": map[string]any{"bytes": 1 << 20}}, map[string]any{
			"ulysses": map[string]any{"bytes": 1 << 20}, "device": "cpu",
		}},
	}
	rec := message.Record{State: message.Done, Metrics: map[string]any{"timings": timings, "stats": []any{run}}}
	text, err := json.Marshal(rec.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pyjson.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	o := stored.(*pyjson.Object)
	again := rec
	again.Metrics = map[string]any{"timings": o.At("timings"), "stats": o.At("stats")}
	log := []message.Event{
		{Type: message.EventQueued, TS: 500, Data: map[string]any{"titles": map[string]string{"1": "One"}}},
		{Type: message.EventStart, TS: 1000},
		{Type: message.EventExecuting, TS: 1000, Data: map[string]any{"node": "1"}},
		{Type: message.EventExecuting, TS: 4000, Data: map[string]any{"node": "2"}},
		{Type: message.EventExecuting, TS: 6000, Data: map[string]any{"node": nil}},
		{Type: message.EventSuccess, TS: 6000},
	}
	for _, r := range []*message.Record{&rec, &again} {
		v := timesOf(r, log)
		if v.Total != "10s" || len(v.Parts) != 5 {
			t.Fatalf("times %+v", v)
		}
		for i, want := range [][2]int{{0, 200}, {200, 100}, {300, 500}, {800, 150}, {950, 50}} {
			if got := [2]int{v.Parts[i].At, v.Parts[i].Wide}; got != want {
				t.Errorf("part %d is at %v, want %v", i, got, want)
			}
		}
		line := "flux: 4 evaluations, plan ulysses=2, bf16, at most 2 GiB, 2 MiB over ulysses"
		if len(v.Runs) != 1 || v.Runs[0] != line {
			t.Errorf("run %q, want %q", v.Runs, line)
		}
		if len(v.Nodes) != 2 || v.Nodes[0] != (spanView{Name: "One", Begins: "0s", Takes: "3s", At: 0, Wide: 600}) ||
			v.Nodes[1] != (spanView{Name: "node 2", Begins: "3s", Takes: "2s", At: 600, Wide: 400}) {
			t.Errorf("nodes %+v", v.Nodes)
		}
	}
}

// TestButtons presses Cancel and Retry as a browser does, and as another page would.
func TestButtons(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		server := bubble.Start(t, natsserver.Inside(t.TempDir()))
		store, err := jobs.OpenJetStream(wiretest.Context(t), jobs.JetStreamConfig{
			URL: server.URL, InProcess: server, Owner: "a", Log: zerolog.Nop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		d := newDoorOn(t, nil, store)
		d.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		id := d.post("c", waits)
		ipctest.WaitState(t, d.Jobs, id, message.Running)
		press := func(verb string, header ...string) (int, string) {
			status, _, head := d.ask("POST", "/patchbay/jobs/"+id+"/"+verb, nil, header...)
			return status, head.Get("Location")
		}
		for _, header := range [][]string{
			{"Origin", "https://evil.example"},
			{"Origin", "null"},
			{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site"},
		} {
			if status, _ := press("cancel", header...); status != http.StatusForbidden {
				t.Errorf("another page with %v: %d", header, status)
			}
		}
		if status, _, _ := d.ask("GET", "/patchbay/jobs/"+id+"/cancel", nil); status != http.StatusMethodNotAllowed {
			t.Errorf("a link that cancels: %d", status)
		}
		if rec, err := d.Jobs.Get(id); err != nil || rec.Cancel {
			t.Fatalf("the job was cancelled: %+v %v", rec, err)
		}
		status, to := press("cancel", "Origin", d.Name(), "Sec-Fetch-Site", "same-origin")
		if status != http.StatusSeeOther || to != "/patchbay/jobs/"+id {
			t.Errorf("cancel: %d to %q", status, to)
		}
		ipctest.WaitState(t, d.Jobs, id, message.Cancelled)
		d.until(func() bool { return d.find(id).Ended })
		if status, to := press("retry"); status != http.StatusSeeOther || to != "/patchbay/jobs/"+id {
			t.Errorf("retry: %d to %q", status, to)
		}
		d.until(func() bool { rec, err := d.Jobs.Get(id); return err == nil && rec.Attempt == 2 })
		d.page("/patchbay/jobs/"+id).wants(t, "events", "retrying")
		d.cancelAll()
		press = func(path string, header ...string) (int, string) {
			status, _, head := d.ask("POST", "/patchbay/"+path, nil, header...)
			return status, head.Get("Location")
		}
		if status, to := press("pause"); status != http.StatusSeeOther || to != "/patchbay" {
			t.Errorf("pause: %d to %q", status, to)
		}
		first, second := d.post("c", onePicture), d.post("c", onePicture)
		time.Sleep(time.Hour)
		p := d.page("/patchbay")
		p.wants(t, "summary", "0 running, 2 waiting", "The queue is paused.", "Resume the queue")
		p.wants(t, "waiting", "the queue is paused")
		if posts := p.posts(); !slices.Contains(posts, "/patchbay/jobs/"+second+"/move") ||
			slices.Contains(posts, "/patchbay/jobs/"+first+"/move") || !slices.Contains(posts, "/patchbay/resume") {
			t.Errorf("the forms lead to %v", posts)
		}
		for path, want := range map[string]int{
			"jobs/" + second + "/move": 400, "jobs/" + second + "/move?to=now": 400,
			"jobs/" + second + "/move?to=front": http.StatusSeeOther, "jobs/none/move?to=front": 404,
			"jobs/" + second + "/delete": 400,
		} {
			if status, _ := press(path); status != want {
				t.Errorf("POST %s: %d, want %d", path, status, want)
			}
		}
		if rec, err := d.Jobs.Get(second); err != nil || rec.Position != 0 {
			t.Errorf("the job that was moved to the front is %+v, %v", rec, err)
		}
		if status, _ := press("resume", "Origin", "https://evil.example"); status != http.StatusForbidden {
			t.Errorf("another page resumes: %d", status)
		}
		press("resume")
		d.until(func() bool { return d.find(first).Ended && d.find(second).Ended })
		if status, to := press("jobs/" + second + "/delete"); status != http.StatusSeeOther ||
			to != "/patchbay/jobs/"+second {
			t.Errorf("delete: %d to %q", status, to)
		}
		if posts := d.page("/patchbay/jobs/" + second).posts(); slices.Contains(posts, "/patchbay/jobs/"+second+"/delete") {
			t.Errorf("files that are gone can be deleted: %v", posts)
		}
		ipctest.WaitState(t, d.Jobs, id, message.Cancelled)
		_, _, head := d.ask("GET", "/patchbay", nil)
		if head.Get("Referrer-Policy") != "same-origin" {
			t.Error("with no-referrer browsers send forms from Origin null, which is refused")
		}
	})
}

// TestLivePage reads the stream of a page while a job comes, runs and ends.
func TestLivePage(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		q, err := http.NewRequestWithContext(wiretest.Context(t), "GET", d.Name()+"/patchbay/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := d.http.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		next := func() (p part) {
			for lines.Scan() {
				if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
					if err := json.Unmarshal([]byte(text), &p); err != nil {
						t.Fatal(err)
					}
					return p
				}
			}
			t.Fatalf("the stream ended: %v", lines.Err())
			return p
		}
		for _, id := range []string{"summary", "running", "waiting", "done", "devices"} {
			if p := next(); p.ID != id || p.Sum == "" {
				t.Errorf("part %+v, want %s", p, id)
			}
		}
		id := d.post("c", waits)
		for p := next(); p.ID != "running" || !strings.Contains(string(p.HTML), id); p = next() {
			if p.ID == "devices" {
				t.Error("a part is sent again that has not changed")
			}
		}
		d.cancelAll()
		for p := next(); p.ID != "done" || !strings.Contains(string(p.HTML), id); p = next() {
		}
		if status, _, _ := d.ask("GET", "/patchbay/events?job=none", nil); status != http.StatusNotFound {
			t.Errorf("a stream of no job: %d", status)
		}
		d.streams.Add(maxStreams)
		if status, _, head := d.ask("GET", "/patchbay/events", nil); status != 503 || head.Get("Retry-After") == "" {
			t.Errorf("one stream too many: %d", status)
		}
		d.streams.Add(-maxStreams)
	})
}
