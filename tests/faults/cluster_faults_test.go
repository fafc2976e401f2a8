package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
	"patchbay/tests/harness"
)

// member is the job store, the job table and the log of one daemon whose jobs compute nothing.
type member struct {
	store *jobs.JetStream
	table *jobs.Table
	log   *harness.Output
}

// slow is the prefix of the ids of jobs that take longer than others.
const slow = "slow"

// tiny is an executor whose jobs compute nothing. It records what it runs.
type tiny struct {
	jobs.Executor
	owner string
	note  func(run)
}

func (x *tiny) Name() string { return x.owner }

func (x *tiny) Ready(ctx context.Context) error { return ctx.Err() }

func (x *tiny) Run(ctx context.Context, task jobs.Task, sink jobs.Sink) (*jobs.Outcome, error) {
	x.note(run{task.Req.ID, task.Attempt, x.owner})
	sink.Event(message.Event{Type: message.EventStart})
	takes := 20 * time.Millisecond
	if strings.HasPrefix(task.Req.ID, slow) {
		takes = 2 * time.Second
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(takes):
		return &jobs.Outcome{}, nil
	}
}

// trial is one run of jobs on a cluster: two daemons, clients that submit to both, and what was observed.
type trial struct {
	*natsCluster
	members []*member
	mu      sync.Mutex
	past    history
	earlier map[string]bool // jobs that past leaves out
}

// startTrial starts two daemons on a cluster and calls keepRevisions.
func startTrial(c *natsCluster, urls ...string) *trial {
	tr := &trial{natsCluster: c}
	for i := range 2 {
		url := c.url(i)
		if i < len(urls) {
			url = urls[i]
		}
		tr.members = append(tr.members, tr.join(fmt.Sprint("d", i), url))
	}
	tr.keepRevisions()
	return tr
}

// keepRevisions makes the store keep up to 64 revisions of every record, more than a trial writes.
func (tr *trial) keepRevisions() {
	t := tr.t
	_, js := tr.dial()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	kept := tr.info(js, "KV_"+message.JobBucket)
	if kept == nil || kept.Config.Replicas != 3 {
		t.Fatalf("the records are kept as %+v, want 3 copies", kept)
	}
	kept.Config.MaxMsgsPerSubject = 64
	if _, err := js.UpdateStream(ctx, kept.Config); err != nil {
		t.Fatal(err)
	}
	tr.until("all servers keep revisions", func(jetstream.JetStream) bool {
		return tr.applied(kept.Config.Name, kept.Config.MaxMsgsPerSubject)
	})
}

// join starts a daemon that connects to a list of servers.
func (tr *trial) join(owner, url string) *member {
	t := tr.t
	m := &member{log: &harness.Output{}}
	log := zerolog.New(m.log).With().Timestamp().Logger()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	var err error
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	go jobs.LeaveCutOffServers(nc, log)
	config := jobs.JetStreamConfig{URL: url, Owner: owner, Log: log}
	if m.store, err = jobs.OpenJetStream(ctx, config); err != nil {
		t.Fatal(err)
	}
	out := jobs.NewPublisher(nc, log)
	m.table = jobs.New(m.store.On(jobs.Config{Log: log, Keep: 10_000, OnEvent: func(ev message.Event) {
		if msg, err := jobs.EventMessage(ev, owner, 1<<20); err == nil {
			out.Put(msg)
		}
	}}))

	if err := m.table.Open(ctx); err != nil {
		t.Fatal(err)
	}
	outputs, err := jobs.NewOutputs(jobs.OutputsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	d := &jobs.Dispatcher{Jobs: m.table, Outputs: outputs, Log: log}
	if err := d.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	work, stop := context.WithCancel(context.Background())
	note := func(r run) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.past.runs = append(tr.past.runs, r)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		d.Work(work, work, []jobs.Executor{&tiny{owner: owner, note: note}, &tiny{owner: owner, note: note}})
	})
	wg.Go(func() { m.table.Reconcile(work) })
	t.Cleanup(func() {
		stop()
		m.store.GiveUp()
		wg.Wait()
		out.Close()
		nc.Close()
		m.store.Close()
		if t.Failed() {
			t.Logf("%s says:\n%s", owner, lastOf(m.log.String(), 6000))
		}
	})
	return m
}

