// Package safetensors reads and writes checkpoint files in the safetensors format.
//
// A file is an 8-byte little-endian header length, a JSON object that names every tensor with dtype, shape and byte
// range, and the data (format: https://huggingface.co/docs/safetensors). Open reads the header, and a loader reads only
// the data that it uses; everything about the header is checked before the first Entry is handed out, so entries can be
// trusted. file.go is what callers use, header.go the checks, entry.go one tensor,
// write.go the writer.
package safetensors
