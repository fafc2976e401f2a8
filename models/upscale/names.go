package upscale

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"patchbay/models/weights"
)

// ErrUnknown is returned by Infer for files that hold no known upscale model.
var ErrUnknown = errors.New("holds no upscale model")

// Config is what the names and shapes in a file tell about its network.
type Config struct {
	Compact bool // SRVGGNetCompact, else RRDBNet
	Scale   int  // factor by which the picture's sides grow
	Width   int  // E, channels between layers
	Growth  int  // G, channels that a layer of a dense block adds
	Blocks  int  // RRDB blocks, or convolutions between the first and the last
	Ups     int  // doublings after the blocks
	// Unshuffle is the side of the pixel squares that become channels before an RRDBNet, Shuffle that of the squares
	// that channels become after an SRVGGNetCompact; 1: none.
	Unshuffle, Shuffle int
}

// up returns by how much the network's last layer is larger than its first.
func (c Config) up() int { return 1 << c.Ups }

// Names of the first convolution.
const (
	rrdbFirst    = "conv_first.weight"
	compactFirst = "first.weight"
)

// unsupportedNetworks lists names that only files of one unsupported network have, by which spandrel recognizes them
// too. Order matters: a network comes before those that it is derived from.
func unsupportedNetworks() []struct{ name, network string } {
	return []struct{ name, network string }{
		{"body.0.rdb1.conv1x1.weight", "ESRGAN+"},
		{"layers.0.residual_group.blocks.0.conv_block.cab.0.weight", "HAT"},
		{"layers.0.residual_group.td", "ATD"},
		{"layers.0.residual_group.blocks.0.attn.logit_scale", "Swin2SR"},
		{"layers.0.residual_group.blocks.0.norm1.weight", "SwinIR"},
		{"layers.0.swin1.norm1.weight", "DRCT"},
		{"layers.0.blocks.0.gamma", "RGT"},
		{"layers.0.blocks.0.ffn.sg.norm.weight", "DAT"},
		{"residual_layer.0.residual_layer.0.layer.0.fn.0.weight", "OmniSR"},
		{"block_1.c1_r.sk.weight", "SPAN"},
		{"feats.0.safm.aggr.weight", "SAFMN"},
		{"feats.0.weight", "PLKSR"},
		{"gblocks.0.weight", "MoSR"},
		{"groups.0.blocks.0.attn.bias", "FDAT"},
		{"body.0.body.0.body.0.weight", "RCAN"},
		{"unet1.conv1.conv.0.weight", "RealCUGAN"},
		{"m_head.0.weight", "SCUNet"},
		{"m_down1.0.res.0.weight", "DRUNet or FBCNN"},
		{"middle_blks.0.conv1.weight", "NAFNet"},
		{"stylegan_decoder.style_mlp.1.weight", "GFPGAN"},
	}
}

var (
	oldBlock    = regexp.MustCompile(`^model\.1\.sub\.(\d+)\.RDB(\d)\.(conv\d(?:x1)?)(?:\.0)?\.`)
	trunkBlock  = regexp.MustCompile(`^RRDB_trunk\.(\d+)\.RDB(\d)\.`)
	oldLayer    = regexp.MustCompile(`^model\.(\d+)\.(weight|bias)$`)
	oldBody     = regexp.MustCompile(`^model\.1\.sub\.\d+\.(weight|bias)$`)
	doubling    = regexp.MustCompile(`^(?:upconv|conv_up)(\d+)\.(weight|bias)$`)
	compactPart = regexp.MustCompile(`^body\.(\d+)\.(weight|bias)$`)
)

// renamed returns the tensors under the names used by the structs. Files spell RRDBNet like Real-ESRGAN, BSRGAN or
// ESRGAN, with or without the prefix "module." or "netG.".
func renamed(set *weights.Set) *weights.Set {
	for _, prefix := range []string{"module.", "netG."} {
		if sub := set.Prefix(prefix); len(sub.Names()) == len(set.Names()) {
			set = sub
		}
	}
	if set.Has("body.0.weight") && set.Has("body.1.weight") {
		last := set.Count("body") - 1
		return set.Mapped(func(name string) string { return compactName(name, last) })
	}
	last := 0
	for _, name := range set.Names() {
		if m := oldLayer.FindStringSubmatch(name); m != nil {
			last = max(last, number(m[1]))
		}
	}
	return set.Mapped(func(name string) string { return rrdbName(name, last) })
}

