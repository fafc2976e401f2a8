// Package bulk moves bytes that are too large for a message: shared memory passed by descriptor, streams of chunks
// over NATS, and the cache of tensors that are sent once and named by their hash later. It
// knows references and bytes, but not the messages that they belong to.
//
// Reading order: region, shm; blob; tensor_cache.
package bulk
