package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/ipctest"
	"patchbay/ipc/message"
	"patchbay/ipc/message/messagetest"
	"patchbay/tests/bubble"
)

const onePicture = `{"1": {"class_type": "Step", "inputs": {"n": 3}},
	"9": {"class_type": "Picture", "inputs": {"n": 500}, "_meta": {"title": "Save Image"}}}`

// TestPlainLoop does what every client does: POST /prompt, wait on the socket, read the history, fetch the file.
func TestPlainLoop(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		e := d.listen("c1")
		if m := e.next(); m.Type != "status" || m.Data["sid"] != "c1" || !strings.HasPrefix(string(m.raw), `{"type":`) {
			t.Errorf("the first message is %s", m.raw)
		}
		// It lasts: what a status counts is what remains when it is said.
		id := d.post("c1", `{"0": {"class_type": "Wait", "inputs": {"n": 100}}, `+onePicture[1:],
			`, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w-1"}}, "mine": 7, "auth_token_comfy_org": "secret"}`)
		all := e.until(id)
		want := []string{
			"status", "status", "execution_start", "progress_state", "executing", "progress_state", "executing",
			"progress_state", "progress", "progress_state", "progress", "progress_state", "progress_state", "executing",
			"executed", "progress_state", "execution_success",
			"status", "executing",
		}
		if got := types(all); !slices.Equal(slices.Compact(got), slices.Compact(want)) {
			t.Errorf("the socket heard\n%v, want\n%v", got, want)
		}
		for i, m := range all {
			if n, isStatus := remainingIn(m); isStatus && (n == 1) != (i < len(all)-2) {
				t.Errorf("message %d of %d says that %v jobs remain", i, len(all), n)
			}
		}
		past := d.get("/history/" + id).(map[string]any)[id].(map[string]any)
		prompt := past["prompt"].([]any)
		if prompt[0] != 0.0 || prompt[1] != id ||
			prompt[2].(map[string]any)["9"].(map[string]any)["_meta"].(map[string]any)["title"] != "Save Image" {
			t.Errorf("the history has the prompt %v", prompt)
		}
		extra := prompt[3].(map[string]any)
		if extra["client_id"] != "c1" || extra["mine"] != 7.0 || extra["create_time"] == nil ||
			extra["auth_token_comfy_org"] != nil || extra["extra_pnginfo"] == nil {
			t.Errorf("the history has the extra_data %v", extra)
		}
		status := past["status"].(map[string]any)
		if status["status_str"] != "success" || status["completed"] != true || len(status["messages"].([]any)) != 3 {
			t.Errorf("the history has the status %v", status)
		}
		file := past["outputs"].(map[string]any)["9"].(map[string]any)["images"].([]any)[0].(map[string]any)
		code, data, head := d.ask("GET", "/api/view?filename="+file["filename"].(string)+"&type="+file["type"].(string)+
			"&subfolder="+file["subfolder"].(string), nil)
		if picture := messagetest.Picture("9", 500); code != http.StatusOK || string(data) != string(picture.Data) {
			t.Errorf("GET /view: %d, %d bytes, want those of the picture", code, len(data))
		}
		path := "/view?filename=" + file["filename"].(string)
		if code, _, _ := d.ask("GET", path, nil, "If-None-Match", head.Get("ETag")); code != http.StatusNotModified {
			t.Errorf("GET /view with its ETag: %d, want 304", code)
		}
		if code, part, _ := d.ask("GET", path, nil, "Range", "bytes=2-4"); code !=
			http.StatusPartialContent || string(part) != string(data[2:5]) {
			t.Errorf("GET /view with a range: %d %q", code, part)
		}
		// The socket is told of the end once, and then of the next job.
		next := d.post("c1", onePicture)
		for _, m := range e.until(next) {
			if m.Type != "status" && m.Data["prompt_id"] != next {
				t.Errorf("after the end of %s the socket heard %s", id, m.raw)
			}
		}
		job := d.get("/api/jobs/" + id).(map[string]any)
		if job["status"] != "completed" || job["workflow_id"] != "w-1" || job["outputs_count"] != 1.0 {
			t.Errorf("GET /api/jobs/ID: %v", job)
		}
	})
}

func remainingIn(m said) (float64, bool) {
	status, ok := m.Data["status"].(map[string]any)
	if !ok {
		return 0, false
	}
	n, ok := status["exec_info"].(map[string]any)["queue_remaining"].(float64)
	return n, ok
}

