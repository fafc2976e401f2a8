// Package latent knows what the numbers of a latent mean: how many channels a family's autoencoder writes, how its
// values are scaled for the diffusion model, and roughly which color each channel is.
//
// Latents in a workflow are in the autoencoder's space ("VAE space"). ToModel brings them into the space that samplers
// and models work in, FromModel brings them back (ComfyUI: process_in, process_out of comfy/latent_formats.py). RGB
// turns a model-space latent into a small preview without an autoencoder. The formats are functions in formats.go,
// SD3's in its family's folder. A checkpoint's metadata may override scale and shift, which the demo checkpoint does.
//
// Facts that have caused bugs elsewhere: ComfyUI divides by the scale, it does not multiply by the reciprocal. An
// all-zero latent means "empty" and is not shifted, which the sampling node decides, not this package. Preview factors
// apply to model space, not to VAE space.
package latent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
)

// Format describes the latents of one family. The zero Format is not valid.
type Format struct {
	Name     string
	Channels int     // C
	Scale    float32 // model = (vae - Shift) * Scale
	Shift    float32
	// Mean and Std are per channel, for families that use them with Scale 1 and Shift 0: model = (vae - Mean) / Std.
	Mean, Std []float32
	// Preview has a row of red, green and blue factors per channel of model-space latents (unpacked ones, see Packed);
	// nil: no preview is known.
	Preview [][3]float32
	Bias    [3]float32 // added to the product
	// Packed is the side of the square of preview pixels that a latent pixel packs into its channels, ordered
	// (channel, row, column). 0 means 1.
	Packed int
	// Cell is the number of image pixels along the side of a latent pixel; 0: 8 for each preview pixel.
	Cell int
	// Frames: latents have an axis of frames, as those of videos, and so have their masks.
	Frames bool
}

// ToModel converts v [..., C, plane] from VAE space to model space in place: (v - Shift) * Scale, or by channel.
func (f Format) ToModel(v []float32, plane int) {
	if f.Std == nil {
		for i := range v {
			v[i] = (v[i] - f.Shift) * f.Scale
		}
		return
	}
	for i := range v {
		c := i / plane % f.Channels
		v[i] = (v[i] - f.Mean[c]) / f.Std[c]
	}
}

// FromModel converts v [..., C, plane] from model space to VAE space in place: v / Scale + Shift, or by channel.
func (f Format) FromModel(v []float32, plane int) {
	if f.Std == nil {
		for i := range v {
			v[i] = v[i]/f.Scale + f.Shift
		}
		return
	}
	for i := range v {
		c := i / plane % f.Channels
		v[i] = v[i]*f.Std[c] + f.Mean[c]
	}
}

// WithConfig returns f with scale and shift replaced by those of a checkpoint's metadata "config", a JSON object. An
// autoencoder writes scale_factor, shift_factor and z_channels, a diffusion model latent_scale_factor,
// latent_shift_factor and latent_channels. Absent members, an empty config and null change nothing. Errors name the
// member and the allowed values.
func (f Format) WithConfig(config []byte) (Format, error) {
	if len(config) == 0 {
		return f, nil
	}
	var c struct {
		Scale         *float64 `json:"scale_factor"`
		Shift         *float64 `json:"shift_factor"`
		Channels      *int     `json:"z_channels"`
		ModelScale    *float64 `json:"latent_scale_factor"`
		ModelShift    *float64 `json:"latent_shift_factor"`
		ModelChannels *int     `json:"latent_channels"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return f, fmt.Errorf("latent config: %w", err)
	}
	channels, scale := "z_channels", "scale_factor"
	if c.ModelChannels != nil {
		c.Channels, channels = c.ModelChannels, "latent_channels"
	}
	if c.ModelScale != nil {
		c.Scale, scale = c.ModelScale, "latent_scale_factor"
	}
	if c.Channels != nil && *c.Channels != f.Channels {
		return f, fmt.Errorf("latent config: %s is %d, latents of %s have %d", channels, *c.Channels, f.Name,
			f.Channels)
	}
	if c.Scale != nil {
		if !(*c.Scale > 0) || math.IsInf(*c.Scale, 0) {
			return f, fmt.Errorf("latent config: %s is %g, must be a positive number", scale, *c.Scale)
		}
		f.Scale = float32(*c.Scale)
	}
	if c.Shift = cmp.Or(c.ModelShift, c.Shift); c.Shift != nil {
		f.Shift = float32(*c.Shift) // JSON knows no NaN and no infinity
	}
	return f, nil
}

// RGB returns a preview of a model-space latent [C, Y, X]: [k*Y, k*X, 3] bytes in 0..255, k being Side, truncated as
// ComfyUI does (latent_preview.py, Latent2RGB): 255 * clamp((x0 F + bias + 1) / 2, 0, 1). It returns nil when the
// format has no preview factors and panics if latent does not hold C*y*x values.
func (f Format) RGB(latent []float32, y, x int) []byte {
	if f.Preview == nil {
		return nil
	}
	n, k := y*x, f.Side()
	if len(latent) != f.Channels*n {
		panic(fmt.Sprintf("latent preview: %d values, a latent [%d, %d, %d] has %d", len(latent), f.Channels,
			y, x, f.Channels*n))
	}
	out := make([]byte, 0, 3*k*k*n)
	for i := range k * k * n {
		row, column := i/(k*x), i%(k*x)
		at := (row%k*k+column%k)*n + row/k*x + column/k
		rgb := f.Bias
		for c, factors := range f.Preview {
			v := latent[c*k*k*n+at]
			for j := range rgb {
				rgb[j] += v * factors[j]
			}
		}
		for _, v := range rgb {
			out = append(out, byte(255*min(max((v+1)/2, 0), 1)))
		}
	}
	return out
}

// Pixels returns the number of image pixels along the side of a latent pixel.
func (f Format) Pixels() int { return cmp.Or(f.Cell, 8*f.Side()) }

// Side returns the number of preview pixels along the side of a latent pixel.
func (f Format) Side() int { return max(1, f.Packed) }
