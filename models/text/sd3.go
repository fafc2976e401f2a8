package text

import (
	"fmt"

	"patchbay/models/dit"
)

// Sizes of SD3's text input where an encoder is missing (arXiv:2403.03206, sec. 4.3 and B.3).
const (
	sd3Width  = 4096
	sd3CLIPL  = 768
	sd3CLIPG  = 1280
	sd3Tokens = 77
)

// SD3 joins the encodings of SD3's three encoders, any of which may be nil: CLIP-L (CLIPFormSD3L) and CLIP-G
// (CLIPFormSD3G) side by side on the channels, cut to the shorter and padded with zeros to 4096 channels, then the
// states of T5 appended on the token axis. A missing CLIP gives zeros in its place, a missing T5 no tokens; without all
// three the context is 77 zero tokens (ComfyUI comfy/text_encoders/sd3_clip.py). Errors: encodings wider than 4096
// channels or a T5 of other width.
func SD3(clipL, clipG, t5 *Encoding) (dit.Entry, error) {
	e := dit.Entry{Pooled: append(pooled(clipL, sd3CLIPL), pooled(clipG, sd3CLIPG)...)}
	e.Context.Cols = sd3Width
	rows := 0
	for _, c := range []*Encoding{clipL, clipG} {
		if c != nil && (rows == 0 || c.Context.Rows < rows) {
			rows = c.Context.Rows
		}
	}
	if clipL == nil && clipG == nil && t5 == nil {
		rows = sd3Tokens
	}
	e.Context.Rows = rows
	e.Context.Data = make([]float32, rows*sd3Width)
	at := 0
	for _, c := range []struct {
		e     *Encoding
		width int
	}{{clipL, sd3CLIPL}, {clipG, sd3CLIPG}} {
		if c.e == nil {
			at += c.width
			continue
		}
		n := c.e.Context.Cols
		if at+n > sd3Width {
			return e, fmt.Errorf("encode sd3: the CLIP states have %d channels together, at most %d fit", at+n, sd3Width)
		}
		for r := range rows {
			copy(e.Context.Data[r*sd3Width+at:], c.e.Context.Data[r*n:(r+1)*n])
		}
		at += n
	}
	if t5 == nil {
		return e, nil
	}
	if t5.Context.Cols != sd3Width {
		return e, fmt.Errorf("encode sd3: the T5 states have %d channels, must be %d", t5.Context.Cols, sd3Width)
	}
	e.Context.Data = append(e.Context.Data, t5.Context.Data...)
	e.Context.Rows += t5.Context.Rows
	return e, nil
}

// pooled returns a copy of the pooled state, or n zeros.
func pooled(e *Encoding, n int) []float32 {
	if e == nil {
		return make([]float32, n)
	}
	return append([]float32(nil), e.Pooled...)
}
