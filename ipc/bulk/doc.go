// Package bulk moves bytes that are too large for a message: shared memory passed by descriptor, and streams of
// chunks over NATS. It knows references and bytes, but not the messages that they belong to.
//
// Reading order: region, shm; blob.
package bulk
