package serve

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestInsist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		insist(context.Background(), func() error {
			if calls++; calls < 20 { // longer than one request to the store lasts
				return errors.New("the store is away")
			}
			return nil
		})
		if calls != 20 {
			t.Errorf("asked %d times, want until it succeeds, at the 20th", calls)
		}
		ctx, stop := context.WithCancel(context.Background())
		calls = 0
		insist(ctx, func() error {
			calls++
			stop()
			return errors.New("the store is away")
		})
		if calls != 1 {
			t.Errorf("asked %d times, want once, because the service ended", calls)
		}
	})
}
