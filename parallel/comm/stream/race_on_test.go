//go:build race

package stream

// raced tells whether the race detector runs, which maps addresses of its own for every part of the heap.
const raced = true
