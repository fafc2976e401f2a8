package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
)

// findLimit is how many of the newest jobs Find searches for a prefix of an ID.
const findLimit = 1000

// Find returns the ID of the job that a person means by short: short itself if there is such a job, otherwise the only
// ID that begins with it. If several do, it returns a *wire.InputError that lists them; if none does, no_such_job.
func Find(ctx context.Context, c Client, short string) (string, error) {
	_, err := Status(ctx, c, short)
	var none *fault.Error
	if !errors.As(err, &none) || none.Public() != fault.NoJob {
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