func lastOf(s string, n int) string { return s[max(0, len(s)-n):] }

// submit submits jobs number from to to-1, each to the daemons in turn until one gives a receipt.
func (tr *trial) submit(from, to int) {
	tr.t.Helper()
	for i := from; i < to; i++ {
		id := fmt.Sprintf("j%03d", i)
		for end, n := time.Now().Add(harness.Patience), i; ; n++ {
			err := tr.create(n%2, id)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				tr.t.Fatalf("no receipt for %s: %v", id, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		tr.past.receipts = append(tr.past.receipts, id)
	}
}

// create submits a job to one daemon.
func (tr *trial) create(to int, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), jobs.AskTime)
	defer cancel()
	_, _, err := tr.members[to].table.Create(ctx, &message.RunRequest{ID: id, Workflow: "{}"}, "hash")
	return err
}

// settled waits until every job with a receipt has ended, its terminal event is published and the queue is empty.
func (tr *trial) settled() {
	tr.t.Helper()
	end := time.Now().Add(harness.Patience)
	for left := tr.open(); left != ""; left = tr.open() {
		if time.Now().After(end) {
			_ = tr.each("KV_"+message.JobBucket, "$KV."+message.JobBucket+".>", func(m jetstream.Msg, seq uint64) {
				if id := m.Subject()[strings.LastIndexByte(m.Subject(), '.')+1:]; strings.Contains(left, id) {
					tr.t.Logf("%d: %s", seq, m.Data())
				}
			})
			tr.t.Fatalf("waited %s in vain: %s", harness.Patience, left)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// finish waits until all is settled and checks the history.
func (tr *trial) finish() {
	t := tr.t
	t.Helper()
	tr.settled()
	tr.read()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	twice := 0
	for id, list := range tr.past.records {
		last := list[len(list)-1]
		if last.State != message.Done {
			t.Errorf("%s is %s: %v", id, last.State, last.Error)
		}
		twice += last.Attempt - 1
	}
	t.Logf("%d jobs, %d attempts more", len(tr.past.records), twice)
	for i, m := range tr.members { // the servers sync every write, and two of three have every record
		if s := m.store.Space(); s.Restored > 0 || s.Lost > 0 {
			t.Errorf("daemon %d missed records: %d written again, %d lost", i, s.Restored, s.Lost)
		}
	}
	for _, why := range tr.past.faults() {
		t.Error(why)
	}
}

// open describes something that is not settled yet, or returns "" if all is.
func (tr *trial) open() string {
	for i, m := range tr.members {
		for _, id := range tr.past.receipts {
			rec, err := m.table.Get(id)
			if err != nil || !rec.State.Final() {
				return fmt.Sprintf("daemon %d says of %s: %s %v", i, id, rec.State, err)
			}
		}
	}
	ends, err := tr.events()
	if err != nil {
		return "the events cannot be read: " + err.Error()
	}
	if id := tr.untold(ends); id != "" {
		return "the end of " + id + " is not told"
	}
	return ""
}

// untold returns a job with a receipt of which no end is among those, "" if there is none.
func (tr *trial) untold(ends map[string][]message.Event) string {
	for _, id := range tr.past.receipts {
		if len(ends[id]) == 0 {
			return id
		}
	}
	return ""
}

// read reads every revision of every record and every terminal event, starting over until nothing was left out. It is
// for a trial that is settled: where the end of a job is missing, a server answered that was cut off and still takes
// itself for the leader.
func (tr *trial) read() {
	tr.t.Helper()
	for end := time.Now().Add(harness.Patience); ; time.Sleep(200 * time.Millisecond) {
		records := map[string][]message.Record{}
		ends, err := tr.events()
		if id := tr.untold(ends); err == nil && id != "" {
			err = fmt.Errorf("the end of %s, which was there, is missing", id)
		}
		if err == nil {
			err = tr.each("KV_"+message.JobBucket, "$KV."+message.JobBucket+".>", func(m jetstream.Msg, seq uint64) {
				var rec message.Record
				if err := json.Unmarshal(m.Data(), &rec); err != nil {
					tr.t.Errorf("%s: %v", m.Subject(), err)
					return
				}
				if rec.Rev = seq; !tr.earlier[rec.Job] {
					records[rec.Job] = append(records[rec.Job], rec)
				}
			})
		}
		if err == nil {
			tr.past.records, tr.past.ends = records, ends
			return
		}
		if time.Now().After(end) {
			tr.t.Fatalf("waited %s in vain for the history: %v", harness.Patience, err)
		}
	}
}

// events reads the terminal events in the stream.
func (tr *trial) events() (map[string][]message.Event, error) {
	out := map[string][]message.Event{}
	err := tr.each(message.EventStream, message.EventSubject("*", "*"), func(m jetstream.Msg, _ uint64) {
		var ev message.Event
		if json.Unmarshal(m.Data(), &ev) == nil && message.Terminal(ev.Type) && !tr.earlier[ev.Job] {
			out[ev.Job] = append(out[ev.Job], ev)
		}
	})
	return out, err
}

// each calls f with the messages of a stream on a subject. After an error, for example while the stream has no leader
// or the server of the consumer lags behind it, f has seen only a part of them.
func (tr *trial) each(stream, subject string, f func(jetstream.Msg, uint64)) error {
	tr.t.Helper()
	nc, js := tr.dial()
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // a stream without a leader never answers
	defer cancel()
	st, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	leader, err := st.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return err
	}
	there := uint64(0)
	for _, n := range leader.State.Subjects {
		there += n
	}
	c, err := st.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return err
	}
	left := c.CachedInfo().NumPending
	if left < there {
		return fmt.Errorf("%s: the server of the consumer has %d messages, the leader %d", stream, left, there)
	}
	for left > 0 {
		batch, err := c.Fetch(int(min(left, 500)), jetstream.FetchMaxWait(2*time.Second))
		if err != nil {
			return err
		}
		got := uint64(0)
		for m := range batch.Messages() {
			if meta, err := m.Metadata(); err == nil {
				f(m, meta.Sequence.Stream)
			}
			got++
		}
		if got == 0 {
			return errors.Join(fmt.Errorf("%s: %d messages do not come", stream, left), batch.Error())
		}
		left -= min(left, got)
	}
	return nil
}

// TestCluster checks that the jobs of two daemons on three servers all end, and end once, while one server is killed,
// cut off, full or damaged.
func TestCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: elections of three servers; TestDurable has storms on one")
	}
	records := "KV_" + message.JobBucket
	t.Run("Copies", func(t *testing.T) {
		t.Parallel()
		_, err := jobs.OpenJetStream(context.Background(), jobs.JetStreamConfig{
			URL: startCluster(t).url(0), Owner: "a", Replicas: 5,
		})
		if err == nil || !strings.Contains(err.Error(), "--replicas 5: the NATS cluster three has not so many servers") {
			t.Errorf("5 copies on 3 servers: %v, want a refusal that names the option and the cluster", err)
		}
	})
	for name, test := range map[string]func(*testing.T){
		"Daemon": clusterDaemon, "DaemonsAway": daemonsAway, "HalfOpenDaemon": halfOpenDaemon,
		"HalfOpenDaemons": halfOpenDaemons, "HalfOpenServers": halfOpenServers,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t) })
	}
	for _, c := range []struct {
		name string
		hurt func(*trial, func()) // calls its argument while the fault lasts
	}{
		{"LeaderKilled", func(tr *trial, meanwhile func()) {
			i := tr.leader(records)
			tr.nodes[i].Kill()
			meanwhile()
			for _, m := range tr.members {
				tr.until("the daemons say which server is away", func(jetstream.JetStream) bool {
					return strings.Contains(strings.Join(m.store.Space().Trouble, "\n"),
						fmt.Sprintf("server s%d is away or behind: KV_", i))
				})
			}
			tr.nodes[i].Start()
		}},
		{"MinorityCutOff", func(tr *trial, meanwhile func()) {
			tr.part(tr.leader(records))
			meanwhile()
			tr.part()
		}},
		{"EachCutOff", func(tr *trial, _ func()) { // a daemon leaves a server that is cut off
			for i := range tr.nodes {
				tr.part(i)
				tr.until("both daemons can write", func(jetstream.JetStream) bool {
					return tr.create(0, fmt.Sprint("left", i)) == nil && tr.create(1, fmt.Sprint("right", i)) == nil
				})
				tr.past.receipts = append(tr.past.receipts, fmt.Sprint("left", i), fmt.Sprint("right", i))
				tr.part()
				tr.whole(records)
			}
		}},
		{"MajorityCutOff", func(tr *trial, meanwhile func()) {
			tr.lone()
			time.Sleep(3 * time.Second)
			tr.part()
			meanwhile()
		}},
		{"DiskFull", func(tr *trial, meanwhile func()) {
			i := tr.leader(records)
			pid := tr.nodes[i].Cmd.Process.Pid
			d := limitedDisk(tr.t, func() int { return pid })
			d.fill()
			meanwhile()
			d.free()
			tr.nodes[i].Kill()
			tr.nodes[i].Start()
		}},
		{"FlippedBytes", func(tr *trial, meanwhile func()) {
			i := tr.leader(records)
			tr.nodes[i].Kill()
			tr.flip(i, records)
			tr.flip(i, message.EventStream)
			tr.nodes[i].Start()
			meanwhile()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !soak && c.name == "EachCutOff" {
				t.Skip("NOT RUN without -tags soak: 40 s, and Daemon cuts each server off, too")
			}
			tr := startTrial(startCluster(t))
			tr.submit(0, clusterJobs/4)
			c.hurt(tr, func() { tr.submit(clusterJobs/4, 3*clusterJobs/4) })
			tr.submit(3*clusterJobs/4, clusterJobs)
			tr.whole(records)
			tr.finish()
		})
	}
}

