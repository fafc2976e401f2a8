// Package gguf reads checkpoint files in the GGUF format, versions 2 and 3 (specification: docs/gguf.md of the ggml
// project), in which quantized diffusion models and text encoders are published.
//
// A file is a header with two counts, key-value metadata, the tensor infos, and the data of every tensor at a multiple
// of the alignment. Open reads the header only; everything about it is
// checked before the first Entry is handed out, and no number in the file makes the reader allocate more than a small
// multiple of the file's length.
//
// Weights come in blocks: 32 or 256 elements of a row share their scales. Entry.Range widens them. Products are rounded
// before they are summed, as in the format's reference quantizers in Python, so results are equal on every processor.
// file.go is what callers use, header.go and value.go are the checks, type.go the table of element types, entry.go and
// range.go one tensor, blocks.go and superblocks.go the two generations of quantized layouts.
package gguf
