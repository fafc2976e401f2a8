package jobs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
)

// serverRules are the rules of a store that outlives the daemon.
func serverRules() rules { return rules{attempts: 3, pauses: durablePauses()} }

// examples returns changes of every kind that fit a record: with all ends that an attempt can have.
func examples(r message.Record) []change {
	failures := []*fault.Error{
		nil, fault.New(fault.WorkerLost, "it died"), fault.New(fault.Draining, "the daemon stops"),
		fault.New(fault.FileChanged, "somebody wrote to it"),
		fault.New(fault.BadRequest, "no such node"), fault.New(fault.DiskFull, "no room"), Cancelled(),
	}
	out := []change{
		taken{"w", "d", "c"},
		answered{message.Record{Job: "old"}},
		named{attempt: attemptOf(&r)},
		toldBefore{attemptOf(&r), 3},
		abandoned{attemptOf(&r), "it is gone"},
		cancelAsked{},
		moveAsked{front: true},
		moveAsked{priority: "low"},
		retryAsked{},
		overdue{r.ExpireAt},
		hopeless{fault.New(fault.Internal, "its request is gone")},
		filesDropped{attemptOf(&r)},
		reported{r.EndSeq},
		tooLong{r, errors.New("too many files")},
	}
	for _, f := range failures {
		out = append(out, ended{attempt: attemptOf(&r), failure: f, outputs: []message.OutputRef{{Node: "9"}}})
	}
	return out
}

// nameOf is what the documentation calls a change.
func nameOf(c change) string { return strings.TrimPrefix(fmt.Sprintf("%T", c), "jobs.") }

// violated returns how a step breaks what every step must keep; "" if it does not.
func violated(was, is message.Record, c change, then effects, by rules) string {
	retries := 0
	for _, ev := range then.events {
		if ev.Type == message.EventRetrying {
			retries++
		}
	}
	_, byHand := c.(retryAsked)
	_, left := c.(abandoned)
	gone := []string{fault.WorkerLost, fault.Draining}
	ends := is.State.Final() && !was.State.Final()
	switch {
	case was.State.Final() && is.State != was.State && !byHand:
		return "an end is changed"
	case byHand && !was.State.Final():
		return "a job runs twice at a time"
	case !byHand && !slices.Contains(was.State.Next(), is.State):
		return "no such transition"
	case is.Attempt < was.Attempt || is.Attempt > was.Attempt+1:
		return "attempts do not go up one at a time"
	case is.Attempt > was.Attempt && is.State != message.Running:
		return "an attempt that does not run is counted"
	case is.State.Final() != (is.Finished != 0):
		return "the time of the end"
	case (is.State == message.Failed || is.State == message.Expired || is.State == message.Cancelled) && is.Error == nil:
		return "no reason for the end"
	case !is.State.Final() && (is.Error != nil || len(is.Outputs) > 0 || is.Dropped != 0):
		return "what belongs to an end is there before it"
	case was.State == message.Running && is.State == message.Running && was.Cancel && !is.Cancel:
		return "a cancel request is lost"
	case is.Cancel && is.State == message.Queued:
		return "a job that was to be cancelled runs again"
	case was.Cancel && is.State == message.Failed && slices.Contains(gone, is.Error.Public()):
		return "a job that was to be cancelled and is gone did not end as cancelled"
	case left && was.Tied && is.State != message.Cancelled:
		return "a tied job outlives its client's daemon"
	case is.Counted() > by.attempts || is.HandedBack > maxHandedBack || is.Counted() < 0:
		return "more attempts than are allowed"
	case is.State == message.Running && is.NotBefore != 0:
		return "a pause while it runs"
	case ends && then.ends == then.files, then.ends && !is.State.Final(), len(then.events) > retries:
		return "the log has no end, or two"
	case was.State != message.Queued && is.State == message.Queued && retries != 1:
		return "nobody hears of the retry"
	case then.files && !ends:
		return "files of a job that goes on"
	case then.bury != (ends && is.State == message.Failed) && reflect.TypeOf(c) != reflect.TypeFor[tooLong]():
		return "a dead letter without a failure, or none with one"
	}
	return ""
}

