package goldenweights

import (
	"fmt"

	"patchbay/models/weights"
)

// OpenCLIP returns a text encoder of Hugging Face's names under those of OpenCLIP, which full checkpoints of SDXL have,
// behind a prefix: queries, keys and values are rows of one matrix, and the projection is transposed. Its layers are
// repeated until there are as many as asked for. It returns an error if the set lacks a tensor.
func OpenCLIP(set *weights.Set, prefix string, layers int) (map[string]weights.Stored, error) {
	var err error
	get := func(name string) weights.Stored {
		s, ok := set.Get(name)
		if !ok && err == nil {
			err = fmt.Errorf("golden encoder: no tensor %s", name)
		}
		return s
	}
	out := map[string]weights.Stored{
		prefix + "logit_scale":            weights.Floats([]float32{1}),
		prefix + "positional_embedding":   get("text_model.embeddings.position_embedding.weight"),
		prefix + "token_embedding.weight": get("text_model.embeddings.token_embedding.weight"),
	}
	width, own := set.Dim("text_projection.weight", 0), set.Count("text_model.encoder.layers")
	if own == 0 || width == 0 {
		return nil, fmt.Errorf("golden encoder: %d layers, a projection of %d rows", own, width)
	}
	projection, turned := get("text_projection.weight").F32(), make([]float32, width*width)
	for r := range width {
		for c := range width {
			turned[c*width+r] = projection[r*width+c]
		}
	}
	out[prefix+"text_projection"] = weights.Floats(turned, width, width)
	for _, end := range []string{"weight", "bias"} {
		out[prefix+"ln_final."+end] = get("text_model.final_layer_norm." + end)
		for i := range layers {
			open, own := fmt.Sprintf("%stransformer.resblocks.%d.", prefix, i),
				fmt.Sprintf("text_model.encoder.layers.%d.", i%own)
			for as, name := range map[string]string{
				"ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
				"attn.out_proj": "self_attn.out_proj",
			} {
				out[open+as+"."+end] = get(own + name + "." + end)
			}
			var stacked []float32
			for _, of := range []string{"q", "k", "v"} {
				stacked = append(stacked, get(own+"self_attn."+of+"_proj."+end).F32()...)
			}
			shape := []int{3 * width, width}
			if end == "bias" {
				shape = shape[:1]
			}
			out[open+"attn.in_proj_"+end] = weights.Floats(stacked, shape...)
		}
	}
	return out, err
}
