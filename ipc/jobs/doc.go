// Package jobs keeps jobs and sees them done: records that change by compare-and-swap, an event log for each job that
// every reply is read from, a table in memory or on JetStream, the dispatcher that takes queued jobs to executors, and
// the files that they leave. It does not know how a request came nor what an executor is.
//
// Reading order: executor, store, table, take, watch, local, cursor, cancel; dispatch, outputs, trim, reconcile;
// jetstream, jetstream_record, jetstream_queue, jetstream_space, jetstream_damage, resources; publisher.
package jobs
