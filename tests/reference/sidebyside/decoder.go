package main

import (
	"fmt"

	"patchbay/engine"
	"patchbay/models/vae"
	"patchbay/models/weights"
)

// decoder is the whole decoder of FLUX's autoencoder (128 channels, levels 1 2 4 4, 16 latent channels) for a picture
// of size x size pixels.
func (b *bench) decoder(d engine.DType, size int) (func() error, error) {
	stored := map[string]weights.Stored{}
	put := func(name string, shape ...int) {
		s := weights.Stored{DType: d, Shape: shape}
		s.Data = make([]byte, s.Len()*d.Size())
		engine.Narrow(s.Data, small(s.Len(), 0.02), d)
		stored["decoder."+name] = s
	}
	layer := func(name string, n, k, side int) {
		put(name+".weight", n, k, side, side)
		put(name+".bias", n)
	}
	norm := func(name string, c int) {
		put(name+".weight", c)
		put(name+".bias", c)
	}
	resnet := func(name string, in, out int) {
		norm(name+".norm1", in)
		layer(name+".conv1", out, in, 3)
		norm(name+".norm2", out)
		layer(name+".conv2", out, out, 3)
		if in != out {
			layer(name+".nin_shortcut", out, in, 1)
		}
	}
	layer("conv_in", 512, 16, 3)
	resnet("mid.block_1", 512, 512)
	norm("mid.attn_1.norm", 512)
	for _, part := range []string{"q", "k", "v", "proj_out"} {
		layer("mid.attn_1."+part, 512, 512, 1)
	}
	resnet("mid.block_2", 512, 512)
	at := 512
	for level := 3; level >= 0; level-- {
		c := []int{128, 256, 512, 512}[level]
		for i := range 3 {
			resnet(fmt.Sprintf("up.%d.block.%d", level, i), at, c)
			at = c
		}
		if level > 0 {
			layer(fmt.Sprintf("up.%d.upsample.conv", level), c, c, 3)
		}
	}
	norm("norm_out", 128)
	layer("conv_out", 3, 128, 3)
	net, err := vae.Open(b.ops, weights.FromMap(stored), nil)
	if err != nil {
		return nil, err
	}
	b.close = net.Close
	y := size / 8
	buf, err := b.ops.Alloc(vae.DecodeBytes(net.Config, d, y, y))
	if err != nil {
		return nil, err
	}
	b.held = append(b.held, buf)
	latent := small(16*y*y, 1)
	return func() error {
		env := vae.Env{Ops: b.ops, Arena: engine.NewArena("vae", buf, vae.DecodeBytes(net.Config, d, y, y)), DType: d}
		_, err := net.Decode(env, latent, 1, y, y)
		return err
	}, nil
}
