package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/ipc/message"
)

// This file judges the order in which a daemon begins with jobs, and how many jobs a unique key has.

// passes counts the jobs that a daemon has begun while another one waited there.
type passes struct {
	all, lessUrgent int
	byClient        map[string]int // of its priority
	ahead           int            // jobs of its client, of its priority, when the daemon was first seen to have it
}

// every is more than the jobs of a run.
const every = 1000

// urgency orders jobs: those put in front come before every priority.
func (o *oracle) urgency(job int) int {
	rank, known := o.ranks[job]
	if !known {
		rank = slices.IndexFunc([]string{first, urgent, lowly}, func(kind string) bool {
			_, is := o.w.plan.has(job, kind)
			return is
		})
		rank = map[int]int{-1: 2, 0: 0, 1: 1, 2: 3}[rank]
		o.ranks[job] = rank
	}
	return rank
}

// Jobs that a daemon may begin with although another one waits that comes first: they were taken when that one came,
// or it could not be taken for a moment. And one of eight jobs is of the lowest priority, at both daemons and all of
// their workers at the same time.
const (
	overlap = 6
	ageing  = 8 / 4
)

// inOrder notes that a daemon begins with a job for the first time, and judges whether it was its turn. The caller must
// hold o.mu.
func (o *oracle) inOrder(n *node, id string) {
	job := numberOf(id)
	if at := o.notBefore(job); time.Now().Before(at) && !o.w.has(ahead) {
		o.w.violated("%s begins %s before its not_before", id, time.Until(at))
	}
	if long := n.pausedFor(); long > 0 {
		o.w.violated("%s begins at %s, which has been paused for %s and more", id, n.name, long)
	}
	table := n.up()
	if table == nil || o.job(id).moved {
		return
	}
	now, urgent, from := time.Now().UnixMilli(), o.urgency(job), o.w.plan.from(job)
	waiting, _ := table.List(message.Queued, every)
	for _, rec := range waiting {
		j := o.job(rec.Job)
		if rec.Job == id || rec.Attempt > 0 || j.revived > 0 || j.moved || rec.NotBefore > now {
			continue
		}
		p := j.passed[table]
		if p == nil { // it may have come only now
			j.passed[table] = &passes{byClient: map[string]int{}, ahead: o.before(rec)}
			continue
		}
		p.all++
		switch its := o.urgency(numberOf(rec.Job)); {
		case urgent > its:
			if p.lessUrgent++; p.lessUrgent > overlap+p.all/ageing {
				o.w.violated("%d of %d jobs begin at %s that are less urgent than %s, which waits", p.lessUrgent, p.all, n.name,
					rec.Job)
			}
		case urgent == its && !rec.Front && from != rec.From:
			if p.byClient[from]++; p.byClient[from] > overlap+p.ahead {
				o.w.violated("%d jobs of %s begin at %s while %s of %s waits, which has %d jobs before it",
					p.byClient[from], from, n.name, rec.Job, rec.From, p.ahead)
			}
		}
	}
}

// before returns how many jobs of the client and the urgency of a job that waits were handed in by now.
func (o *oracle) before(rec message.Record) (n int) {
	job := numberOf(rec.Job)
	for id := range o.jobs {
		if other := numberOf(id); o.w.plan.from(other) == rec.From && o.urgency(other) == o.urgency(job) {
			n++
		}
	}
	return n
}

// notBefore returns when a job may begin at the earliest.
func (o *oracle) notBefore(job int) time.Time {
	s, is := o.w.plan.has(job, later)
	if !is {
		return time.Time{}
	}
	submit, _ := o.w.plan.has(job, submits)
	return o.w.began.Add(submit.at + s.lasts).Truncate(time.Millisecond)
}

// judgeUnique checks that a job with a unique key was made only when the last one had ended, and its window too, unless
// it has no result.
func (o *oracle) judgeUnique(byKey map[string][]message.Record) {
	if o.w.lossy() || o.w.has(ahead) {
		return
	}
	for key, recs := range byKey {
		slices.SortFunc(recs, func(a, b message.Record) int { return int(a.Created - b.Created) })
		number, err := strconv.Atoi(strings.TrimPrefix(key, "key"))
		if err != nil {
			panic(err)
		}
		window := o.w.plan.window(number).Milliseconds()
		for i := 1; i < len(recs); i++ {
			was, rec := recs[i-1], recs[i]
			if was.Finished > rec.Created || was.State == message.Done && rec.Created-was.Created < window {
				o.w.violated("%s and %s have the unique key %s: the first is %s from %d to %d, the second is of %d, window %d",
					was.Job, rec.Job, key, was.State, was.Created, was.Finished, rec.Created, window)
			}
		}
	}
}
