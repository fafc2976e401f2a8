package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// findLimit bounds the jobs among which Find looks for the beginning of an id, the newest ones.
const findLimit = 1000

// Find returns the id of the job that a person means by short: that id itself, or the only one that begins with it. One
// that several begin with is an *InputError that lists them, one that none does the daemon's no_such_job.
func Find(ctx context.Context, c Client, short string) (string, error) {
	_, err := Status(ctx, c, short)
	var none *wire.Error
	if !errors.As(err, &none) || none.Code != wire.ErrNoJob {
		return short, err
	}
	list, _, other := List(ctx, c, "", findLimit)
	if other != nil {
		return "", other
	}
	var match []message.Record
	for _, r := range list {
		if strings.HasPrefix(r.Job, short) {
			match = append(match, r)
		}
	}
	switch len(match) {
	case 0:
		return "", err
	case 1:
		return match[0].Job, nil
	}
	var lines strings.Builder
	for _, r := range match {
		fmt.Fprintf(&lines, "\n  %s %s", r.Job, r.State)
	}
	return "", &wire.InputError{Err: fmt.Errorf("%d jobs begin with %s:%s", len(match), short, &lines)}
}
