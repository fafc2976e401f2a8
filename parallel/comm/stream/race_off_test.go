//go:build !race

package stream

// raced reports whether the race detector is on, which maps addresses of its own for every part of the heap.
const raced = false
