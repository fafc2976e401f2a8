package text

import "patchbay/models/dit"

// FLUX is what FLUX reads of a prompt: the states of T5 (encoded with the zero T5Form) and the pooled state of CLIP-L
// (CLIPFormFLUX), not projected (ComfyUI comfy/text_encoders/flux.py).
func FLUX(clip, t5 Encoding) dit.Entry {
	return dit.Entry{Context: t5.Context, Pooled: clip.Pooled}
}

// PixArt is what PixArt reads of a prompt: the states of T5, encoded with T5Form{PadReference: true}.
func PixArt(t5 Encoding) dit.Entry { return dit.Entry{Context: t5.Context} }
