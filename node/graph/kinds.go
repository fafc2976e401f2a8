package graph

import (
	"fmt"

	"patchbay/node/fault"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// sizeOf estimates the host memory of a value that travels along links.
func sizeOf(v any) int64 {
	const small = 256
	switch x := v.(type) {
	case *picture.Image:
		return small + 4*int64(len(x.Data))
	case *picture.Mask:
		return small + 4*int64(len(x.Data))
	case *value.Latent:
		n := small + 4*int64(len(x.Samples.Data))
		if x.NoiseMask != nil {
			n += 4 * int64(len(x.NoiseMask.Data))
		}
		return n
	case value.Conditioning:
		n := int64(small)
		for i := range x {
			n += small + x[i].Bytes()
		}
		return n
	case value.Seen:
		return small + 4*int64(len(x.Data)+len(x.Deep))
	case *value.Model:
		n := small + 4*int64(len(x.Prefix.Data))
		for _, p := range x.Patches {
			n += p.Bytes()
		}
		return n
	case value.Sigmas:
		return small + 4*int64(len(x))
	case string:
		return small + int64(len(x))
	}
	return small
}

// typeOf names the ComfyUI type of a value that travels along links.
func typeOf(v any) string {
	switch v.(type) {
	case *value.Model:
		return "MODEL"
	case *value.Clip:
		return "CLIP"
	case *value.ControlNet:
		return "CONTROL_NET"
	case *value.ModelPatch:
		return "MODEL_PATCH"
	case *value.VAE:
		return "VAE"
	case value.Conditioning:
		return "CONDITIONING"
	case *value.Latent:
		return "LATENT"
	case *picture.Image:
		return "IMAGE"
	case *picture.Mask:
		return "MASK"
	case value.Sigmas:
		return "SIGMAS"
	case value.Noise:
		return "NOISE"
	case value.Sampler:
		return "SAMPLER"
	case *value.Guider:
		return "GUIDER"
	case *value.Eyes:
		return "CLIP_VISION"
	case value.Seen:
		return "CLIP_VISION_OUTPUT"
	case *value.Style:
		return "STYLE_MODEL"
	case *value.Upscaler:
		return "UPSCALE_MODEL"
	case int64, uint64:
		return "INT"
	case float64:
		return "FLOAT"
	case string:
		return "STRING"
	case bool:
		return "BOOLEAN"
	}
	return "unknown"
}

// checkType refuses values whose type is not the one that an input declares.
func checkType(in *Input, v any) error {
	got := typeOf(v)
	if in.Type == "COMBO" || in.Type == typeBranch || in.drawn() || typesFit(got, in.Type) ||
		in.Type == "FLOAT" && got == "INT" {
		return nil
	}
	return fault.Bad(in.Name, "takes %s, got %s", in.Type, got)
}

// Describe renders a value that travels along links in words, short.
func Describe(v any) string {
	switch x := v.(type) {
	case *picture.Image:
		return fmt.Sprintf("IMAGE [%d, %d, %d, %d]", x.B, x.Y, x.X, x.C)
	case *picture.Mask:
		return fmt.Sprintf("MASK [%d, %d, %d]", x.B, x.Y, x.X)
	case *value.Latent:
		return fmt.Sprintf("LATENT [%d, %d, %d, %d]", x.Samples.B, x.Samples.C, x.Samples.Y, x.Samples.X)
	case value.Conditioning:
		return fmt.Sprintf("CONDITIONING of %d entries", len(x))
	case *value.Model:
		return "MODEL " + x.Name
	case *value.Clip:
		return "CLIP " + x.Name
	case *value.VAE:
		return "VAE " + x.Name
	case value.Sigmas:
		return fmt.Sprintf("SIGMAS of %d", len(x))
	}
	return typeOf(v)
}

// shown is a value as ComfyUI's execution_error shows it: literals as they are, everything else in words.
func shown(v any) any {
	switch x := v.(type) {
	case nil, bool, int64, uint64, float64:
		return x
	case string:
		return pyjson.Excerpt(x)
	}
	return Describe(v)
}
