package message

import "patchbay/ipc/wire"

// EventSubject returns the subject of one kind of event of a job; kind ">" matches all.
func EventSubject(job, kind string) string { return wire.SubjectRoot + "events." + job + "." + kind }

// PreviewSubject returns the subject of a job's previews.
func PreviewSubject(job string) string { return wire.SubjectRoot + "preview." + job }

// BlobRoot is the prefix of the subjects on which daemons offer and receive payloads: patchbay.v1.blob.<daemon>.get,
// .put.<transfer> and .ack.<transfer>.
const BlobRoot = wire.SubjectRoot + "blob."

// The names on NATS of the streams, buckets and subjects that daemons share. The number at the end of a stream name is
// its generation: some settings of a stream cannot be changed later.
const (
	EventStream   = "PATCHBAY_EVENTS_1"
	DeadStream    = "PATCHBAY_DEAD_1"
	JobBucket     = "patchbay-jobs"
	RequestBucket = "patchbay-requests"
	MachineBucket = "patchbay-nodes"
	DeadRoot      = wire.SubjectRoot + "dead."
)

// Streams returns the names of all JetStream streams of Patchbay, also of those behind buckets, that of the records
// first.
func Streams() []string {
	return []string{
		"KV_" + JobBucket, "KV_" + RequestBucket, "KV_" + MachineBucket, EventStream, DeadStream,
	}
}
