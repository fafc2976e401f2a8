package register

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"patchbay/ipc/wire"
)

const (
	noteSuffix = ".has"
	// noteEvery is how often an unchanged note is rewritten: for machines that started since, and before it expires
	noteEvery = 40 * time.Second
	noteLook  = 10 * time.Second // between scans of the folders
	headRoom  = 4 << 10          // of a message around a note
)

// Beat writes the heartbeat of this machine and, if it has changed or noteEvery has passed, its note. The caller calls
// it every BeatEvery, from one goroutine.
func (r *Register) Beat(ctx context.Context) error {
	revision, err := r.bucket.Put(ctx, r.cfg.Name, r.heartbeat().text())
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // the bucket is gone: deleted, or the server is on another folder
		if _, err = r.create(ctx); err == nil {
			r.watch.Again()
			revision, err = r.bucket.Put(ctx, r.cfg.Name, r.heartbeat().text())
		}
	}
	if err == nil {
		r.began(revision)
		err = r.announce(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.steady, r.note = time.Time{}, nil // the server may come back without the note
	case r.steady.IsZero() || time.Since(r.beaten) > silence:
		r.steady = time.Now()
	}
	if err != nil {
		return err
	}
	r.beaten = time.Now()
	if time.Since(r.heard[r.cfg.Name]) > DeadAfter && time.Since(r.steady) > DeadAfter {
		r.watch.Again() // it does not deliver our own heartbeats
	}
	return nil
}

// announce writes the note of this machine, if that is due.
func (r *Register) announce(ctx context.Context) error {
	if r.cfg.Note == nil || time.Since(r.looked) < noteLook {
		return nil
	}
	m := r.cfg.Note()
	b, err := json.Marshal(m)
	if err == nil && len(b) > int(r.js.Conn().MaxPayload())-headRoom {
		r.cfg.Log.Warn().Int("bytes", len(b)).Msg("the list of model files is longer than a message; other daemons do " +
			"not know what is here")
		m.Folders, m.Files = nil, nil
		b, err = json.Marshal(m)
	}
	if err != nil {
		return err
	}
	r.looked = time.Now()
	if bytes.Equal(b, r.note) && time.Since(r.noted) < noteEvery {
		return nil
	}
	if _, err := r.bucket.Put(ctx, r.cfg.Name+noteSuffix, b); err != nil {
		r.looked = time.Time{}
		return err
	}
	r.note, r.noted = b, time.Now()
	return nil
}

// Announce calls Beat until ctx is done. If say is not nil, it is called with an error when the server becomes
// unreachable, and with nil when it is back.
func (r *Register) Announce(ctx context.Context, say func(error)) {
	var last error
	for {
		try, cancel := context.WithTimeout(ctx, BeatEvery)
		err := r.Beat(try)
		cancel()
		if (err == nil) != (last == nil) && ctx.Err() == nil && say != nil {
			say(err)
		}
		last = err
		if wire.Pause(ctx, BeatEvery) != nil {
			return
		}
	}
}
