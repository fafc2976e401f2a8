package ipc

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

// blobRoot begins the subjects on which daemons offer and take payloads: patchbay.v1.blob.<daemon>.get, .put.<transfer> and .ack.<transfer>.
const blobRoot = subjectRoot + "blob."

// The names of the durable side on NATS. A number at the end of a stream is its generation: some settings of a stream cannot be changed later.
const (
	queueStream   = "PATCHBAY_JOBS_1"
	eventStream   = "PATCHBAY_EVENTS_1"
	deadStream    = "PATCHBAY_DEAD_1"
	jobBucket     = "patchbay-jobs"
	requestBucket = "patchbay-requests"
	daemonBucket  = "patchbay-nodes"
	hintSubject   = subjectRoot + "hint.any"
	queueRoot     = subjectRoot + "q."
	deadRoot      = subjectRoot + "dead."
)