// TestQueueAndHistory looks at jobs that run, wait and have ended, and takes some out.
func TestQueueAndHistory(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		const long = `{"1": {"class_type": "Wait", "inputs": {"n": 3600000}}}`
		running := d.post("a", long)
		ipctest.WaitState(t, d.Jobs, running, message.Running)
		first, second := d.post("a", onePicture), d.post("a", onePicture, `, "front": true`)
		third := d.post("a", onePicture, `, "number": -7`)
		queue := d.get("/queue").(map[string]any)
		var ids []string
		var numbers []float64
		for _, item := range queue["queue_pending"].([]any) {
			ids = append(ids, item.([]any)[1].(string))
			numbers = append(numbers, item.([]any)[0].(float64))
		}
		if !slices.Equal(ids, []string{third, second, first}) || !slices.Equal(numbers, []float64{-7, -2, 1}) {
			t.Errorf("waiting are %v with numbers %v, want %v", ids, numbers, []string{third, second, first})
		}
		if list := queue["queue_running"].([]any); len(list) != 1 || list[0].([]any)[1] != running {
			t.Errorf("running are %v", list)
		}
		if n := d.get("/prompt").(map[string]any)["exec_info"].(map[string]any)["queue_remaining"]; n != 4.0 {
			t.Errorf("%v jobs remain, want 4", n)
		}
		if code, body, _ := d.ask("POST", "/queue", map[string]any{"delete": []string{third, "unknown"}}); code != 200 ||
			len(body) != 0 {
			t.Errorf("POST /queue: %d %s", code, body)
		}
		if code, body, _ := d.ask("GET", "/api/jobs/"+third, nil); code != http.StatusNotFound {
			t.Errorf("a job that was taken out: %d %s, want 404", code, body)
		}
		d.ask("POST", "/queue", map[string]any{"clear": true})
		if got := d.get("/api/jobs?status=pending").(map[string]any)["jobs"].([]any); len(got) != 0 {
			t.Errorf("after the queue was cleared there wait %v", got)
		}
		if code, _, _ := d.ask("POST", "/interrupt", `{"prompt_id": "x"}`); code != 200 {
			t.Errorf("POST /interrupt of an unknown job: %d", code)
		}
		if rec, _ := d.Jobs.Get(running); rec.State != message.Running {
			t.Errorf("an interrupt of another job left it %s", rec.State)
		}
		d.ask("POST", "/interrupt", "") // all
		ipctest.WaitState(t, d.Jobs, running, message.Cancelled)
		time.Sleep(time.Millisecond) // or both have ended at the same time
		last := d.post("a", onePicture)
		ipctest.WaitState(t, d.Jobs, last, message.Done)
		e := d.listen("a") // it is told about the ends that nobody heard
		e.until(last)
		past := d.get("/history").(map[string]any)
		if len(past) != 2 || past[running] == nil || past[last] == nil {
			t.Errorf("the history has %d jobs, want those that ran", len(past))
		}
		status := past[running].(map[string]any)["status"].(map[string]any)
		messages := status["messages"].([]any)
		if status["status_str"] != "error" || messages[len(messages)-1].([]any)[0] != "execution_interrupted" {
			t.Errorf("the history of the interrupted job has the status %v", status)
		}
		for path, want := range map[string]string{
			"/history?max_items=1": last, "/history?max_items=1&offset=0": running, "/history?offset=1": last,
		} {
			if got := d.get(path).(map[string]any); len(got) != 1 || got[want] == nil {
				t.Errorf("GET %s has %d jobs, want %s", path, len(got), want)
			}
		}
		for path, want := range map[string]int{
			"/history?max_items=9223372036854775807&offset=1": 1, "/history?max_items=-1": 0, "/history?max_items=0": 0,
			"/history?offset=9223372036854775807": 0, "/history?max_items=-9223372036854775808": 0,
		} {
			if got := d.get(path).(map[string]any); len(got) != want {
				t.Errorf("GET %s has %d jobs, want %d", path, len(got), want)
			}
		}
		list := d.get("/api/jobs?offset=9223372036854775807&limit=9223372036854775807").(map[string]any)
		if more := list["pagination"].(map[string]any)["has_more"]; more != false {
			t.Errorf("behind the last job there is more: %v", more)
		}
		if got := d.get("/history/unknown").(map[string]any); len(got) != 0 {
			t.Errorf("the history of an unknown job is %v", got)
		}
		d.ask("POST", "/history", map[string]any{"delete": []string{running}})
		if got := d.get("/history").(map[string]any); len(got) != 1 {
			t.Errorf("after a job was deleted the history has %d", len(got))
		}
		d.ask("POST", "/history", map[string]any{"clear": true})
		if got := d.get("/history").(map[string]any); len(got) != 0 {
			t.Errorf("after it was cleared the history has %d", len(got))
		}
	})
}

