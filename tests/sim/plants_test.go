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
type plant struct{ name, file, was, is string }

// plants are the faults that TestSimulation must find, each within 500 seeds.
var plants = []plant{
	{
		"an old attempt may end a job", "ipc/jobs/step.go",
		"func (a attempt) fits(r *message.Record) bool { return a == attemptOf(r) }",
		"func (a attempt) fits(r *message.Record) bool { return true }",
	},
	{
		"files of ended jobs get no names after a crash", "ipc/jobs/reconcile.go",
		"for _, rec := range ended {", "for _, rec := range ended[:0] {",
	},
	{
		"a known job is not compared with another body", "ipc/jobs/table.go",
		"if e.rec.Hash != hash {", "if false {",
	},
	{
		"pieces of two bodies have one key", "ipc/jobs/jetstream_record.go",
		`fmt.Sprintf("%s.%s.%d", rec.Job, rec.Hash[:min(16, len(rec.Hash))], i)`, `fmt.Sprintf("%s.%d", rec.Job, i)`,
	},
	{
		"an end that the stream lacks is not told again", "ipc/jobs/reconcile.go",
		"published, err := j.store.endPublished(ctx, rec)\n\t\tif err != nil {\n\t\t\treturn\n\t\t}",
		"_, err := j.store.endPublished(ctx, rec)\n\t\tpublished := true\n\t\tif err != nil {\n\t\t\treturn\n\t\t}",
	},
	{
		"an attempt does not count", "ipc/jobs/step.go",
		"\tr.Attempt++\n", "",
	},
	{
		"the other daemons count as dead", "ipc/jobs/watch.go",
		"{ return j.cfg.Machines == nil || j.cfg.Machines.Alive(owner) }", "{ return owner == j.cfg.Owner }",
	},
	{
		"records are written whatever was written before", "ipc/jobs/jetstream_record.go",
		"rev, err := l.jobs.Update(try, rec.Job, value, rec.Rev)", "rev, err := l.jobs.Put(try, rec.Job, value)",
	},
	{
		"an older record replaces a newer one in the table", "ipc/jobs/table.go",
		"\tif r.Rev <= e.rec.Rev {\n\t\treturn\n\t}\n", "",
	},
	{
		"a file is linked twice", "node/files/outputs.go",
		"Filename: linkOf(folder, path),", `Filename: "",`,
	},
	{
		"a client is told that a job is cancelled which is not", "ipc/jobs/cancel.go",
		"	return rec.State, err == nil, err\n", "	return message.Cancelled, err == nil, err\n",
	},
	{
		"the body is not kept", "ipc/jobs/jetstream_record.go",
		"return l.requests.Put(ctx, pieceKey(rec, rec.Pieces), body[at:min(at+size, len(body))])",
		"return 1, nil",
	},
	{
		"a receipt is given for a job that was not written", "ipc/jobs/jetstream_record.go",
		"\tif noRoom(err) {\n\t\tl.unmade(rec, last)\n\t\treturn rec, false, err\n\t}\n",
		"\tif noRoom(err) {\n\t\tl.unmade(rec, last)\n\t\treturn rec, false, err\n\t}\n" +
			"\tif err != nil {\n\t\treturn rec, true, nil\n\t}\n",
	},
	{
		"a job that is to stop is run again", "ipc/jobs/step.go",
		"\tif failure == nil || r.Cancel {", "\tif failure == nil {",
	},
	{
		"a tied job does not end as cancelled when its daemon has died", "ipc/jobs/step.go",
		"\tcase r.Cancel || r.Tied:\n", "\tcase r.Cancel:\n",
	},
	{
		"attempts are not limited", "ipc/jobs/step.go",
		"\treturn r.Counted() < by.attempts, true", "\treturn true, true",
	},
	{
		"waiting jobs are not limited", "ipc/jobs/table.go",
		"\tif waiting >= j.cfg.MaxQueued {", "\tif waiting >= j.cfg.MaxQueued && from == \"\" {",
	},
	{
		"the jobs of a client are not limited", "ipc/jobs/table.go",
		"fromClient+j.load(from) >= limit", "fromClient >= limit",
	},
	{
		"a run goes on when its job is to stop", "ipc/jobs/table.go",
		"\tif r.Cancel {\n\t\tcloseOnce(e.cancel)\n\t}\n", "",
	},
	{
		"jobs of a dead daemon are left to it", "ipc/jobs/reconcile.go",
		"(r.Owner == j.cfg.Owner || !j.alive(r.Owner)):", "r.Owner == j.cfg.Owner:",
	},
	{
		"a daemon forgets what it ran before it died", "ipc/jobs/reconcile.go",
		"\tfor _, rec := range running {\n\t\td.Jobs.handBack",
		"\tfor _, rec := range running[:0] {\n\t\td.Jobs.handBack",
	},
	{
		"a write whose answer was lost is taken for that of another", "ipc/jobs/jetstream_record.go",
		"\tcase !bytes.Equal(there, value):\n", "\tcase bytes.Equal(there, value), !bytes.Equal(there, value):\n",
	},
	{
		"a receipt that was lost is refused", "ipc/jobs/jetstream_record.go",
		"\treturn old, same(old, value), nil", "\told.Hash += \"x\"\n\treturn old, same(old, value), nil",
	},
	{
		"a job expires before its time", "ipc/jobs/take.go",
		"!now.Before(e.expires)", "!now.Before(e.expires.Add(-time.Second))",
	},
	{
		"expired jobs count as failed", "ipc/jobs/step.go",
		"\treturn end(r, message.Expired,", "\treturn end(r, message.Failed,",
	},
	{
		"a run that was taken over is not stopped", "ipc/jobs/watch.go",
		"\tcloseOnce(e.cancel)\n\te.cancel = make(chan struct{})\n\te.fenced",
		"\te.cancel = make(chan struct{})\n\te.fenced",
	},
	{
		"an end is told by each daemon", "ipc/jobs/publisher.go",
		`fmt.Sprintf("%s.%d.%d.end", ev.Job, ev.Attempt, ev.TS)`,
		`fmt.Sprintf("%s.%d.%d.%s", ev.Job, ev.Attempt, ev.TS, owner)`,
	},
	{
		"the end of a job is not added to its log", "ipc/jobs/reconcile.go",
		"\tfor _, rec := range silent {\n", "\tfor _, rec := range silent[:0] {\n",
	},
	{
		"the state of a change is not checked", "ipc/jobs/step.go",
		"\tif !slices.Contains(c.from(), was.State) || !c.fits(&was) {", "\tif !c.fits(&was) {",
	},
	{
		"names of files are not recorded", "ipc/jobs/dispatch.go",
		"named{attemptOf(&rec), refs}", "named{attemptOf(&rec), rec.Outputs}",
	},
	{
		"staged files are cleaned before their names are recorded", "ipc/jobs/dispatch.go",
		"\trefs, err := d.Outputs.Commit(rec.Job)\n",
		"\trefs, err := d.Outputs.Commit(rec.Job)\n\td.Outputs.Clean(rec.Job)\n",
	},
	{
		"pieces of a refused body take those of the other", "ipc/jobs/jetstream_record.go",
		"i < rec.Pieces && old.Hash != rec.Hash; i++", "i < rec.Pieces; i++",
	},
	{
		"a retry keeps the wish to cancel", "ipc/jobs/step.go",
		"r.Finished, r.ExpireAt, r.Cancel = message.Queued, nil, nil, 0, 0, false",
		"r.Finished, r.ExpireAt = message.Queued, nil, nil, 0, 0",
	},
	{
		"two daemons of one name serve", "ipc/register/rival.go",
		"\tcase h.since > 0 && (v.since == 0 || h.since < v.since) && !v.there():\n\t\tclose(v.met)\n", "",
	},
	{
		"a full store loses records", "ipc/jobs/jetstream_record.go",
		"\t\tif refused(err) {", "\t\tif refused(err) || noRoom(err) {",
	},
	{
		"an event that was heard twice is read twice", "ipc/jobs/watch.go",
		"ev.Attempt == last.Attempt && ev.Seq <= last.Seq", "ev.Attempt == last.Attempt && ev.Seq < last.Seq",
	},
	{
		"the request of a waiting job is tidied away", "ipc/jobs/jetstream_space.go",
		"\t\tcase err != nil || rec.State == message.Done:", "\t\tcase err != nil || rec.State != message.Running:",
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
