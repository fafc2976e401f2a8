package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/message"
)

// named returns the jobs that have begun a log in the store, and whether they are done.
func (l *JetStream) named(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, kind := range []string{message.EventQueued, message.EventSuccess} {
		events, err := l.events.Info(ctx, jetstream.WithSubjectFilter(message.EventSubject("*", kind)))
		if err != nil {
			return nil, fmt.Errorf("list events: %w", err)
		}
		before, after, _ := strings.Cut(message.EventSubject("*", kind), "*")
		for subject := range events.State.Subjects {
			id := strings.TrimSuffix(strings.TrimPrefix(subject, before), after)
			if _, began := out[id]; began || kind == message.EventQueued {
				out[id] = kind == message.EventSuccess
			}
		}
	}
	return out, nil
}

// missing says which of the named jobs have no record, and what the server itself reports: it drops what it cannot read
// without a word.
func (l *JetStream) missing(ctx context.Context, named map[string]bool, j *Table) {
	lost, done := map[string]bool{}, 0
	for id, ended := range named {
		if j.knows(id) {
			continue
		}
		lost[id] = true
		if ended {
			done++
		}
	}
	hurt, err := l.damaged(ctx)
	if err != nil {
		l.cfg.Log.Warn().Err(err).Msg("the server was not asked what it has lost")
	}
	l.mu.Lock()
	l.lost, l.hurt = lost, hurt
	l.mu.Unlock()
	if len(hurt) > 0 {
		l.cfg.Log.Error().Strs("streams", hurt).Msg("the NATS server has lost messages: files of the store are damaged")
	}
	if len(lost) == 0 {
		return
	}
	ids := slices.Sorted(maps.Keys(lost))
	l.cfg.Log.Error().Int("jobs", len(ids)).Int("done", done).Strs("first", ids[:min(len(ids), 20)]).Msg(
		"records of jobs are lost: the files of the store are damaged; submit again those that were not done")
}

// manyGaps is how many numbers of removed messages are too many to be sent along with what a stream has lost.
const manyGaps = 100_000

// damaged asks the server which streams it has lost messages of, and says how much of each.
func (l *JetStream) damaged(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	var out []string
	for _, name := range []string{
		"KV_" + message.JobBucket, "KV_" + message.RequestBucket, "KV_" + message.DaemonBucket,
		message.QueueStream, message.EventStream, message.DeadStream,
	} {
		stream, err := l.js.Stream(ctx, name)
		if err != nil {
			return out, fmt.Errorf("ask for the state of %s: %w", name, err)
		}
		if stream.CachedInfo().State.NumDeleted > manyGaps {
			continue
		}
		m, err := l.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+name, []byte(`{"deleted_details":true}`))
		if err != nil {
			return out, fmt.Errorf("ask for the state of %s: %w", name, err)
		}
		var info struct {
			State struct {
				Lost *struct {
					Bytes uint64 `json:"bytes"`
				} `json:"lost"`
			} `json:"state"`
			Error *jetstream.APIError `json:"error"`
		}
		if err = json.Unmarshal(m.Data, &info); err == nil && info.Error != nil {
			err = errors.New(info.Error.Description)
		}
		if err != nil {
			return out, fmt.Errorf("state of %s: %w", name, err)
		}
		if lost := info.State.Lost; lost != nil {
			out = append(out, fmt.Sprintf("%s: %d bytes", name, lost.Bytes))
		}
	}
	return out, nil
}
