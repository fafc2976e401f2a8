package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// hidden keeps servers from advertising addresses to daemons that bypass their cables.
const hidden = "no_advertise: true,"

// cables gives one daemon its own links to the servers, and returns them with the server list for that daemon.
func (c *natsCluster) cables() ([]*route, string) {
	var out []*route
	var list []string
	for i, n := range c.nodes {
		ln := newRoute(c.t, -1, i, strings.TrimPrefix(n.URL, "nats://"))
		out, list = append(out, ln), append(list, "nats://"+ln.l.Addr().String())
	}
	return out, strings.Join(list, ",")
}

// holdUsed holds the data for either end of the links that have a connection.
func holdUsed(cables []*route, first, second bool) {
	for _, ln := range cables {
		ln.mu.Lock()
		used := len(ln.open) > 0
		ln.mu.Unlock()
		if used {
			ln.hold(first, second)
		}
	}
}

// bothWrite waits until both daemons take jobs, and logs how long that took.
func (tr *trial) bothWrite(while string) {
	tr.t.Helper()
	began, ids := time.Now(), []string{while + "-a", while + "-b"}
	tr.until("both daemons can write", func(jetstream.JetStream) bool {
		return tr.create(0, ids[0]) == nil && tr.create(1, ids[1]) == nil
	})
	tr.past.receipts = append(tr.past.receipts, ids...)
	tr.t.Logf("%s: both daemons take jobs after %s", while, time.Since(began).Round(100*time.Millisecond))
}

// halfOpenDaemons cuts one direction of each daemon's cable to its server: one daemon is no longer heard, the other
// hears nothing, and no connection ends. Both move to another server. What was in flight arrives late.
func halfOpenDaemons(t *testing.T) {
	c := startClusterWith(t, hidden)
	a, listA := c.cables()
	b, listB := c.cables()
	tr := startTrial(c, listA, listB)
	tr.submit(0, halfOpenJobs/4)
	holdUsed(a, true, false)
	holdUsed(b, false, true)
	tr.bothWrite("half-open")
	tr.submit(halfOpenJobs/4, 3*halfOpenJobs/4)
	for _, ln := range slices.Concat(a, b) {
		ln.hold(false, false)
	}
	tr.submit(3*halfOpenJobs/4, halfOpenJobs)
	tr.finish()
}

// halfOpenDaemon holds all cables of one daemon in both directions while it runs jobs, until the other has taken them
// over. Then everything it sent in the meantime arrives.
func halfOpenDaemon(t *testing.T) {
	c := startClusterWith(t, hidden)
	cables, list := c.cables()
	tr := startTrial(c, list)
	for i := range 4 { // two at each daemon
		id := fmt.Sprint(slow, i)
		if err := tr.create(i%2, id); err != nil {
			t.Fatal(err)
		}
		tr.past.receipts = append(tr.past.receipts, id)
	}
	var under []run
	tr.until("the daemon runs jobs", func(jetstream.JetStream) bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		under = slices.DeleteFunc(slices.Clone(tr.past.runs), func(r run) bool { return r.owner != "d0" })
		return len(under) > 0
	})
	for _, ln := range cables {
		ln.hold(true, true)
	}
	began := time.Now()
	tr.until("the other daemon runs them again", func(jetstream.JetStream) bool {
		return !slices.ContainsFunc(under, func(r run) bool {
			rec, err := tr.members[1].table.Get(r.job)
			return err != nil || rec.Attempt < 2
		})
	})
	t.Logf("%d jobs run again after %s", len(under), time.Since(began).Round(100*time.Millisecond))
	if err := tr.create(1, "meanwhile"); err != nil {
		t.Fatal(err)
	}
	tr.past.receipts = append(tr.past.receipts, "meanwhile")
	for _, ln := range cables {
		ln.hold(false, false)
	}
	tr.submit(0, halfOpenJobs)
	tr.finish()
}

// halfOpenServers cuts the outgoing cables of the server that leads the records and, with the tag soak, the incoming
// ones after that: another server takes the lead, and what was held arrives late.
func halfOpenServers(t *testing.T) {
	records := "KV_" + message.JobBucket
	tr := startTrial(startCluster(t))
	tr.submit(0, halfOpenJobs/4)
	for k := range halfOpenCuts {
		i, mute := tr.leader(records), k%2 == 0
		tr.hold(i, mute, !mute)
		tr.bothWrite(fmt.Sprintf("leader-%d-%s", k, map[bool]string{true: "mute", false: "deaf"}[mute]))
		tr.submit((k+1)*halfOpenJobs/4, (k+2)*halfOpenJobs/4)
		tr.hold(i, false, false)
		tr.whole(records)
	}
	tr.finish()
}

