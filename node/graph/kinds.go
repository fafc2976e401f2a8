package graph

import (
	"cmp"
	"fmt"
	"reflect"

	"patchbay/fault"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// sizeOf estimates the host memory of a value that travels along links.
func sizeOf(v any) int64 {
	const small = 256
	n := 0 // values of 4 bytes
	switch x := v.(type) {
	case *picture.Image:
		n = len(x.Data)
	case *picture.Mask:
		n = len(x.Data)
	case *value.Latent:
		n = len(x.Samples.Data)
		if x.NoiseMask != nil {
			n += len(x.NoiseMask.Data)
		}
	case value.Conditioning:
		bytes := int64(small)
		for i := range x {
			bytes += small + x[i].Bytes()
		}
		return bytes
	case value.VisionOutput:
		n = len(x.Data) + len(x.Deep)
	case *value.Model:
		bytes := small + 4*int64(len(x.Prefix.Data))
		for _, p := range x.Patches {
			bytes += p.Bytes()
		}
		return bytes
	case value.Sigmas:
		n = len(x)
	case *value.Audio:
		if x != nil {
			n = len(x.Data)
		}
	case *value.Video:
		return small + x.Bytes()
	case string:
		return small + int64(len(x))
	case value.Boxes:
		return small + int64(len(pyjson.Dump([]any(x))))
	case value.Array:
		return small + int64(len(pyjson.Dump([]any(x))))
	}
	return small + 4*int64(n)
}

// types maps Go types of values that travel along links to ComfyUI's names.
var types = map[reflect.Type]string{
	reflect.TypeFor[*value.Model](): "MODEL", reflect.TypeFor[*value.Clip](): "CLIP",
	reflect.TypeFor[*value.ControlNet](): "CONTROL_NET", reflect.TypeFor[*value.ModelPatch](): "MODEL_PATCH",
	reflect.TypeFor[*value.VAE](): "VAE", reflect.TypeFor[value.Conditioning](): "CONDITIONING",
	reflect.TypeFor[*value.Latent](): "LATENT", reflect.TypeFor[*picture.Image](): "IMAGE",
	reflect.TypeFor[*picture.Mask](): "MASK", reflect.TypeFor[value.Sigmas](): "SIGMAS",
	reflect.TypeFor[value.Noise](): "NOISE", reflect.TypeFor[value.Sampler](): "SAMPLER",
	reflect.TypeFor[*value.Guider](): "GUIDER", reflect.TypeFor[*value.VisionEncoder](): "CLIP_VISION",
	reflect.TypeFor[value.VisionOutput](): "CLIP_VISION_OUTPUT", reflect.TypeFor[*value.Style](): "STYLE_MODEL",
	reflect.TypeFor[*value.Upscaler](): "UPSCALE_MODEL", reflect.TypeFor[*value.LatentUpscaler](): "LATENT_UPSCALE_MODEL",
	reflect.TypeFor[int64](): "INT", reflect.TypeFor[uint64](): "INT",
	reflect.TypeFor[value.Boxes](): "BOUNDING_BOX", reflect.TypeFor[value.Array](): "ARRAY",
	reflect.TypeFor[value.Camera](): "LOAD3D_CAMERA", reflect.TypeFor[value.Guiding](): "IC_LORA_PARAMETERS",
	reflect.TypeFor[*value.Audio](): "AUDIO", reflect.TypeFor[*value.Video](): "VIDEO",
	reflect.TypeFor[float64](): "FLOAT", reflect.TypeFor[string](): "STRING", reflect.TypeFor[bool](): "BOOLEAN",
}

// typeOf returns the ComfyUI type of a value that travels along links.
func typeOf(v any) string { return cmp.Or(types[reflect.TypeOf(v)], "unknown") }

// checkType returns an error if a value has another type than the input declares.
func checkType(in *Input, v any) error {
	got := typeOf(v)
	if in.Type == "COMBO" || in.Type == typeBranch || in.drawn() || typesFit(got, in.Type) ||
		in.Type == "FLOAT" && got == "INT" {
		return nil
	}
	return fault.Bad(in.Name, "takes %s, got %s", in.Type, got)
}

// Describe describes a value that travels along links in a few words.
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
	case *value.Audio:
		if x == nil {
			return "AUDIO of no sound"
		}
		return fmt.Sprintf("AUDIO [%d, %d, %d] at %d Hz", x.B, x.C, x.N, x.Rate)
	}
	return typeOf(v)
}

// shown returns a value as ComfyUI's execution_error shows it: literals as they are, everything else described.
func shown(v any) any {
	switch x := v.(type) {
	case nil, bool, int64, uint64, float64:
		return x
	case string:
		return pyjson.Excerpt(x)
	}
	return Describe(v)
}
