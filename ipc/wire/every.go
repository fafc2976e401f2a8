package wire

import (
	"context"
	"iter"
	"time"
)

// Every gives 1, 2, 3 and so on, one after each period, until ctx ends.
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

// Pause waits for a time; an error says that ctx has ended before.
func Pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
