// Package client sends requests to a daemon or a worker, over NATS or over frames: the verbs as calls, replies in
// order, events and files put together. It knows the messages, not what handles them.
//
// Reading order: client, nats, lasting, bulk; calls, find, sample, stats; collector.
package client
