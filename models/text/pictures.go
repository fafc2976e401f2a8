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

// Tagged returns the states of a prompt with Tags. chunk and pictures are as for WithoutPictures.
func (e Encoding) Tagged(chunk []tokenizer.Token, pictures [][2]int) Encoding {
	tags := slices.Repeat([]int{1}, len(chunk))
	for i := 1; i < len(chunk) && len(pictures) > 0; i++ {
		if chunk[i].Vector == nil || chunk[i-1].Vector != nil || chunk[i-1].ID != pictureStart {
			continue
		}
		end := min(len(chunk), i+pictures[0][0]*pictures[0][1]+1) // with the token that ends the picture
		clear(tags[i-1 : end])
		i, pictures = end-1, pictures[1:]
	}
	e.Tags = tags[len(chunk)-e.Context.Rows:]
	return e
}

// pictureStart is the ID of the token in front of a picture.
const pictureStart = 151652
