package console

import (
	"io"
	"time"

	"github.com/rs/zerolog"
)

// Logger writes lines of the least level and above to stderr: for people on a terminal, JSON lines elsewhere.
func Logger(errs io.Writer, least string) zerolog.Logger {
	level, err := zerolog.ParseLevel(least)
	if err != nil {
		level = zerolog.InfoLevel
	}
	w := errs
	if IsTerminal(errs) {
		w = zerolog.ConsoleWriter{Out: errs, TimeFormat: time.TimeOnly}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}
