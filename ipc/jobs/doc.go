// Package jobs keeps jobs and sees them through to their end: records that change by compare-and-swap, an event log
// for each job from which every reply is read, a table in memory or on JetStream, the dispatcher that hands queued
// jobs to executors, and the files that jobs produce. It knows neither how a request arrived nor what an executor is.
//
// Reading order: executor, store, table, take, watch, local, cursor, lookup, cancel; dispatch, outputs, results,
// reconcile; jetstream, jetstream_record, jetstream_log, jetstream_space, jetstream_damage, resources; publisher.
package jobs
