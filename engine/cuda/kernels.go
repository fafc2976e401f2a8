//go:build cgo

package cuda

import "embed"

// ptx holds the compiled kernels, one file a source; `make cuda-kernels` makes them and a test compares the hash of their sources.
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
	kLast
)

// The kernels of one type.
const (
	kCopy kernel = iota + kLast
	kCopyNarrow
	kCopyWiden
	kPack
	kGroupSum
	kIm2col
	kLinear256
	kLinear128
	kLinear64
	kLinearF16
	kernelCount
)

// stages is how many parts of 32 columns (64 bytes a row) the tiles of the tensor cores keep in shared memory.
const stages = 4

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
	kCopy:           {name: "pb_copy_strided"},
	kCopyNarrow:     {name: "pb_copy_narrow"},
	kCopyWiden:      {name: "pb_copy_widen"},
	kPack:           {name: "pb_pack_rows"},
	kGroupSum:       {name: "pb_group_sum"},
	kIm2col:         {name: "pb_im2col_pixels"},
	kLinear256:      {name: "pb_linear_mma_256", shared: stages * (128 + 256) * 64},
	kLinear128:      {name: "pb_linear_mma_128", shared: stages * (128 + 128) * 64},
	kLinear64:       {name: "pb_linear_mma_64", shared: stages * (64 + 64) * 64},
	kLinearF16:      {name: "pb_linear_mma_f16", shared: stages * (128 + 128) * 64},
}
