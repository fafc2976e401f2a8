package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/ipc/message"
)

// history is what a run leaves behind: which jobs have a receipt, what was written of each job in order, what was run,
// and which terminal events were published.
type history struct {
	receipts []string
	records  map[string][]message.Record // by job, each with its revision
	runs     []run
	ends     map[string][]message.Event // terminal events, by job
}

// run is one start of an executor.
type run struct {
	job     string
	attempt int
	owner   string
}

// faults looks for one legal order of everything in a history, and names what is wrong.
func (h *history) faults() []string {
	var out []string
	bad := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, id := range h.receipts {
		if len(h.records[id]) == 0 {
			bad("%s: a receipt without a record", id)
		}
	}
	for id, list := range h.records {
		out = append(out, orderFaults(id, list)...)
		last := list[len(list)-1]
		if !last.State.Final() {
			bad("%s: has not ended: %s", id, last.State)
		}
		out = append(out, endFaults(last, h.ends[id])...)
	}
	for id := range h.ends {
		if len(h.records[id]) == 0 {
			bad("%s: an end without a record", id)
		}
	}
	seen := map[run]bool{}
	for _, r := range h.runs {
		if key := (run{r.job, r.attempt, ""}); seen[key] {
			bad("%s: attempt %d ran twice", r.job, r.attempt)
		} else {
			seen[key] = true
		}
		if !slices.ContainsFunc(h.records[r.job], func(rec message.Record) bool {
			return rec.State == message.Running && rec.Attempt == r.attempt && rec.Owner == r.owner
		}) {
			bad("%s: attempt %d ran at %s and no record says so", r.job, r.attempt, r.owner)
		}
	}
	slices.Sort(out)
	return out
}

// orderFaults checks the records of one job.
func orderFaults(id string, list []message.Record) []string {
	var out []string
	if first := list[0]; first.State != message.Queued || first.Attempt != 0 {
		out = append(out, fmt.Sprintf("%s: begins as %s in attempt %d", id, first.State, first.Attempt))
	}
	for i := 1; i < len(list); i++ {
		was, is := list[i-1], list[i]
		if why := stepFault(was, is); why != "" {
			out = append(out, fmt.Sprintf("%s: %s/%d at %d, then %s/%d at %d: %s", id, was.State, was.Attempt, was.Rev,
				is.State, is.Attempt, is.Rev, why))
		}
	}
	return out
}

// stepFault says why one record may not follow another. It returns "" if it may.
func stepFault(was, is message.Record) string {
	starts := was.State == message.Queued && is.State == message.Running
	revived := slices.Contains(was.State.Revived(), is.State)
	want := was.Attempt
	if starts {
		want++
	}
	switch {
	case is.Rev <= was.Rev:
		return "the revision does not grow"
	case is.Job != was.Job || is.Hash != was.Hash || is.Created != was.Created:
		return "it is another job"
	case !slices.Contains(was.State.Next(), is.State) && !revived:
		return "no legal step"
	case is.Attempt != want:
		return fmt.Sprintf("want attempt %d", want)
	case was.State == message.Running && is.Owner != was.Owner:
		return "the owner changes while the job runs"
	case starts && is.Owner == "":
		return "nobody owns it"
	case is.HandedBack > is.Attempt || is.HandedBack < was.HandedBack:
		return fmt.Sprintf("handed back %d times, before %d", is.HandedBack, was.HandedBack)
	case is.State == message.Queued && was.State != message.Queued && slices.Equal(is.Causes, was.Causes):
		return "it waits again without a cause"
	case was.State == message.Running && is.State == message.Running && was.Cancel && !is.Cancel:
		return "the wish to cancel is gone"
	case is.State.Final() && is.Finished == 0:
		return "it has ended at no time"
	case was.State.Final() && !revived && is.Finished != was.Finished:
		return "it ends twice"
	}
	return ""
}

// endFaults compares the terminal events of a job with its last record.
func endFaults(last message.Record, ends []message.Event) []string {
	if !last.State.Final() {
		return nil
	}
	want := map[message.State]string{
		message.Done: message.EventSuccess, message.Failed: message.EventError,
		message.Cancelled: message.EventInterrupted, message.Expired: message.EventExpired,
	}[last.State]
	told := 0
	var out []string
	for _, ev := range ends {
		switch {
		case ev.Attempt == last.Attempt && ev.Type == want:
			told++
		default:
			out = append(out, fmt.Sprintf("%s: the end %s of attempt %d is told, it is %s in attempt %d", last.Job, ev.Type,
				ev.Attempt, last.State, last.Attempt))
		}
	}
	if told != 1 {
		out = append(out, fmt.Sprintf("%s: its end is told %d times", last.Job, told))
	}
	return out
}

