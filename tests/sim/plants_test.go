package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// plant is a fault that the simulation must find: one text of a file, which is there once, in place of another.
type plant struct {
	seed                int // with which it was found
	name, file, was, is string
}

// plants are the faults that TestSimulation must find, each within 500 seeds. Faults that another guard makes harmless
// are not among them.
var plants = []plant{
	{
		3, "a paused daemon begins jobs", "ipc/jobs/take.go",
		"\tif j.paused {", "\tif false {",
	},
	{
		3, "a pause ends with the process", "ipc/jobs/table.go",
		"j.paused = err == nil", "j.paused = err == nil && false",
	},
	{
		1, "a websocket is told nothing of its client's jobs", "ipc/web/socket.go",
		"if s.following[job] || s.ctx.Err() != nil {", "if true {",
	},
	{
		4, "a websocket is told that every job succeeds", "ipc/web/frames.go",
		"\tkind := ev.Type\n\tswitch kind {", "\tkind := message.EventSuccess\n\tswitch kind {",
	},
	{
		8, "the end of a cancelled job is not told", "ipc/web/frames.go",
		"ok && !over(&found.Record, found.Ended)", "ok && found.State == message.Cancelled",
	},
	{
		1, "files that a client has deleted stay", "ipc/jobs/results.go",
		"if os.Remove(f.path) == nil {", "if true {",
	},
	{
		1, "what a job was given over HTTP is left out", "ipc/web/prompt.go",
		"\tif err := h.count(o); err != nil {", "\to.Set(\"inputs\", nil)\n\tif err := h.count(o); err != nil {",
	},
	{
		2, "an old attempt may end a job", "ipc/jobs/step.go",
		"func (a attempt) fits(r *message.Record) bool { return a == attemptOf(r) }",
		"func (a attempt) fits(r *message.Record) bool { return true }",
	},
	{
		2, "files of ended jobs get no names after a crash", "ipc/jobs/reconcile.go",
		"for _, rec := range ended {", "for _, rec := range ended[:0] {",
	},
	{
		1, "a known job is not compared with another body", "ipc/jobs/create.go",
		"if e.rec.Hash != hash {", "if false {",
	},
	{
		3, "pieces of two bodies have one key", "ipc/jobs/jetstream_record.go",
		`fmt.Sprintf("%s.%s.%d", rec.Job, rec.Hash[:min(16, len(rec.Hash))], i)`, `fmt.Sprintf("%s.%d", rec.Job, i)`,
	},
	{
		13, "an end that the stream lacks is not told again", "ipc/jobs/reconcile.go",
		"told, err := j.store.told(ctx, rec)\n\t\tif err != nil {\n\t\t\treturn\n\t\t}",
		"_, err := j.store.told(ctx, rec)\n\t\ttold := 1\n\t\tif err != nil {\n\t\t\treturn\n\t\t}",
	},
	{
		1, "an attempt does not count", "ipc/jobs/step.go",
		"\tr.Attempt++\n", "",
	},
	{
		8, "the other daemons count as dead", "ipc/jobs/watch.go",
		"{ return j.cfg.Machines == nil || j.cfg.Machines.Alive(owner) }", "{ return owner == j.cfg.Owner }",
	},
	{
		1, "records are written whatever was written before", "ipc/jobs/jetstream_record.go",
		"rev, err := l.jobs.Update(try, rec.Job, value, rec.Rev)", "rev, err := l.jobs.Put(try, rec.Job, value)",
	},
	{
		26, "an older record replaces a newer one in the table", "ipc/jobs/table.go",
		"\tif r.Rev <= e.rec.Rev {\n\t\treturn\n\t}\n", "",
	},
	{
		2, "a file is linked twice", "node/files/outputs.go",
		"Filename: linkOf(folder, path),", `Filename: "",`,
	},
	{
		7, "a client is told that a job is cancelled which is not", "ipc/jobs/cancel.go",
		"	return rec.State, err == nil, err\n", "	return message.Cancelled, err == nil, err\n",
	},
	{
		1, "the body is not kept", "ipc/jobs/jetstream_record.go",
		"return l.requests.Put(ctx, pieceKey(rec, rec.Pieces), body[at:min(at+size, len(body))])",
		"return 1, nil",
	},
	{
		1, "a receipt is given for a job that was not written", "ipc/jobs/jetstream_record.go",
		"\tif noRoom(err) {\n\t\tl.unmade(rec, last)\n\t\treturn rec, false, err\n\t}\n",
		"\tif noRoom(err) {\n\t\tl.unmade(rec, last)\n\t\treturn rec, false, err\n\t}\n" +
			"\tif err != nil {\n\t\treturn rec, true, nil\n\t}\n",
	},
	{
		23, "a tied job does not end as cancelled when its daemon has died", "ipc/jobs/step.go",
		"\tcase r.Cancel || r.Tied:\n", "\tcase r.Cancel:\n",
	},
	{
		22, "waiting jobs are not limited", "ipc/jobs/create.go",
		"\tif waiting >= j.cfg.MaxQueued {", "\tif waiting >= j.cfg.MaxQueued && from == \"\" {",
	},
	{
		2, "the jobs of a client are not limited", "ipc/jobs/create.go",
		"fromClient+j.load(from) >= limit", "fromClient >= limit",
	},
	{
		3, "a run goes on when its job is to stop", "ipc/jobs/table.go",
		"\tif r.Cancel {\n\t\tcloseOnce(e.cancel)\n\t}\n", "",
	},
	{
		1, "a receipt that was lost is refused", "ipc/jobs/jetstream_record.go",
		"\treturn old, same(old, value), nil", "\told.Hash += \"x\"\n\treturn old, same(old, value), nil",
	},
	{
		1, "a job expires before its time", "ipc/jobs/take.go",
		"!now.Before(e.expires)", "now.Unix() >= e.expires.Unix()-1",
	},
	{
		1, "expired jobs count as failed", "ipc/jobs/step.go",
		"\treturn end(r, message.Expired,", "\treturn end(r, message.Failed,",
	},
	{
		1, "names of files are not recorded", "ipc/jobs/dispatch.go",
		"named{attemptOf(&rec), refs, warning}", "named{attemptOf(&rec), rec.Outputs, warning}",
	},
	{
		11, "staged files are cleaned before their names are recorded", "ipc/jobs/dispatch.go",
		"\trefs, err := d.Outputs.Commit(rec.Job)\n",
		"\trefs, err := d.Outputs.Commit(rec.Job)\n\td.Outputs.Clean(rec.Job)\n",
	},
	{
		1, "what an attempt made before the daemon died is made again", "ipc/jobs/outputs.go",
		"list := s.unfinished(job); list != nil {", "list := s.unfinished(job); list != nil && job == \"\" {",
	},
	{
		1, "files of attempts that ended elsewhere stay", "ipc/jobs/dispatch.go",
		"\t\t\td.settle()\n", "",
	},
	{
		13, "pieces of a refused body take those of the other", "ipc/jobs/jetstream_record.go",
		"i < rec.Pieces && old.Hash != rec.Hash; i++", "i < rec.Pieces; i++",
	},
	{
		2, "a retry keeps the wish to cancel", "ipc/jobs/step.go",
		"r.Finished, r.ExpireAt, r.Cancel = message.Queued, nil, nil, 0, 0, false",
		"r.Finished, r.ExpireAt = message.Queued, nil, nil, 0, 0",
	},
	{
		11, "a picture is not recorded", "ipc/jobs/step.go",
		"r.Metrics, r.Outputs, r.UI = c.metrics, c.outputs, message.BoundedUI(c.ui, c.outputs)", "r.Metrics = c.metrics",
	},
	{
		1, "a job fails with its first worker", "ipc/jobs/step.go",
		"\t\tfault.WorkerLost: 200 * time.Millisecond, fault.DiskFull", "\t\tfault.DiskFull",
	},
	{
		2, "the end after a retry counts as that before", "ipc/jobs/publisher.go",
		`fmt.Sprintf("%s.%d.%d.end", ev.Job, ev.Attempt, ev.TS)`, `fmt.Sprint(ev.Job, ".end")`,
	},
	{
		1, "a log has no terminal event", "ipc/jobs/table.go",
		"\tif !e.cold {\n\t\te.completeLog()\n\t}\n", "",
	},
	{
		6, "files come with an end before a retry", "ipc/serve/stream.go",
		"if ev.Attempt != rec.Attempt || ev.Type", "if ev.Type",
	},
	{
		0, "files of the other daemon are not fetched", "ipc/serve/stream.go",
		"if s.cfg.Fetch == nil || s.cfg.Jobs.Holder(job) == \"\" {", "if s.cfg.Fetch == nil || job != \"\" {",
	},
	{
		0, "a tied job outlives its client", "ipc/serve/stream.go",
		"if !st.tied || !errors.Is(cause, errGone) {", "if !st.tied || errors.Is(cause, errGone) {",
	},
	{
		0, "the loss of a worker counts as a failure of the job", "ipc/worker/child.go",
		"\tcase err != nil:\n\t\treturn nil, c.fault(p, err)\n\tcase end",
		"\tcase err != nil:\n\t\treturn nil, err\n\tcase end",
	},
	{
		0, "a worker sends no files", "ipc/worker/server.go",
		"out.Files[min(sent, len(out.Files)):]", "nil",
	},
	{
		0, "events come again after a reconnect", "ipc/client/lasting.go",
		"if same || ev.TS <= seen.TS && ev.Seq <= seen.Seq && !message.Terminal(ev.Type) {", "if ev.Job == \"\" && same {",
	},
	{
		0, "clients take no turns", "ipc/jobs/order.go",
		"\t\tp.turn = max(p.turn, last+1)\n", "\t\tp.turn = max(p.turn, last)\n",
	},
	{
		0, "priorities count for nothing", "ipc/jobs/order.go",
		"class: message.PriorityRank(r.Priority), order", "class: 1, order",
	},
	{
		0, "a job in front waits for its turn", "ipc/jobs/order.go",
		"spot{front: r.Front,", "spot{front: false,",
	},
	{
		0, "a job begins before its time", "ipc/jobs/take.go",
		"max(e.paused.Sub(now), e.notHere.Sub(now))", "e.notHere.Sub(now)",
	},
	{
		1, "evaluations are computed again", "parallel/resume/resume.go",
		"binary.LittleEndian.Uint32(frame[8:]) != l.count {", "l.count > 0 {",
	},
	{
		1, "evaluations go when a daemon starts", "ipc/jobs/watch.go",
		"return err == nil && !rec.State.Final()", "return err == nil && rec.State == message.Queued",
	},
	{
		1, "evaluations of ended jobs stay", "ipc/jobs/watch.go",
		"return err == nil && !rec.State.Final()", "return err == nil && rec.Job != \"\"",
	},
	{
		3, "runs are cut off when the daemon is told to end", "ipc/serve/life.go",
		"case <-time.After(l.Drain):", "case <-time.After(0):",
	},
	{
		5, "a daemon that ends begins jobs", "ipc/serve/life.go",
		"\ttable.Close()\n\tstopTaking()\n", "\ttable.Close()\n\ttime.AfterFunc(l.Drain, stopTaking)\n",
	},
	{
		3, "jobs that wait fail when their daemon ends", "ipc/serve/life.go",
		"\tif l.GiveUp == nil {\n\t\ttable.FailQueued", "\tif true {\n\t\ttable.FailQueued",
	},
	{
		0, "a unique key is free once its job is done", "ipc/jobs/order.go",
		"r.State == message.Done && at-r.Created < int64(window)", "false",
	},
	{
		0, "daemons make different jobs of one key", "ipc/jobs/create.go",
		"idOfKey(req.From, req.UniqueKey, old.Job)", "idOfKey(req.From, req.UniqueKey, old.Job+j.cfg.Owner)",
	},
}

