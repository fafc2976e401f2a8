package ipc

// The names on NATS. They are part of the protocol and never change within v1.
const (
	serviceName = "patchbay"
	queueGroup  = "patchbay"
	subjectRoot = "patchbay.v1."
)

// headerDaemon names the daemon that sent an event.
const headerDaemon = "Patchbay-Daemon"

// DefaultNATS is where a daemon listens and a client looks when nothing else is said.
const DefaultNATS = "nats://127.0.0.1:4222"

// EventSubject returns the subject of one type of event of a job; ">" as type matches all.
func EventSubject(job, kind string) string { return subjectRoot + "events." + job + "." + kind }

// PreviewSubject returns the subject of a job's previews.
func PreviewSubject(job string) string { return subjectRoot + "preview." + job }

// VerbSubject returns the subject of a verb; job is the job of status, cancel and retry.
func VerbSubject(verb, job string) string {
	if verb == VerbStatus || verb == VerbCancel || verb == VerbRetry {
		return subjectRoot + verb + "." + job
	}
	return subjectRoot + verb
}
