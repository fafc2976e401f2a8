package sd3

import (
	"fmt"

	"patchbay/models/dit"
	"patchbay/models/text"
)

// Sizes of the text input where an encoder is missing (arXiv:2403.03206, sec. 4.3 and B.3).
const (
	width  = 4096
	widthL = 768
	widthG = 1280
	tokens = 77
)

// join joins the encodings of the three encoders, any of which may be absent: CLIP-L and CLIP-G side by side on the
// channel axis, cut to the shorter and padded with zeros to 4096 channels, then T5's states appended on the token axis.
// A missing CLIP contributes zeros, a missing T5 no tokens. Without all three the context is 77 zero tokens (ComfyUI
// comfy/text_encoders/sd3_clip.py). It returns an error for CLIP states wider than 4096 channels or a T5 of another
// width.
func join(done map[string]*text.Encoding) (dit.Entry, error) {
	t5, clips := done["t5"], []struct {
		*text.Encoding
		wide int
	}{{done["clip_l"], widthL}, {done["clip_g"], widthG}}
	var e dit.Entry
	rows, at := 0, 0
	for _, c := range clips {
		if c.Encoding == nil {
			e.Pooled = append(e.Pooled, make([]float32, c.wide)...)
			continue
		}
		e.Pooled = append(e.Pooled, c.Pooled...)
		if rows == 0 || c.Context.Rows < rows {
			rows = c.Context.Rows
		}
	}
	if rows == 0 && t5 == nil {
		rows = tokens
	}
	e.Context = dit.Array{Rows: rows, Cols: width, Data: make([]float32, rows*width)}
	for _, c := range clips {
		if c.Encoding == nil {
			at += c.wide
			continue
		}
		n := c.Context.Cols
		if at+n > width {
			return e, fmt.Errorf("encode sd3: the CLIP states have %d channels together, at most %d fit", at+n, width)
		}
		for r := range rows {
			copy(e.Context.Data[r*width+at:], c.Context.Data[r*n:(r+1)*n])
		}
		at += n
	}
	if t5 == nil {
		return e, nil
	}
	if t5.Context.Cols != width {
		return e, fmt.Errorf("encode sd3: the T5 states have %d channels, must be %d", t5.Context.Cols, width)
	}
	e.Context.Data = append(e.Context.Data, t5.Context.Data...)
	e.Context.Rows += t5.Context.Rows
	return e, nil
}
