// Package fault says what went wrong with a workflow or a job in ComfyUI's words: a code, a message, and the node and
// input at fault. It knows no workflow and no file; the packages above it make the failures.
package fault