// compactName maps a tensor name of SRVGGNetCompact, whose body alternates convolutions and slopes.
func compactName(name string, last int) string {
	m := compactPart.FindStringSubmatch(name)
	if m == nil {
		return name
	}
	i := number(m[1])
	switch slope := i%2 == 1 && m[2] == "weight"; {
	case i == last:
		return "last." + m[2]
	case i == 0:
		return "first." + m[2]
	case i == 1 && slope:
		return "first_slope"
	case slope:
		return fmt.Sprintf("layer.%d.slope", i/2-1)
	case i%2 == 0:
		return fmt.Sprintf("layer.%d.conv.%s", i/2-1, m[2])
	}
	return name
}

// rrdbName maps a tensor name of RRDBNet to Real-ESRGAN's spelling, with a list of doublings. In ESRGAN's spelling last
// is the number of the last layer: doublings are layers 3, 6 ..., followed by two convolutions.
func rrdbName(name string, last int) string {
	name = trunkBlock.ReplaceAllString(name, "body.$1.rdb$2.")
	name = oldBlock.ReplaceAllString(name, "body.$1.rdb$2.$3.")
	name = oldBody.ReplaceAllString(name, "conv_body.$1")
	if m := doubling.FindStringSubmatch(name); m != nil {
		return fmt.Sprintf("up.%d.conv.%s", number(m[1])-1, m[2])
	}
	if m := oldLayer.FindStringSubmatch(name); m != nil {
		switch i := number(m[1]); {
		case i == 0:
			return "conv_first." + m[2]
		case i == last:
			return "conv_last." + m[2]
		case i == last-2:
			return "conv_hr." + m[2]
		case i%3 == 0:
			return fmt.Sprintf("up.%d.conv.%s", i/3-1, m[2])
		}
	}
	for from, to := range map[string]string{"trunk_conv.": "conv_body.", "HRconv.": "conv_hr."} {
		if rest, ok := strings.CutPrefix(name, from); ok {
			return to + rest
		}
	}
	return name
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // matched by a pattern; a number too large becomes 0 and is reported as unexpected
	return n
}

// Infer derives the configuration from the names and shapes in a file. The error for other networks says what they look
// like.
func Infer(set *weights.Set) (Config, error) {
	set = renamed(set)
	for _, o := range unsupportedNetworks() {
		if set.Has(o.name) {
			return Config{}, fmt.Errorf("looks like %s, which is not supported (supported: ESRGAN, Real-ESRGAN and BSRGAN "+
				"with RRDBNet, Real-ESRGAN's SRVGGNetCompact)", o.network)
		}
	}
	switch {
	case set.Has(compactFirst) && set.Has("last.weight"):
		return inferCompact(set)
	case set.Has(rrdbFirst) && set.Has("body.0.rdb1.conv1.weight") && set.Has("conv_last.weight"):
		return inferRRDB(set)
	}
	return Config{}, ErrUnknown
}

func inferRRDB(set *weights.Set) (Config, error) {
	c := Config{
		Width: set.Dim(rrdbFirst, 0), Growth: set.Dim("body.0.rdb1.conv1.weight", 0), Blocks: set.Count("body"),
		Ups: set.Count("up"), Shuffle: 1, Unshuffle: 1,
	}
	in, out := set.Dim(rrdbFirst, 1), set.Dim("conv_last.weight", 0)
	switch {
	case out != Channels:
		return c, fmt.Errorf("gives pictures of %d channels, %d are supported", out, Channels)
	case in == 4*Channels:
		c.Unshuffle = 2
	case in == 16*Channels:
		c.Unshuffle = 4
	case in != Channels:
		return c, fmt.Errorf("reads pictures of %d channels, %d are supported", in, Channels)
	}
	if c.Ups > 4 || c.up() < c.Unshuffle {
		return c, fmt.Errorf("doubles pictures %d times and halves them before to 1/%d, which is not supported", c.Ups,
			c.Unshuffle)
	}
	c.Scale = c.up() / c.Unshuffle
	return c, nil
}

func inferCompact(set *weights.Set) (Config, error) {
	c := Config{Compact: true, Width: set.Dim(compactFirst, 0), Blocks: set.Count("layer"), Unshuffle: 1}
	in, out := set.Dim(compactFirst, 1), set.Dim("last.weight", 0)
	c.Shuffle = int(math.Round(math.Sqrt(float64(out) / Channels)))
	if in != Channels || c.Shuffle < 1 || c.Shuffle > 16 || Channels*c.Shuffle*c.Shuffle != out {
		return c, fmt.Errorf("reads pictures of %d channels and gives %d values a pixel, %d channels are supported", in, out,
			Channels)
	}
	c.Scale = c.Shuffle
	return c, nil
}