// daemonsAway runs three real daemons on three servers. Of two that run a job, one is killed and the other is stopped
// until the third has both jobs. Both are back for the next round.
func daemonsAway(t *testing.T) {
	program, tr := harness.Build(t), &trial{natsCluster: startCluster(t), earlier: map[string]bool{}}
	var all []*harness.Server
	names := map[string]*harness.Server{}
	for i := range tr.nodes {
		args := []string{"--nats", tr.url(i)}
		if i > 0 {
			args = append(args, "--output", all[0].Out)
		}
		s := harness.Start(t, program, "", args...)
		name, err := os.ReadFile(filepath.Join(s.Store, "daemon-name"))
		if err != nil {
			t.Fatal(err)
		}
		all, names[string(name)] = append(all, s), s
	}
	for round := range awayRounds {
		tr.keepRevisions() // a starting daemon drops old revisions: jobs of earlier rounds now begin with their end
		for _, id := range tr.past.receipts {
			tr.earlier[id] = true
		}
		tr.past = history{}
		tr.awayRound(all, names, 2*round)
		tr.finish()
		for name, s := range names {
			tr.past.runs = append(tr.past.runs, started(s, name, tr.past.receipts)...)
		}
		for _, why := range tr.past.faults() {
			t.Error(why)
		}
		for _, s := range all {
			if s.Ended == nil {
				s.Launch()
			}
		}
	}
	for i := range 2 * awayRounds {
		onlyPicture(t, all[0].Out, i)
	}
	if made, err := filepath.Glob(filepath.Join(all[0].Out, "quick_*")); err != nil || len(made) != awayJobs*awayRounds {
		t.Errorf("%d jobs made %d files, %v", awayJobs*awayRounds, len(made), err)
	}
}

// resultDropped is what a daemon logs when another one has taken over its job.
const resultDropped = `"message":"result dropped"`

// awayJobs is the number of short jobs in a round of daemonsAway, beside two long ones.
const awayJobs = 8

// awayRound runs one round of daemonsAway, with pictures number first and first+1.
func (tr *trial) awayRound(all []*harness.Server, names map[string]*harness.Server, first int) {
	t, c := tr.t, harness.Dial(tr.t, all[0])
	submit := func(id, flow string) {
		all[0].Until("a receipt for "+id, func() bool {
			return submitOnce(tr.url(0), &message.RunRequest{ID: id, Workflow: flow}) == nil
		})
		tr.past.receipts = append(tr.past.receipts, id)
	}
	ids := []string{chaosID(first), chaosID(first + 1)}
	var at [2]*harness.Server
	var release func()
	for k, id := range ids { // one after the other: the first one's daemon has no other worker
		submit(id, strings.Replace(chaosFlow(t, first+k), `"steps": 4`, `"steps": 60`, 1))
		all[0].Until("a daemon runs "+id, func() bool {
			rec, err := harness.Status(c, id)
			at[k] = names[rec.Owner]
			return err == nil && rec.State == message.Running
		})
		release = harness.Throttle(t, at[k].Worker())
	}
	if at[0] == at[1] {
		t.Fatalf("one daemon runs both jobs")
	}
	for i := range awayJobs {
		submit(fmt.Sprintf("quick-%d-%d", first, i), harness.Quick)
	}
	heir := all[slices.IndexFunc(all, func(s *harness.Server) bool { return s != at[0] && s != at[1] })]
	frozen := []int{at[1].Cmd.Process.Pid, at[1].Worker()}
	dropped := strings.Count(at[1].Log.String(), resultDropped)
	at[0].Kill()
	release()
	for _, pid := range frozen {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	c = harness.Dial(t, heir)
	for _, id := range ids {
		heir.Until("the third daemon has taken "+id, func() bool {
			rec, err := harness.Status(c, id)
			return err == nil && rec.Attempt == 2
		})
	}
	t.Logf("both jobs run again after %s", time.Since(began).Round(100*time.Millisecond))
	for _, pid := range slices.Backward(frozen) { // a daemon that goes on may find that its worker has hung, and end it
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	at[1].Until("the daemon that was stopped has dropped its result", func() bool {
		return strings.Count(at[1].Log.String(), resultDropped) > dropped
	})
}

// started returns the runs of the given jobs that a daemon has logged.
func started(s *harness.Server, name string, ids []string) []run {
	var out []run
	for line := range strings.Lines(s.Log.String()) {
		var l struct {
			Message, Job, Worker string
			Attempt              int
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "job started" && slices.Contains(ids, l.Job) &&
			strings.HasPrefix(l.Worker, "worker-") { // other lines are the worker's own
			out = append(out, run{l.Job, l.Attempt, name})
		}
	}
	return out
}
