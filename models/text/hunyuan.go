package text

import "patchbay/models/dit"

// HunyuanDiT is what HunyuanDiT reads of a prompt: BERT's states and those of mT5 (T5Form{Masked: true}), each with its
// number of valid tokens (ComfyUI comfy/text_encoders/hydit.py). Only the last chunk of a prompt is padded, so the
// valid tokens of several chunks are neighbours too.
func HunyuanDiT(bert, mt5 Encoding) dit.Entry {
	return dit.Entry{
		Context: bert.Context, ContextLen: bert.ValidLen(), Context2: mt5.Context,
		Context2Len: mt5.ValidLen(),
	}
}
