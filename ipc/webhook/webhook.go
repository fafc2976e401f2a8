// Package webhook reports the ends of jobs to the URLs that their requests name, signed as Standard Webhooks says. What
// has been acknowledged is in the record of the job, so that every end is reported at least once whatever dies between.
//
// Reading order: webhook (which ends are due, and when), target (which URLs are allowed), post (one request).
package webhook

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/jobs"
	"patchbay/ipc/message"
)

// Config says where reports may go and how often they are tried.
type Config struct {
	Secret []byte // with which reports are signed
	// Hosts may be reported to, HOST or HOST:PORT; empty: every host with a public address.
	Hosts []string
	Log   zerolog.Logger

	First, Longest time.Duration // pause before the second try, and the longest one. 0: 1 s, 10 min
	For            time.Duration // after the end of a job there are no more tries. 0: 24 h
	Now            func() time.Time
}

// Sender reports the ends of the jobs of one table.
type Sender struct {
	cfg  Config
	http *http.Client
	poke chan struct{}
}

// most bounds the reports that are on their way at the same time.
const most = 16

// look is how often the table is searched although no event asks for it, such as after a record was lost and restored.
const look = 30 * time.Second

// New returns a sender.
func New(cfg Config) *Sender {
	cfg.First, cfg.Longest = cmp.Or(cfg.First, time.Second), cmp.Or(cfg.Longest, 10*time.Minute)
	cfg.For = cmp.Or(cfg.For, 24*time.Hour)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Sender{cfg: cfg, poke: make(chan struct{}, 1)}
	s.http = s.client()
	return s
}

// Event notes that a job may have ended. It does not block, and does not call the table.
func (s *Sender) Event(ev message.Event) {
	if message.Terminal(ev.Type) {
		s.wake()
	}
}

func (s *Sender) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// end is one end of a job: a job that is retried has another one.
type end struct {
	job string
	seq uint64
}

// tries is how far the report of an end has come.
type tries struct {
	made int
	next time.Time
	busy bool
}

// Run reports ends until ctx does.
func (s *Sender) Run(ctx context.Context, table *jobs.Table) {
	type result struct {
		end
		err error
	}
	results := make(chan result)
	states, busy := map[end]*tries{}, 0
	defer func() {
		for ; busy > 0; busy-- {
			<-results
		}
	}()
	for {
		pause := look
		now := s.cfg.Now()
		due := map[end]bool{}
		for _, j := range table.Select(func(r *message.Record, ended bool) bool { return ended && s.pending(r, now) }) {
			if !table.Mine(j.Job) {
				continue
			}
			e := end{j.Job, j.EndSeq}
			due[e] = true
			t := states[e]
			if t == nil {
				t = &tries{}
				states[e] = t
			}
			switch wait := t.next.Sub(now); {
			case t.busy:
			case wait > 0:
				pause = min(pause, wait)
			case busy < most:
				t.busy = true
				busy++
				go func() {
					err := s.post(ctx, &j.Record)
					if err == nil {
						err = table.Reported(ctx, e.job, e.seq)
					}
					results <- result{e, err}
				}()
			}
		}
		for e, t := range states { // reported, forgotten, or too old
			if !due[e] && !t.busy {
				delete(states, e)
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.poke:
		case <-timer.C:
		case r := <-results:
			busy--
			t := states[r.end]
			t.busy = false
			t.made++
			t.next = s.cfg.Now().Add(min(s.cfg.First<<min(t.made-1, 20), s.cfg.Longest))
			if r.err != nil && ctx.Err() == nil {
				s.cfg.Log.Warn().Err(r.err).Str("job", r.job).Int("tries", t.made).Time("again", t.next).
					Msg("the end of a job was not reported")
			}
		}
		timer.Stop()
	}
}

// pending reports whether the end of a job is still to be reported.
func (s *Sender) pending(r *message.Record, now time.Time) bool {
	return r.Webhook != nil && r.Webhook.Reported != r.EndSeq &&
		now.Before(time.UnixMilli(r.Finished).Add(s.cfg.For))
}
