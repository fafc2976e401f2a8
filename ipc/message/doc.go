// Package message is what clients and daemons say to each other: the requests and replies of every verb, the record and
// the events of a job, the names on NATS. It knows jobs as values only; who keeps, runs or sends them is not known
// here.
//
// Reading order: message, verbs, body, editor, about, exec, sample, sample_decode, refs; record, event, file, failure;
// stats, subject.
package message
