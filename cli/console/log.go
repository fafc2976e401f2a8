package console

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"patchbay/ipc/wire"
)

// Logger writes lines of the least level and above to stderr: for people on a terminal, also from a worker whose
// daemon is on one, JSON lines elsewhere.
func Logger(errs io.Writer, least string) zerolog.Logger {
	level, err := zerolog.ParseLevel(least)
	if err != nil {
		level = zerolog.InfoLevel
	}
	w := errs
	if IsTerminal(errs) || os.Getenv(wire.TextLog) != "" {
		w = zerolog.ConsoleWriter{
			Out: errs, TimeFormat: time.TimeOnly, NoColor: !IsTerminal(errs), FormatPrepare: readable,
		}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// readable writes the durations of a line for people; zerolog has them in milliseconds.
func readable(line map[string]any) error {
	for _, key := range []string{"took", "drain", "restart_in"} {
		if n, ok := line[key].(json.Number); ok {
			ms, err := n.Float64()
			if err != nil {
				return err
			}
			line[key] = Duration(time.Duration(ms * float64(time.Millisecond)))
		}
	}
	return nil
}

// Duration writes a duration for people, in two units at most: 850ms, 12.3s, 3m05s, 2h13m, 4d2h.
func Duration(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
