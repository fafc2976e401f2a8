// Package wire knows how bytes look between two processes and nothing of what they ask for: frames, the limits that are
// checked before anything is decoded, msgpack and JSON, tensors and references to bytes beside a message, error codes,
// and how one connects to a NATS server. It knows no job and no verb.
//
// Reading order: guard, decode, bind, encode, tensor, payload, errors; frame, descriptors, peek; nats, access; id,
// every.
package wire
