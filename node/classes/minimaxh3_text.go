package classes

import (
	"fmt"

	"patchbay/node/picture"
)

// referenced is something that a prompt of MiniMax-H3 refers to by its kind and number.
type referenced struct {
	kind   string         // Picture, Audio or Video
	images *picture.Image // a picture, or those of a video, two in a second
}

// introduced returns the texts in front of a prompt that refers to things, each to be tokenized by itself, and the
// pictures in them. Two pictures of a video are one, with their mean time (ComfyUI comfy/text_encoders/minimax.py).
func introduced(things []referenced) (texts []string, seen []*picture.Image) {
	number := map[string]int{}
	for _, r := range things {
		number[r.kind]++
		texts = append(texts, fmt.Sprintf("<%s %d>: ", r.kind, number[r.kind]))
		switch r.kind {
		case "Picture":
			texts, seen = append(texts, pictureInText), append(seen, r.images.Items(0, 1))
		case "Video":
			for first := 0; first < r.images.B; first += 2 {
				n := min(2, r.images.B-first)
				at := float64(2*first+n-1) / 4
				texts = append(texts, fmt.Sprintf("<%.1f seconds>", at), pictureInText)
				seen = append(seen, r.images.Items(first, n))
			}
		}
	}
	return texts, seen
}
