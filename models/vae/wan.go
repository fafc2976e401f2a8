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
// contributes to a single frame. What remains is a two-dimensional network, whose convolutions over time alone never
// run. With video, the other taps and those convolutions are there too, under names of their own.
func fromWan(set *weights.Set, video bool) (*weights.Set, error) {
	out := map[string]weights.Stored{}
	down, up := wanLevel(set, "encoder.downsamples."), wanLevel(set, "decoder.upsamples.")
	levels := (set.Count("decoder.upsamples") + 1) / up
	if set.Has(nestedAnchor) {
		if n := set.Dim("decoder.head.2.weight", 0); n != 3 && n != 4 && n != 3*square {
			return nil, fmt.Errorf("decoder.head.2.weight writes %d channels, want 3, 4, or %d for squares of pixels", n,
				3*square)
		}
		levels = set.Count("decoder.upsamples")
		if err := addShortcuts(out, set, levels, video); err != nil {
			return nil, err
		}
	}
	for _, name := range set.Names() {
		t, _ := set.Get(name)
		if squares(set) {
			t = unfolded(name, t)
		}
		var err error
		switch renamed := wanName(name, down, up, levels); {
		case strings.Contains(name, ".time_conv."):
			if video {
				err = addTime(out, renamed, t)
			}
		case strings.HasSuffix(name, ".gamma"):
			t.Shape = []int{t.Len()}
			out[renamed] = t
		case strings.Contains(name, ".to_qkv."):
			for i, part := range []string{"q", "k", "v"} {
				if err == nil {
					out[strings.Replace(renamed, "to_qkv", part, 1)], err = t.Rows(i*t.Shape[0]/3, t.Shape[0]/3)
				}
			}
		default:
			out[renamed], err = taps(out, renamed, t, video)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return weights.FromMap(out), nil
}

// taps returns the tap of a convolution for the present frame and, with video, adds those for the ones before.
func taps(out map[string]weights.Stored, name string, t weights.Stored, video bool) (_ weights.Stored, err error) {
	module, weight := strings.CutSuffix(name, ".weight")
	for i := 0; i < pastTaps && video && weight && len(t.Shape) == 5 && t.Shape[2] == pastTaps+1 && err == nil; i++ {
		out[fmt.Sprintf("%s.past.%d.weight", module, i)], err = t.Tap(i)
	}
	if err != nil {
		return t, err
	}
	return t.LastTap()
}

// pastTaps is how many frames before the present one a convolution reads.
const pastTaps = 2

// addTime adds the taps of a convolution over time alone, which follows the spatial one of its level downwards and
// comes before it upwards.
func addTime(out map[string]weights.Stored, renamed string, t weights.Stored) (err error) {
	level, kind, _ := strings.Cut(renamed, ".block.")
	sample := ".upsample"
	if strings.HasPrefix(level, "encoder.") {
		sample = ".downsample"
	}
	if strings.HasSuffix(kind, ".bias") {
		out[fmt.Sprintf("%s%s.time.%d.bias", level, sample, pastTaps)] = t
		return nil
	}
	for i := 0; i <= pastTaps && err == nil; i++ {
		out[fmt.Sprintf("%s%s.time.%d.weight", level, sample, i)], err = t.Tap(i)
	}
	return err
}

// squares reports whether the positions of pictures are squares of 2 x 2 pixels, as in Wan 2.2.
func squares(set *weights.Set) bool { return set.Dim("decoder.head.2.weight", 0) == 3*square }

// unfolded returns a tensor whose rows or columns are the pixels of squares, ordered (channel, column, row) in files,
// with them in the order of eachPosition, (position, channel). Other tensors are returned unchanged.
func unfolded(name string, t weights.Stored) weights.Stored {
	const channels = 3
	var row int  // elements of one pixel's channel
	n := t.Len() // of all pixels
	switch {
	case strings.HasPrefix(name, "decoder.head.2."):
		row = t.Len() / (square * channels)
	case name == "encoder.conv1.weight":
		row = t.Len() / max(t.Shape[0]*t.Shape[1], 1)
		n = row * t.Shape[1]
	default:
		return t
	}
	v, out := t.F32(), make([]float32, t.Len())
	for at := range out {
		to := at % n / row
		p, c := to/channels, to%channels
		from := (c*2+p%2)*2 + p/2
		out[at] = v[at/n*n+from*row+at%row]
	}
	return weights.Floats(out, t.Shape...)
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
