// Package bulk moves bytes that are too large for a message: shared memory behind descriptors, streams of chunks over
// NATS, the NATS object store, and the cache of tensors that come once and are named by their hash later. It knows
// references and bytes, and no message that they belong to.
//
// Reading order: region, shm; blob, object; tensor_cache.
package bulk
