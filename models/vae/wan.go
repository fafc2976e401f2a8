package vae

import (
	"fmt"
	"strings"

	"patchbay/models/weights"
)

// wanAnchor is a name found in the autoencoder of Wan 2.1, which Qwen-Image shares.
const wanAnchor = "decoder.middle.0.residual.0.gamma"

// fromWan returns the tensors of a Wan 2.1 autoencoder (arXiv:2503.20314, sec. 4.1) under the names used here. Its
// convolutions are causal in time and padded with zeros before the first frame, so only their last temporal tap
// contributes to a single frame. What remains is a two-dimensional network; its convolutions over time alone never run.
func fromWan(set *weights.Set) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	down, up := wanLevel(set, "encoder.downsamples."), wanLevel(set, "decoder.upsamples.")
	levels := (set.Count("decoder.upsamples") + 1) / up
	if set.Has(nestedAnchor) {
		if n := set.Dim("decoder.head.2.weight", 0); n != 3 && n != 4 {
			return nil, fmt.Errorf("decoder.head.2.weight writes %d channels, want 3 or 4: squares of pixels as in Wan 2.2 "+
				"are not supported", n)
		}
		levels = set.Count("decoder.upsamples")
		if err := addShortcuts(out, set, levels); err != nil {
			return nil, err
		}
	}
	for _, name := range set.Names() {
		if strings.Contains(name, ".time_conv.") {
			continue
		}
		t, _ := set.Get(name)
		var err error
		switch renamed := wanName(name, down, up, levels); {
		case strings.HasSuffix(name, ".gamma"):
			t.Shape = []int{t.Len()}
			out[renamed] = t
		case strings.Contains(name, ".to_qkv."):
			for i, part := range []string{"q", "k", "v"} {
				if out[strings.Replace(renamed, "to_qkv", part, 1)], err = t.Rows(i*t.Shape[0]/3, t.Shape[0]/3); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
		default:
			if out[renamed], err = t.LastTap(); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return weights.FromMap(out), nil
}

// wanLevel returns the number of entries per level in a list of residual blocks, each level ending with a resampling.
func wanLevel(set *weights.Set, list string) int {
	for i := range set.Count(strings.TrimSuffix(list, ".")) {
		if set.Has(fmt.Sprintf("%s%d.resample.1.weight", list, i)) {
			return i + 1
		}
	}
	return 1 << 10
}

// wanName maps one name. A level has down entries in the encoder's list and up in the decoder's.
func wanName(name string, down, up, levels int) string {
	var n, k int
	var rest string
	if got, _ := fmt.Sscanf(name, "encoder.downsamples.%d.downsamples.%d.%s", &n, &k, &rest); got == 3 {
		name = fmt.Sprintf("encoder.down.%d.block.%d.%s", n, k, rest)
	} else if got, _ := fmt.Sscanf(name, "decoder.upsamples.%d.upsamples.%d.%s", &n, &k, &rest); got == 3 {
		name = fmt.Sprintf("decoder.up.%d.block.%d.%s", levels-1-n, k, rest)
	} else if got, _ := fmt.Sscanf(name, "encoder.downsamples.%d.%s", &n, &rest); got == 2 {
		name = fmt.Sprintf("encoder.down.%d.block.%d.%s", n/down, n%down, rest)
	} else if got, _ := fmt.Sscanf(name, "decoder.upsamples.%d.%s", &n, &rest); got == 2 {
		name = fmt.Sprintf("decoder.up.%d.block.%d.%s", levels-1-n/up, n%up, rest)
	}
	if head, tail, ok := strings.Cut(name, ".resample.1."); ok {
		level, _, _ := strings.Cut(head, ".block.")
		sample := ".upsample.conv."
		if strings.HasPrefix(level, "encoder.") {
			sample = ".downsample.conv."
		}
		name = level + sample + tail
	}
	for _, r := range [][2]string{
		{"encoder.conv1.", "encoder.conv_in."},
		{"decoder.conv1.", "decoder.conv_in."},
		{".middle.0.", ".mid.block_1."},
		{".middle.1.proj.", ".mid.attn_1.proj_out."},
		{".middle.1.", ".mid.attn_1."},
		{".middle.2.", ".mid.block_2."},
		{".head.0.", ".norm_out."},
		{".head.2.", ".conv_out."},
		{".residual.0.", ".norm1."},
		{".residual.2.", ".conv1."},
		{".residual.3.", ".norm2."},
		{".residual.6.", ".conv2."},
		{".shortcut.", ".nin_shortcut."},
		{".gamma", ".weight"},
	} {
		name = strings.Replace(name, r[0], r[1], 1)
	}
	switch module, kind, _ := strings.Cut(name, "."); module { // of the moments, and before the decoder
	case "conv1":
		return "quant_conv." + kind
	case "conv2":
		return "post_quant_conv." + kind
	}
	return name
}
