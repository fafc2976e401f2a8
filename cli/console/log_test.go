package console

import (
	"strings"
	"testing"
	"time"

	"patchbay/ipc/wire"
)

func TestDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "850ms": 850 * time.Millisecond, "12.3s": 12345 * time.Millisecond, "3m05s": 185 * time.Second,
		"2h13m": 2*time.Hour + 13*time.Minute + 50*time.Second, "4d2h": 98*time.Hour + time.Minute,
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d ns are %q, want %q", d, got, want)
		}
	}
}

// TestLogOfWorkers checks that a worker whose daemon is on a terminal logs lines and durations for people, and that
// others log JSON.
func TestLogOfWorkers(t *testing.T) {
	line := func() string {
		var b strings.Builder
		log := Logger(&b, "info")
		config := map[string]any{"drain": 30 * time.Second}
		log.Info().Dur("took", 649063*time.Microsecond).Str("job", "a").Interface("config", config).Msg("job done")
		return b.String()
	}
	if got := line(); !strings.HasPrefix(got, `{"level":"info","took":649.063`) {
		t.Errorf("without a terminal a line is %s", got)
	}
	t.Setenv(wire.TextLog, "1")
	got := line()
	if !strings.Contains(got, `INF job done config={"drain":"30.0s"} job=a took=649ms`) || strings.Contains(got, "\x1b") {
		t.Errorf("for people a line is %q", got)
	}
}
