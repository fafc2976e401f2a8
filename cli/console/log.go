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

// Logger returns a logger for lines of level least and above. They are readable text if errs is a terminal, or if this
// is a worker whose daemon's stderr is one, and JSON otherwise.
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

// readable formats the durations of a log line for people: zerolog has them in milliseconds, a configuration in
// nanoseconds.
func readable(line map[string]any) error {
	durations(line, time.Millisecond, "took", "drain", "restart_in")
	if config, ok := line["config"].(map[string]any); ok {
		durations(config, time.Nanosecond, "drain", "keep_for", "keep_results")
	}
	return nil
}

func durations(of map[string]any, unit time.Duration, keys ...string) {
	for _, key := range keys {
		if n, ok := of[key].(json.Number); ok {
			if v, err := n.Float64(); err == nil {
				of[key] = Duration(time.Duration(v * float64(unit)))
			}
		}
	}
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
