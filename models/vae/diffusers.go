package vae

import (
	"fmt"
	"strings"
)

// original maps a tensor name of diffusers (AutoencoderKL of diffusers 0.39) to that of the original checkpoints.
// Unknown names are kept, to be reported as unexpected. Diffusers counts decoder levels from the deepest, the original
// from full resolution.
func original(name string, levels int) string {
	for i := range levels {
		name = strings.Replace(name, fmt.Sprintf("decoder.up_blocks.%d.", i), fmt.Sprintf("decoder.up.%d.", levels-1-i), 1)
	}
	for _, r := range [][2]string{
		{"encoder.down_blocks.", "encoder.down."},
		{".mid_block.resnets.0.", ".mid.block_1."},
		{".mid_block.resnets.1.", ".mid.block_2."},
		{".mid_block.attentions.0.group_norm.", ".mid.attn_1.norm."},
		{".mid_block.attentions.0.to_q.", ".mid.attn_1.q."},
		{".mid_block.attentions.0.to_k.", ".mid.attn_1.k."},
		{".mid_block.attentions.0.to_v.", ".mid.attn_1.v."},
		{".mid_block.attentions.0.to_out.0.", ".mid.attn_1.proj_out."},
		{".mid_block.attentions.0.query.", ".mid.attn_1.q."},
		{".mid_block.attentions.0.key.", ".mid.attn_1.k."},
		{".mid_block.attentions.0.value.", ".mid.attn_1.v."},
		{".mid_block.attentions.0.proj_attn.", ".mid.attn_1.proj_out."},
		{".resnets.", ".block."},
		{".conv_shortcut.", ".nin_shortcut."},
		{".upsamplers.0.", ".upsample."},
		{".downsamplers.0.", ".downsample."},
		{".conv_norm_out.", ".norm_out."},
	} {
		name = strings.Replace(name, r[0], r[1], 1)
	}
	return name
}
