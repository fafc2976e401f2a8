// Package engine is what everything above computes with: tensors, memory, and the list of operations our models need.
//
// Read tensor.go (Buf and Tensor: values, never owners), ops.go (Ops, the specification of every operation), weight.go
// (packed weights with adapters) and arena.go (memory in stack order). Implementations of Ops are in the folders below:
// ref is readable Go and the judge of all others, cpu is C with one variant per instruction set, deferred runs another
// Ops late to catch early reads, optest is the suite that every implementation passes. safetensors reads checkpoint
// files. The package knows no model, no step and no rank.
package engine
