// Package message defines what clients and daemons exchange: the requests and replies of every verb, the record and the
// events of a job, and the names on NATS. Jobs are plain values here: storing, running and sending them is left to
// other packages.
//
// Reading order: message, verbs, body, editor, about, exec, sample, sample_decode, refs; record, event, file, failure;
// stats, subject.
package message
