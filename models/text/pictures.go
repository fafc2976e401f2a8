package text

import (
	"slices"

	"patchbay/models/tokenizer"
)

// WithoutPictures returns the states of a prompt without those of its picture tokens, which leave slots. chunk is the
// prompt as it was encoded, of which the states of first tokens may be missing, pictures are those of Form.
func (e Encoding) WithoutPictures(chunk []tokenizer.Token, pictures [][2]int) (out Encoding) {
	out = Encoding{Pooled: e.Pooled}
	out.Context.Cols = e.Context.Cols
	cut, cols := len(chunk)-e.Context.Rows, e.Context.Cols
	for i := 0; i < len(chunk); i++ {
		if chunk[i].Vector != nil && len(pictures) > 0 {
			out.Slots = append(out.Slots, out.Context.Rows)
			i += pictures[0][0]*pictures[0][1] - 1
			pictures = pictures[1:]
			continue
		}
		if i >= cut {
			out.Context.Rows++
			out.Context.Data = append(out.Context.Data, e.Context.Data[(i-cut)*cols:(i-cut+1)*cols]...)
			out.Valid = append(out.Valid, e.Valid[i-cut])
		}
	}
	out.Context.Data = slices.Clip(out.Context.Data)
	return out
}