// clusterDaemon runs a real daemon on the list of servers: clients reach it through any majority, jobs run before and
// after a server is killed, and doctor reports the copies and the missing server.
func clusterDaemon(t *testing.T) {
	program, c := harness.Build(t), startCluster(t)
	s := harness.Start(t, program, "", "--nats", c.url(0))
	harness.Submit(t, harness.Dial(t, s), "first", harness.Quick)
	s.WaitState(harness.Dial(t, s), "first", message.Done)
	for i := range c.nodes { // the daemon is connected to one of them
		c.part(i)
		others := c.nodes[(i+1)%3].URL + "," + c.nodes[(i+2)%3].URL
		s.Until("clients at the others reach the daemon", func() bool {
			time.Sleep(200 * time.Millisecond) // an election takes seconds, and each try connects anew
			return submitOnce(others, &message.RunRequest{ID: fmt.Sprint("part", i), Workflow: harness.Quick}) == nil
		})
		c.part()
		c.whole("KV_" + message.JobBucket)
	}
	for i := range c.nodes {
		s.WaitState(harness.Dial(t, s), fmt.Sprint("part", i), message.Done)
	}
	gone := c.leader("KV_" + message.JobBucket)
	c.nodes[gone].Kill()
	s.Until("the job is taken", func() bool {
		time.Sleep(200 * time.Millisecond)
		return submitOnce(c.url(0), &message.RunRequest{ID: "without", Workflow: harness.Quick}) == nil
	})
	s.WaitState(harness.Dial(t, s), "without", message.Done)
	missing := fmt.Sprintf(": server s%d is away or behind: KV_", gone)
	s.Until("doctor says what is missing", func() bool {
		time.Sleep(time.Second)
		out, _ := exec.Command(program, "doctor", "--nats", c.url(0), "--models", harness.DemoModels(t)).Output()
		return strings.Contains(string(out), "; 3 copies\n") && strings.Contains(string(out), missing)
	})
	if err := s.Stop(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// flip changes bytes in every block of a stream on a server that is not running, and removes the stream's index.
func (tr *trial) flip(server int, stream string) {
	t := tr.t
	msgs := filepath.Join(tr.store[server], "jetstream", "$G", "streams", stream, "msgs")
	blocks, err := filepath.Glob(filepath.Join(msgs, "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("blocks of %s: %v, %v", stream, blocks, err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, b := range blocks {
		data, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		for at := 100; at < len(data); at += 4096 {
			data[at+rnd.IntN(min(64, len(data)-at))] ^= 0x41
		}
		if err := os.WriteFile(b, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(filepath.Join(msgs, "index.db"))
}
