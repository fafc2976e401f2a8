package console

import (
	"cmp"
	"fmt"
	"time"

	"patchbay/ipc/message"
)

// Age returns how long ago a Unix time in milliseconds was, for people.
func Age(ms int64) string { return Duration(time.Since(time.UnixMilli(ms))) }

// Took returns how long a job has run, for people, or "" if it has not started.
func Took(r message.Record) string {
	switch {
	case r.Started == 0:
		return ""
	case r.Finished == 0:
		return Age(r.Started)
	}
	return Duration(time.Duration(r.Finished-r.Started) * time.Millisecond)
}

// FailureOf returns why a job failed, "" if it did not.
func FailureOf(r message.Record) string {
	if r.Error == nil {
		return ""
	}
	return r.Error.Line()
}

// OrDash returns text, or what a table shows in place of an empty one.
func OrDash(text string) string { return cmp.Or(text, "-") }

// Size formats a number of bytes for people, in powers of 1024.
func Size(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.4g TiB", n)
}