// goodHistory returns one of two jobs: the first is handed back once, the second is cancelled while it waits.
func goodHistory() *history {
	at := func(rev uint64, state message.State, attempt int, change func(*message.Record)) message.Record {
		r := message.Record{Job: "a", Hash: "h", Created: 1, State: state, Rev: rev, Attempt: attempt, Owner: "x"}
		if attempt > 1 || attempt == 1 && state == message.Queued {
			r.Causes, r.HandedBack = []string{"lost"}, 1
		}
		if state.Final() {
			r.Finished = 9
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	b := func(r *message.Record) { r.Job = "b" }
	y := func(r *message.Record) { r.Owner = "y" }
	return &history{
		receipts: []string{"a", "b"},
		records: map[string][]message.Record{
			"a": {
				at(1, message.Queued, 0, nil), at(3, message.Running, 1, nil), at(4, message.Queued, 1, nil),
				at(5, message.Running, 2, y), at(7, message.Done, 2, y), at(8, message.Done, 2, y),
			},
			"b": {at(2, message.Queued, 0, b), at(6, message.Cancelled, 0, b)},
		},
		runs: []run{{"a", 1, "x"}, {"a", 2, "y"}},
		ends: map[string][]message.Event{
			"a": {{Job: "a", Type: message.EventSuccess, Attempt: 2}}, "b": {{Job: "b", Type: message.EventInterrupted}},
		},
	}
}

// TestHistoryFindsFaults checks that a legal history passes and that each fault planted in it is named.
func TestHistoryFindsFaults(t *testing.T) {
	t.Parallel()
	if found := goodHistory().faults(); len(found) > 0 {
		t.Fatalf("a legal history is refused: %v", found)
	}
	for _, c := range []struct {
		name, want string
		plant      func(*history, []message.Record)
	}{
		{"done, then running", "no legal step", func(_ *history, a []message.Record) { a[5].State = message.Running }},
		{"done, then failed", "no legal step", func(_ *history, a []message.Record) { a[5].State = message.Failed }},
		{"done twice", "it ends twice", func(_ *history, a []message.Record) { a[5].Finished++ }},
		{"a receipt that is lost", "a receipt without a record", func(h *history, _ []message.Record) {
			delete(h.records, "b")
			delete(h.ends, "b")
		}},
		{"an end without a record", "an end without a record", func(h *history, _ []message.Record) {
			h.ends["c"] = h.ends["b"]
		}},
		{"no end", "told 0 times", func(h *history, _ []message.Record) { h.ends["b"] = nil }},
		{"two ends", "told 2 times", func(h *history, _ []message.Record) {
			h.ends["a"] = append(h.ends["a"], h.ends["a"]...)
		}},
		{"another end", "execution_error", func(h *history, _ []message.Record) {
			h.ends["a"] = append(h.ends["a"], message.Event{Type: message.EventError, Attempt: 1})
		}},
		{"an attempt that repeats", "want attempt 2", func(_ *history, a []message.Record) { a[3].Attempt = 1 }},
		{"an attempt that is left out", "want attempt 2", func(_ *history, a []message.Record) { a[3].Attempt = 3 }},
		{"an attempt that runs twice", "ran twice", func(h *history, _ []message.Record) { h.runs[1].attempt = 1 }},
		{"a run of another owner", "no record says so", func(h *history, _ []message.Record) { h.runs[1].owner = "x" }},
		{"another owner", "the owner changes", func(_ *history, a []message.Record) { a[4].Owner = "x" }},
		{"no owner", "nobody owns it", func(_ *history, a []message.Record) { a[3].Owner = "" }},
		{"no cause", "without a cause", func(_ *history, a []message.Record) { a[2].Causes = nil }},
		{"less often handed back", "handed back", func(_ *history, a []message.Record) { a[3].HandedBack = 0 }},
		{"back in time", "does not grow", func(_ *history, a []message.Record) { a[3].Rev = 4 }},
		{"another body", "another job", func(_ *history, a []message.Record) { a[3].Hash = "g" }},
		{"not ended", "has not ended", func(h *history, a []message.Record) { h.records["a"] = a[:4] }},
		{"runs at once", "begins as running", func(h *history, a []message.Record) { h.records["a"] = a[1:] }},
	} {
		h := goodHistory()
		c.plant(h, h.records["a"])
		if found := h.faults(); !strings.Contains(strings.Join(found, "\n"), c.want) {
			t.Errorf("%s: want %q, found %q", c.name, c.want, found)
		}
	}
}
