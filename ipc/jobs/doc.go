// Package jobs keeps jobs and sees them done: records that change by compare-and-swap, an event log for each job that
// every reply is read from, a table in memory or on JetStream, the dispatcher that takes queued jobs to executors, and
// the files that they leave. It does not know how a request came nor what an executor is.
//
// Reading order: executor, table, local, cursor, cancel; dispatch, outputs, trim, recover; jetstream, jetstream_record,
// jetstream_queue, durable, reconcile, resources; publisher.
package jobs