// TestStepKeepsInvariants makes random changes to jobs and checks what every step must keep. Every kind of change must
// be made, and every state reached.
func TestStepKeepsInvariants(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test repeats its numbers
	made, reached := map[string]int{}, map[message.State]int{}
	for job := range 3000 {
		by := serverRules()
		if job%3 == 0 {
			by.pauses = memoryPauses()
		}
		r := message.Record{
			Job: "j", State: message.Queued, Created: 1, Owner: "d", Tied: rnd.IntN(4) == 0, Webhook: &message.Hook{},
		}
		if rnd.IntN(3) == 0 {
			r.ExpireAt = 50
		}
		for at := int64(2); at < 60; at++ {
			all := examples(r)
			c := all[rnd.IntN(len(all))]
			next, then, err := step(r, c, at, by)
			if err != nil {
				if !errors.Is(err, errMoved) {
					t.Fatal(err)
				}
				continue
			}
			if what := violated(r, next, c, then, by); what != "" {
				t.Fatalf("%s: %+v\nmakes of\n%+v\nthis\n%+v\nwith %+v", what, c, r, next, then)
			}
			made[nameOf(c)]++
			reached[next.State]++
			r = next
		}
	}
	for _, c := range changes() {
		if made[nameOf(c)] == 0 {
			t.Errorf("%s was never made", nameOf(c))
		}
	}
	for _, s := range message.States() {
		if reached[s] == 0 {
			t.Errorf("%s was never reached", s)
		}
	}
}

// TestStepsOfOtherAttempts checks that what is said about an attempt changes only that attempt.
func TestStepsOfOtherAttempts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r message.Record
		c change
	}{
		{message.Record{State: message.Running, Attempt: 2}, ended{attempt: attempt{1, ""}}},
		{message.Record{State: message.Running, Attempt: 1, Owner: "b"}, ended{attempt: attempt{1, "a"}}},
		{message.Record{State: message.Done, Attempt: 2}, named{attempt: attempt{1, ""}}},
		{message.Record{State: message.Done, Attempt: 2}, filesDropped{attempt{1, ""}}},
		{message.Record{State: message.Done, Attempt: 2, Dropped: 7}, filesDropped{attempt{2, ""}}},
		{message.Record{State: message.Running, Attempt: 2, Owner: "a"}, abandoned{attempt{1, "a"}, ""}},
		{message.Record{State: message.Running, Attempt: 2, Owner: "a"}, abandoned{attempt{2, "b"}, ""}},
		{message.Record{State: message.Queued, ExpireAt: 8}, overdue{7}},
		{message.Record{State: message.Done, EndSeq: 4, Webhook: &message.Hook{}}, reported{3}},
		{message.Record{State: message.Done, EndSeq: 4, Webhook: &message.Hook{Reported: 4}}, reported{4}},
		{message.Record{State: message.Done, EndSeq: 4}, reported{4}},
		{message.Record{State: message.Failed, Kind: KindSample}, retryAsked{}},
	} {
		if _, _, err := step(c.r, c.c, 1, serverRules()); !errors.Is(err, errMoved) {
			t.Errorf("%T on %+v: got %v", c.c, c.r, err)
		}
	}
}

// TestStepLeavesTheRecordAlone checks that a step does not change what it is given.
func TestStepLeavesTheRecordAlone(t *testing.T) {
	t.Parallel()
	for _, s := range message.States() {
		r := message.Record{
			State: s, Attempt: 4, Causes: make([]string, 2, 8), Outputs: make([]message.OutputRef, 1, 8),
			Error: fault.New(fault.Internal, "it failed"),
		}
		for _, c := range examples(r) {
			before := fmt.Sprintf("%+v", r)
			_, _, _ = step(r, c, 9, serverRules())
			if after := fmt.Sprintf("%+v", r); after != before || len(r.Causes[:cap(r.Causes)][2]) > 0 {
				t.Errorf("%T changes\n%s to\n%s", c, before, after)
			}
		}
	}
}

// TestPauseBetweenAttempts checks that the pause doubles with every attempt that counts, to half a minute at most.
func TestPauseBetweenAttempts(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[int]time.Duration{
		1: 200 * time.Millisecond, 2: 400 * time.Millisecond, 4: 1600 * time.Millisecond, 8: 25600 * time.Millisecond,
		9: 30 * time.Second, 60: 30 * time.Second,
	} {
		r := message.Record{Attempt: attempt + 7, Earlier: 5, HandedBack: 2}
		serverRules().requeue(&r, fault.New(fault.WorkerLost, "it died"), true, 1_000_000)
		if got := time.Duration(r.NotBefore-1_000_000) * time.Millisecond; got != want {
			t.Errorf("after attempt %d: %v, want %v", attempt, got, want)
		}
	}
}

