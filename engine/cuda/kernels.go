//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import "embed"

// ptx holds the compiled kernels, one file a source; `make cuda-kernels` makes them and a test compares the hash of
// their sources.
//
//go:embed kernels/*.ptx
var ptx embed.FS

// kernel is an index into kernels.
type kernel int

// The kernels. Where there is one for each type of activations, bf16 comes first and f32 follows (see typed).
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
	kLast
)

// The kernels of one type.
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

// stages is how many parts of 32 columns (64 bytes a row) the tiles of the tensor cores keep in shared memory.
const stages = 4

// flashShared is the shared memory of attend.cu for heads padded to d: 128 queries and two times 64 keys and values, in
// rows of row elements.
func flashShared(row int) int { return (128 + 4*64) * row * 2 }

// anyShared is the shared memory of attend_any.cu: 8 warps of qw queries and their 32 probabilities, and a tile of 32
// rows.
func anyShared(d, qw int) int { return (8*qw*(d+32) + 32*(d+1)) * 4 }

// roundShared is the shared memory of pb_round: a part of a row and a number a warp.
const roundShared = C.PB_MAX_GROUP*4 + threads/32*4

// kernels names them and says how much shared memory a launch may ask for.
var kernels = [kernelCount]struct {
	name   string
	shared int
}{
	kPointwise:      {name: "pb_pointwise_bf16"},
	kPointwise + 1:  {name: "pb_pointwise_f32"},
	kNorm:           {name: "pb_norm_bf16"},
	kNorm + 1:       {name: "pb_norm_f32"},
	kHeads:          {name: "pb_heads_bf16"},
	kHeads + 1:      {name: "pb_heads_f32"},
	kHeadsWide:      {name: "pb_heads_wide_bf16"},
	kHeadsWide + 1:  {name: "pb_heads_wide_f32"},
	kQuantise:       {name: "pb_quantise_bf16"},
	kQuantise + 1:   {name: "pb_quantise_f32"},
	kDequantise:     {name: "pb_dequantise_bf16"},
	kDequantise + 1: {name: "pb_dequantise_f32"},
	kGather:         {name: "pb_gather_bf16"},
	kGather + 1:     {name: "pb_gather_f32"},
	kMean:           {name: "pb_mean_bf16"},
	kMean + 1:       {name: "pb_mean_f32"},
	kGroupPart:      {name: "pb_group_part_bf16"},
	kGroupPart + 1:  {name: "pb_group_part_f32"},
	kGroupApply:     {name: "pb_group_apply_bf16"},
	kGroupApply + 1: {name: "pb_group_apply_f32"},
	kLinearAny:      {name: "pb_linear_any_bf16"},
	kLinearAny + 1:  {name: "pb_linear_any_f32"},
	kLinearFew:      {name: "pb_linear_few_bf16"},
	kLinearFew + 1:  {name: "pb_linear_few_f32"},
	kAttendAny:      {name: "pb_attend_any_bf16", shared: anyShared(128, 4)},
	kAttendAny + 1:  {name: "pb_attend_any_f32", shared: anyShared(128, 4)},
	kAttendWide:     {name: "pb_attend_wide_bf16", shared: anyShared(512, 2)},
	kAttendWide + 1: {name: "pb_attend_wide_f32", shared: anyShared(512, 2)},
	kMerge:          {name: "pb_merge_bf16"},
	kMerge + 1:      {name: "pb_merge_f32"},
	kSum:            {name: "pb_sum_bf16"},
	kSum + 1:        {name: "pb_sum_f32"},
	kRound:          {name: "pb_round_bf16", shared: roundShared},
	kRound + 1:      {name: "pb_round_f32", shared: roundShared},
	kLinear8:        {name: "pb_linear_i8_64_bf16", shared: stages * (64 + 64) * 64},
	kLinear8 + 1:    {name: "pb_linear_i8_64_f32", shared: stages * (64 + 64) * 64},
	kFewBlocks:      {name: "pb_linear_few_blocks_bf16"},
	kFewBlocks + 1:  {name: "pb_linear_few_blocks_f32"},
	kLinear8Wide:    {name: "pb_linear_i8_256", shared: stages * (128 + 256) * 64},
	kSumF64:         {name: "pb_sum_f64"},
	kCopy:           {name: "pb_copy_strided"},
	kCopyNarrow:     {name: "pb_copy_narrow"},
	kCopyWiden:      {name: "pb_copy_widen"},
	kPack:           {name: "pb_pack_rows"},
	kWiden:          {name: "pb_widen_blocks"},
	kGroupSum:       {name: "pb_group_sum"},
	kGroupFactors:   {name: "pb_group_factors"},
	kSoftmax:        {name: "pb_softmax_rows"},
	kIm2col:         {name: "pb_im2col_pixels"},
	kLinear256:      {name: "pb_linear_mma_256", shared: stages * (128 + 256) * 64},
	kLinear128:      {name: "pb_linear_mma_128", shared: stages * (128 + 128) * 64},
	kLinear64:       {name: "pb_linear_mma_64", shared: stages * (64 + 64) * 64},
	kLinearF16:      {name: "pb_linear_mma_f16", shared: stages * (128 + 128) * 64},
	kAttend32:       {name: "pb_attend_32", shared: flashShared(40)},
	kAttend64:       {name: "pb_attend_64", shared: flashShared(64)},
	kAttend80:       {name: "pb_attend_80", shared: flashShared(88)},
	kAttend96:       {name: "pb_attend_96", shared: flashShared(104)},
	kAttend128:      {name: "pb_attend_128", shared: flashShared(128)},

	kAttendMasked64:  {name: "pb_attend_masked_64", shared: flashShared(64)},
	kAttendMasked128: {name: "pb_attend_masked_128", shared: flashShared(128)},
}
