package console

import (
	"cmp"
	"fmt"
	"time"

	"patchbay/ipc/message"
)

// Age is how long ago a time in milliseconds of Unix time was, for people.
func Age(ms int64) string { return Duration(time.Since(time.UnixMilli(ms))) }

// Took is how long a job has run, "" if it has not begun.
func Took(r message.Record) string {
	switch {
	case r.Started == 0:
		return ""
	case r.Finished == 0:
		return Age(r.Started)
	}
	return Duration(time.Duration(r.Finished-r.Started) * time.Millisecond)
}

// FailureOf is why a job has failed, "" if it has not.
func FailureOf(r message.Record) string {
	if r.Error == nil {
		return ""
	}
	return r.Error.Error()
}

// OrDash is what a table shows in place of an empty text.
func OrDash(text string) string { return cmp.Or(text, "-") }

// Size is bytes for people, in powers of 1024.
func Size(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.4g TiB", n)
}
