// Package engine defines what the packages above compute with: tensors, memory, and the operations that the models
// need.
//
// Read tensor.go (Buf and Tensor: values that never own memory), ops.go (Ops, the specification of every operation),
// weight.go (packed weights with adapters) and arena.go (stack-ordered allocation). The folders below implement Ops:
// ref is readable Go and the reference for all others, cpu is C with one variant per instruction set, cuda is for
// NVIDIA GPUs, and deferred runs another Ops late to catch premature reads. optest is the suite that every
// implementation passes. safetensors, gguf and torchfile read checkpoint files. The package knows no models, steps or
// ranks.
package engine
