package sdxl

import (
	"fmt"
	"strings"

	"patchbay/models/weights"
)

// names are those of files with that many levels. Adapters of diffusers' attention processors have names of their own.
func names(levels int) weights.Names {
	list := diffusers(levels)
	for _, a := range list {
		if at, what, ok := strings.Cut(a.File, ".to_"); ok {
			list = append(list, weights.Alias{File: at + ".processor.to_" + strings.TrimSuffix(what, ".0"), Own: a.Own})
		}
	}
	return weights.Names{Diffusers: list, Prefixes: []string{"unet."}, Flat: []string{"lora_unet_"}}
}

// diffusers are the names of diffusers' UNet2DConditionModel with that many levels of two blocks.
func diffusers(levels int) []weights.Alias {
	const perLevel = 3 // of one way: two residual blocks and one that changes the size, or three residual blocks
	list := weights.MLP2("time_embedding", "time_embed.0", "time_embed.2")
	list = append(list, weights.MLP2("add_embedding", "label_emb.0.0", "label_emb.0.2")...)
	list = append(list, weights.Alias{File: "conv_in", Own: "input_blocks.0.0"},
		weights.Alias{File: "conv_norm_out", Own: "out.0"}, weights.Alias{File: "conv_out", Own: "out.2"})
	res := func(file, own string) {
		for _, n := range [][2]string{
			{"norm1", "in_layers.0"},
			{"conv1", "in_layers.2"},
			{"time_emb_proj", "emb_layers.1"},
			{"norm2", "out_layers.0"},
			{"conv2", "out_layers.3"},
			{"conv_shortcut", "skip_connection"},
		} {
			list = append(list, weights.Alias{File: file + "." + n[0], Own: own + "." + n[1]})
		}
	}
	spatial := func(file, own string) {
		for _, n := range []string{"norm", "proj_in", "proj_out"} {
			list = append(list, weights.Alias{File: file + "." + n, Own: own + "." + n})
		}
		for _, n := range []string{
			"norm1", "norm2", "norm3", "attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_k",
			"attn2.to_v", "attn2.to_out.0", "ff.net.0.proj", "ff.net.2",
		} {
			n = ".transformer_blocks.*." + n
			list = append(list, weights.Alias{File: file + n, Own: own + n})
		}
	}
	for level := range levels {
		for i := range perLevel {
			in, out := fmt.Sprintf("input_blocks.%d.", perLevel*level+i+1), fmt.Sprintf("output_blocks.%d.", perLevel*level+i)
			down, up := fmt.Sprintf("down_blocks.%d.", level), fmt.Sprintf("up_blocks.%d.", level)
			if at := fmt.Sprint(i); i < perLevel-1 {
				res(down+"resnets."+at, in+"0")
				spatial(down+"attentions."+at, in+"1")
			} else if level < levels-1 {
				double := out + "2.conv"
				if levels > 3 && level == 0 { // has no transformers
					double = out + "1.conv"
				}
				list = append(list, weights.Alias{File: down + "downsamplers.0.conv", Own: in + "0.op"},
					weights.Alias{File: up + "upsamplers.0.conv", Own: double})
			}
			res(up+"resnets."+fmt.Sprint(i), out+"0")
			spatial(up+"attentions."+fmt.Sprint(i), out+"1")
		}
	}
	res("mid_block.resnets.0", "middle_block.0")
	res("mid_block.resnets.1", "middle_block.2")
	spatial("mid_block.attentions.0", "middle_block.1")
	return list
}
