package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// takeover is how long after a daemon was silent another one may still begin with its jobs.
const takeover = 30 * time.Second

// runs notes that a run begins, and returns a function that notes its end: that its daemon stopped it, or that nobody
// did, although it listened.
func (o *oracle) runs(n *node, id, body string, attempt int) (ends func(stopped, hears bool)) {
	o.w.note("run of %s begins at %s, attempt %d", id, n.name, attempt)
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	if j.ended != nil {
		o.w.violated("a run of %s begins after its end", id)
	}
	if j.cancelled != "" && !o.w.lossy() {
		o.w.violated("a run of %s begins after a client was told that it is to stop (%s)", id, j.cancelled)
	}
	if at := j.attempts[attempt]; at != "" && !o.w.lossy() {
		o.w.violated("attempt %d of %s runs at %s, and ran at %s", attempt, id, n.name, at)
	}
	for other, m := range j.running {
		if since := time.Since(m.lastSilent()); since > takeover && (m == n || m.name != n.name) && !o.w.lossy() {
			o.w.violated("attempt %d of %s begins at %s while attempt %d runs at %s, which was last silent %s ago", attempt, id,
				n.name, other, m.name, since)
		}
	}
	if since, ending := n.ending(); ending && min(since, time.Since(o.w.lastTrouble())) > taking {
		o.w.violated("%s begins at %s, which was told to end %s ago", id, n.name, since)
	}
	if !slices.Contains(bodiesOf(id), body) {
		o.w.violated("%s runs with the body %q, which nobody has submitted", id, body)
	}
	j.attempts[attempt], j.running[attempt], j.ran[body] = n.name, n, true
	if attempt == 1 && j.revived == 0 && !o.w.lossy() {
		o.inOrder(n, id)
	}
	if o.leftAlone(j) {
		o.w.violated("attempt %d of %s begins %s after the client had left to which it is tied", attempt, id,
			time.Since(j.left))
	}
	began := time.Now()
	return func(stopped, hears bool) {
		o.w.note("run of %s ends at %s, attempt %d", id, n.name, attempt)
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(j.running, attempt)
		if stopped {
			o.stops(n, id, began)
		}
		if j.cancelled != "" && !o.w.lossy() && time.Since(j.told) > stopping && n.lastSilent().Before(j.told) {
			o.w.violated("attempt %d of %s runs %s after a client was told that it is to stop", attempt, id, time.Since(j.told))
		}
		if hears && o.leftCancelled(j) {
			o.w.violated("attempt %d of %s comes to its end %s after a client was told that it is to stop", attempt, id,
				time.Since(j.told))
		}
		if hears && o.leftAlone(j) {
			o.w.violated("attempt %d of %s runs %s after the client had left to which it is tied", attempt, id,
				time.Since(j.left))
		}
	}
}

// running reports whether a job runs now.
func (o *oracle) running(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.job(id).running) > 0
}

// keeps notes that an evaluation of a job is in the log of a daemon.
func (o *oracle) keeps(n *node, id, body string, i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.job(id).kept[fmt.Sprint(n.dir, body, i)] = true
}

// computes judges that an evaluation is computed. The last attempt at a job computes none again that its daemon has
// kept; one that hung while the next one came to the end does.
func (o *oracle) computes(n *node, id, body string, attempt, i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j := o.job(id)
	if last := j.attempts[attempt+1] == ""; last && j.kept[fmt.Sprint(n.dir, body, i)] && j.revived == 0 && !o.w.lossy() {
		o.w.violated("evaluation %d of %s is computed again at %s, which has kept it", i, id, n.name)
	}
}

// resumes judges that an evaluation was kept by an earlier attempt, and whether it is what this one would compute.
func (o *oracle) resumes(n *node, id string, i int, same bool) {
	o.w.mu.Lock()
	o.w.counts["resumed"]++
	o.w.mu.Unlock()
	if !same {
		o.w.violated("evaluation %d of %s was kept at %s, and is another", i, id, n.name)
	}
}

// judgeLogs checks that daemons keep no evaluations of jobs that have ended.
func (o *oracle) judgeLogs(nodes []*node) {
	for _, n := range nodes {
		n.evaluations("").Sweep(n.up().Pending)
		left, err := os.ReadDir(n.folder("resume"))
		if len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.w.violated("%s keeps evaluations of jobs that have ended: %v, %v", n.name, left, err)
		}
	}
}

// stops judges that a daemon has stopped a run. While it drains, it has it run to its end, unless the job is to stop or
// others may have taken it. The caller must hold o.mu.
func (o *oracle) stops(n *node, id string, began time.Time) {
	j := o.job(id)
	since, ending := n.ending()
	if _, tied := o.w.plan.has(numberOf(id), ties); !ending || since >= o.w.plan.drain || j.asked || tied ||
		j.revived > 0 || o.w.lossy() || !n.lastSilent().Before(began) {
		return
	}
	o.w.violated("the run of %s is stopped %s after %s was told to end, which drains for %s", id, since, n.name,
		o.w.plan.drain)
}

// stopping is how long a run may go on that is to stop, at a daemon that others hear: a worker that does not stop it is
// killed 15 s later. leaving is how long a job may go on that is tied to a client that has left, since daemons ask
// every 2 s whether it is there, while nothing was wrong with them for settled.
const (
	stopping = silence + 15*time.Second + 3*time.Second
	leaving  = 4 * time.Second
	settled  = 30 * time.Second
)

// leftCancelled reports whether a run should have been stopped by now because a client was told so. The caller must
// hold o.mu.
func (o *oracle) leftCancelled(j *seen) bool {
	return j.cancelled != "" && time.Since(j.told) > time.Second && j.revived == 0 && o.w.calm(j.told.Add(-settled/3))
}

// leftAlone reports whether a job should have been cancelled by now because its client has left. The caller must hold
// o.mu.
func (o *oracle) leftAlone(j *seen) bool {
	return !j.left.IsZero() && time.Since(j.left) > leaving && j.revived == 0 && o.w.calm(j.tied.Add(-settled))
}
