// Package client sends requests to a daemon or a worker, over NATS or over frames: the verbs as calls, replies in
// order, events and files put together. It knows what is said and not who answers.
//
// Reading order: client, nats, lasting, bulk; calls, find, sample, stats; collector.
package client
