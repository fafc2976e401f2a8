//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

// kernel is an index into kernels.
type kernel int

// The kernels with one variant for each type of activations: bf16 comes first, f32 follows (see typed).
const (
	kPointwise kernel = iota * 2
	kNorm
	kHeads
	kHeadsWide
	kQuantise
	kDequantise
	kGather
	kMean
	kGroupPart
	kGroupApply
	kLinearAny
	kLinearFew
	kAttendAny
	kAttendWide
	kMerge
	kSum
	kRound
	kLinear8
	kFewBlocks
	kPointwiseRows
	kNormRows
	kNormAdded
	kNormPair
	kHeadsRows8
	kHeadsRows16
	kGroupPartRows
	kGroupApplyRows
	kLast
)

// The kernels with a single variant.
const (
	kCopy kernel = iota + kLast
	kCopyNarrow
	kCopyWiden
	kPack
	kWiden
	kGroupSum
	kGroupFactors
	kSumF64
	kSoftmax
	kIm2col
	kLinear256
	kLinear128
	kLinear64
	kLinearF16
	kLinear8Wide
	kAttend32
	kAttend64
	kAttend80
	kAttend96
	kAttend128
	kAttendMasked64
	kAttendMasked128
	kernelCount
)

// stages is the number of parts of 32 columns (64 bytes per row) that the tiles of the tensor cores keep in shared
// memory.
const stages = 4

// flashShared returns the bytes of shared memory of attend.cu: 128 queries and two buffers of 64 keys and 64 values, in
// rows of row elements.
func flashShared(row int) int { return (128 + 4*64) * row * 2 }

// anyShared returns the bytes of shared memory of attend_any.cu for heads of d elements: 8 warps, each with qw queries
// and their 32 probabilities, and a tile of 32 rows.
func anyShared(d, qw int) int { return (8*qw*(d+32) + 32*(d+1)) * 4 }

// roundShared is the shared memory of pb_round in bytes: a part of a row and a number per warp.
const roundShared = C.PB_MAX_GROUP*4 + threads/32*4

// source is the name of a kernel in the PTX and how many bytes of shared memory a launch may ask for.
type source struct {
	name   string
	shared int
}

// kernels describes all kernels, indexed by kernel.
var kernels = sources()

func sources() (all [kernelCount]source) {
	for k, s := range map[kernel]source{ // one for each type
		kPointwise:  {"pb_pointwise", 0},
		kNorm:       {"pb_norm", 0},
		kHeads:      {"pb_heads", 0},
		kHeadsWide:  {"pb_heads_wide", 0},
		kQuantise:   {"pb_quantise", 0},
		kDequantise: {"pb_dequantise", 0},
		kGather:     {"pb_gather", 0},
		kMean:       {"pb_mean", 0},
		kGroupPart:  {"pb_group_part", 0},
		kGroupApply: {"pb_group_apply", 0},
		kLinearAny:  {"pb_linear_any", 0},
		kLinearFew:  {"pb_linear_few", 0},
		kAttendAny:  {"pb_attend_any", anyShared(128, 4)},
		kAttendWide: {"pb_attend_wide", anyShared(512, 2)},
		kMerge:      {"pb_merge", 0},
		kSum:        {"pb_sum", 0},
		kRound:      {"pb_round", roundShared},
		kLinear8:    {"pb_linear_i8_64", stages * (64 + 64) * 64},
		kFewBlocks:  {"pb_linear_few_blocks", 0},
		// of rows in 16-byte pieces, see C.struct_pb_rows
		kPointwiseRows:  {"pb_pointwise_rows", 0},
		kNormRows:       {"pb_norm_rows", 0},
		kNormAdded:      {"pb_norm_added", 0},
		kNormPair:       {"pb_norm_pair", 0},
		kHeadsRows8:     {"pb_heads_rows8", 0},
		kHeadsRows16:    {"pb_heads_rows16", 0},
		kGroupPartRows:  {"pb_group_part_rows", 0},
		kGroupApplyRows: {"pb_group_apply_rows", 0},
	} {
		all[k], all[k+1] = source{s.name + "_bf16", s.shared}, source{s.name + "_f32", s.shared}
	}
	for k, s := range map[kernel]source{
		kLinear8Wide:     {"pb_linear_i8_256", stages * (128 + 256) * 64},
		kSumF64:          {"pb_sum_f64", 0},
		kCopy:            {"pb_copy_strided", 0},
		kCopyNarrow:      {"pb_copy_narrow", 0},
		kCopyWiden:       {"pb_copy_widen", 0},
		kPack:            {"pb_pack_rows", 0},
		kWiden:           {"pb_widen_blocks", 0},
		kGroupSum:        {"pb_group_sum", 0},
		kGroupFactors:    {"pb_group_factors", 0},
		kSoftmax:         {"pb_softmax_rows", 0},
		kIm2col:          {"pb_im2col_pixels", 0},
		kLinear256:       {"pb_linear_mma_256", stages * (128 + 256) * 64},
		kLinear128:       {"pb_linear_mma_128", stages * (128 + 128) * 64},
		kLinear64:        {"pb_linear_mma_64", stages * (64 + 64) * 64},
		kLinearF16:       {"pb_linear_mma_f16", stages * (128 + 128) * 64},
		kAttend32:        {"pb_attend_32", flashShared(40)},
		kAttend64:        {"pb_attend_64", flashShared(64)},
		kAttend80:        {"pb_attend_80", flashShared(88)},
		kAttend96:        {"pb_attend_96", flashShared(104)},
		kAttend128:       {"pb_attend_128", flashShared(128)},
		kAttendMasked64:  {"pb_attend_masked_64", flashShared(64)},
		kAttendMasked128: {"pb_attend_masked_128", flashShared(128)},
	} {
		all[k] = s
	}
	return all
}