// found is how TestSimulation says that it has found something, with the first thing that it has found.
var found = regexp.MustCompile(`seed \d+ fails(.*\n.*)`)

// apply returns the file with the fault, and reports false if the text that the plant replaces is not there once.
func (p plant) apply(root string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(root, p.file))
	return strings.Replace(string(b), p.was, p.is, 1), err == nil && strings.Count(string(b), p.was) == 1
}

// TestPlants checks that every plant fits its file. With SIM_PLANTS=all, or a part of names, it runs the simulation
// with each until it is found.
func TestPlants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	want := os.Getenv("SIM_PLANTS")
	for _, p := range plants {
		text, fits := p.apply(root)
		if !fits {
			t.Errorf("%s: %s does not hold the text once", p.name, p.file)
		}
		if want == "" || want != "all" && !strings.Contains(p.name, want) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			dir := t.TempDir()
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
				filepath.Join(root, p.file): filepath.Join(dir, "planted.go"),
			}})
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "planted.go"), []byte(text), 0o600)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count", "1", "-vet", "off", "-v", "-run", "^TestSimulation$",
				"-timeout", "20m", "-overlay", filepath.Join(dir, "overlay.json"), ".")
			cmd.Env = append(os.Environ(), "SIM_PLANTS=", "SIM_SHRINK=0")
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Error("it is not found")
			case !found.Match(out):
				t.Errorf("the run fails otherwise: %v\n%s", err, out)
			default:
				t.Logf("%s", found.Find(out))
			}
		})
	}
}
