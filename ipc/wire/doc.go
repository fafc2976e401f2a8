// Package wire defines how bytes look between two processes: frames, the limits that are checked before anything is
// decoded, msgpack and JSON, tensors and references to bytes beside a message, error codes, and connections to NATS
// servers. It knows nothing of what the bytes ask for: no job and no verb.
//
// Reading order: guard, decode, bind, encode, tensor, payload, errors; frame, descriptors, peek; nats, access, trust;
// id, every.
package wire