// TestHandBacksAreNoAttempts follows records through the ends of their attempts. Three attempts may lose their worker;
// those that a stopping daemon hands back neither count among them nor pause, but there are 20 at most.
func TestHandBacksAreNoAttempts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		ends          []string // codes of the attempts' ends, repeated from the front
		attempts      int      // until the job fails
		counted, back int
	}{
		{"only lost", []string{fault.WorkerLost}, 3, 3, 0},
		{"only handed back", []string{fault.Draining}, 21, 1, 20},
		{"handed back between", []string{fault.Draining, fault.Draining, fault.WorkerLost}, 9, 3, 6},
		{"file changed", []string{fault.FileChanged}, 3, 3, 0},
		{"handed back after", []string{fault.WorkerLost, fault.WorkerLost, fault.Draining, fault.Draining}, 5, 3, 2},
	} {
		r := message.Record{State: message.Queued}
		for at := int64(1); !r.State.Final() && r.Attempt < 100; at += 100_000 {
			code := c.ends[r.Attempt%len(c.ends)]
			end := ended{attempt: attempt{r.Attempt + 1, "d"}, failure: fault.New(code, "it ended")}
			for _, ch := range []change{taken{"w", "d", "c"}, end} {
				var err error
				if r, _, err = step(r, ch, at, serverRules()); err != nil {
					t.Fatal(err)
				}
			}
			if pauses := r.NotBefore > 0; r.State == message.Queued && pauses == (code == fault.Draining) {
				t.Errorf("%s: a pause after attempt %d, which ended with %s: %v", c.name, r.Attempt, code, pauses)
			}
		}
		if r.Attempt != c.attempts || r.Counted() != c.counted || r.HandedBack != c.back || r.State != message.Failed {
			t.Errorf("%s: %s after %d attempts, of which %d count and %d were handed back; want %d, %d and %d", c.name, r.State,
				r.Attempt, r.Counted(), r.HandedBack, c.attempts, c.counted, c.back)
		}
	}
}

// The table of transitions in docs/reliability.md is between these lines.
const (
	tableBegins = "<!-- PATCHBAY_WRITE_TRANSITIONS=1 go test ./ipc/jobs -run TestTransitionsAreDocumented -->\n"
	tableEnds   = "<!-- end of transitions -->\n"
)

// TestTransitionsAreDocumented makes the table of transitions by trying every change on records in every state, and
// compares it with the one in docs/reliability.md.
func TestTransitionsAreDocumented(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reliability.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegins)
	documented, after, ends := strings.Cut(rest, tableEnds)
	if !ok || !ends {
		t.Fatal("the table is not there")
	}
	table := transitions()
	if os.Getenv("PATCHBAY_WRITE_TRANSITIONS") != "" {
		if err := os.WriteFile(path, []byte(before+tableBegins+table+tableEnds+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if documented != table {
		t.Errorf("docs/reliability.md has\n%s\nthe code makes\n%s", documented, table)
	}
}

// transitions returns the table: for each change and state, the states to which it may lead.
func transitions() string {
	to := map[string]map[message.State]map[message.State]bool{}
	for _, s := range message.States() {
		for variant := range 16 {
			r := message.Record{
				State: s, Attempt: 1, Owner: "d", Cancel: variant&1 > 0, Tied: variant&2 > 0, Webhook: &message.Hook{Reported: 9},
			}
			if variant&4 > 0 {
				r.Attempt = 3
			}
			if variant&8 > 0 {
				r.Attempt, r.HandedBack = maxHandedBack+1, maxHandedBack
			}
			for _, c := range examples(r) {
				next, _, err := step(r, c, 9, serverRules())
				if err != nil {
					continue
				}
				if to[nameOf(c)] == nil {
					to[nameOf(c)] = map[message.State]map[message.State]bool{}
				}
				if to[nameOf(c)][s] == nil {
					to[nameOf(c)][s] = map[message.State]bool{}
				}
				to[nameOf(c)][s][next.State] = true
			}
		}
	}
	var out strings.Builder
	out.WriteString("| change | from | to |\n|---|---|---|\n")
	for _, c := range changes() {
		for _, s := range message.States() {
			if next := slices.Sorted(maps.Keys(to[nameOf(c)][s])); len(next) > 0 {
				fmt.Fprintf(&out, "| %s | %s | %s |\n", nameOf(c), s, strings.Trim(fmt.Sprint(next), "[]"))
			}
		}
	}
	return out.String()
}