// TestHistoryOutlives asks another carrier on the same folder and table for the history of a job that is done, as after
// a restart, and lets the job be forgotten.
func TestHistoryOutlives(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		id := d.post("a", onePicture, `, "extra_data": {"extra_pnginfo": {"workflow": {"id": "w"}}}`)
		d.listen("a").until(id)
		path := "/history/" + id
		want := d.get(path)
		if len(want.(map[string]any)) != 1 {
			t.Fatalf("the history is %v", want)
		}
		stray := filepath.Join(d.cfg.Keep, "stray.json")
		if err := os.WriteFile(stray, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := d.cfg
		cfg.Listener = bubble.NewPort()
		next, err := Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(next.Close)
		next.On(d.Jobs, d.classes)
		if next.number < 0 {
			t.Errorf("the next number would be %v, which a job has", next.number+1)
		}
		if _, err := os.Stat(stray); err == nil {
			t.Error("the file of a job that is not there was kept")
		}
		w := httptest.NewRecorder()
		next.handler().ServeHTTP(w, httptest.NewRequest("GET", "http://"+next.Address()+path, nil))
		if got := decoded(t, w.Body.Bytes()); !reflect.DeepEqual(got, want) {
			t.Errorf("another carrier says %v, want %v", got, want)
		}
		d.ask("POST", "/history", map[string]any{"clear": true})
		if left, _ := filepath.Glob(filepath.Join(d.cfg.Keep, "*")); len(left) > 0 {
			t.Errorf("of jobs that were forgotten there are left %v", left)
		}
	})
}

// TestTraceParent posts a workflow with the context of its client's trace, which the job keeps.
func TestTraceParent(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		for given, want := range map[string]string{parent: parent, "00-x": "", "": ""} {
			status, body, _ := d.ask("POST", "/prompt", `{"prompt": `+onePicture+`}`, "traceparent", given)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			id := decoded(t, body).(map[string]any)["prompt_id"].(string)
			if rec, err := d.Jobs.Get(id); err != nil || rec.TraceParent != want {
				t.Errorf("sent %q, kept %q, %v", given, rec.TraceParent, err)
			}
		}
	})
}

// TestHistoryHasOneWriter lets who queues a job and who hears of it remember it at the same time: when either is done,
// the file is whole.
func TestHistoryHasOneWriter(t *testing.T) {
	keep := t.TempDir()
	text := `{"1": {"class_type": "Wait", "inputs": {"text": "` + strings.Repeat("long ", 100_000) + `"}}}`
	req := &message.RunRequest{Workflow: text, Validated: []string{"1"}}
	for i := range 50 {
		p, job := newPast(&HTTP{cfg: Config{Keep: keep, Log: zerolog.Nop()}}), fmt.Sprintf("job-%d", i)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				p.remember(job, req)
				if a := p.load(job); a == nil || string(a.prompt) != text {
					t.Errorf("the file of %s is not whole", job)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
}

// TestFilesComeWithTheirNode runs a job whose second node goes on for long after the first has saved its picture: the
// picture is told and can be fetched while the job runs, and is in the history of the job, which is interrupted. A node
// says once what it made.
func TestFilesComeWithTheirNode(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		d := newDoor(t, nil)
		e := d.listen("c1")
		id := d.post("c1", `{"1": {"class_type": "Picture", "inputs": {"n": 500}}, "2": {"class_type": "Wait", "inputs":
			{"n": 3600000}}}`)
		var told said
		for told.Type != "executed" {
			told = e.next()
		}
		file := told.Data["output"].(map[string]any)["images"].([]any)[0].(map[string]any)
		code, data, _ := d.ask("GET", "/view?filename="+file["filename"].(string)+"&type="+file["type"].(string), nil)
		if picture := messagetest.Picture("1", 500); code != http.StatusOK || string(data) != string(picture.Data) {
			t.Errorf("GET /view while the job runs: %d, %d bytes, want those of the picture", code, len(data))
		}
		if running := d.get("/queue").(map[string]any)["queue_running"].([]any); len(running) != 1 {
			t.Errorf("%d jobs run", len(running))
		}
		d.ask("POST", "/interrupt", "{}")
		for _, m := range e.until(id) {
			if m.Type == "executed" {
				t.Errorf("a node says again what it made: %s", m.raw)
			}
		}
		past := d.get("/history/" + id).(map[string]any)[id].(map[string]any)
		kept := past["outputs"].(map[string]any)["1"].(map[string]any)["images"].([]any)
		if len(kept) != 1 || kept[0].(map[string]any)["filename"] != file["filename"] {
			t.Errorf("the history has the files %v, want %v", kept, file)
		}
	})
}
