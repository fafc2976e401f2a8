package wire

import (
	"context"
	"iter"
	"time"
)

// Every yields 1, 2, 3 and so on, one after each period, until ctx ends.
func Every(ctx context.Context, period time.Duration) iter.Seq[int] {
	return func(yield func(int) bool) {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !yield(n) {
				return
			}
		}
	}
}

// Pause waits for the given time. It returns the error of ctx if ctx ends before that.
func Pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
