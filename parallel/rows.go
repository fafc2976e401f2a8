package parallel

import "patchbay/models/dit"

// entrySize is the length of an entry's sequence.
type entrySize struct{ text, image int }

// part is what one evaluation computes of the picture: every token, or the image tokens of one patch, with the text if Text is set.
type part struct {
	Whole  bool
	Tokens dit.Range
	Text   bool
}

// rows returns what each sequence rank computes of an entry in one evaluation, by its place in the sequence.
func (p part) rows(e entrySize, parts int) []dit.Rows {
	if p.Whole {
		return sequenceRows(e.text, e.image, parts)
	}
	text := 0
	if p.Text {
		text = e.text
	}
	out := sequenceRows(text, p.Tokens.Len(), parts)
	for i := range out {
		out[i].Image.Start += p.Tokens.Start
		out[i].Image.End += p.Tokens.Start
	}
	return out
}

// cfgGroup spreads entries over cfg groups: branches in turn, and the entries of one branch in turn where there are more groups than branches.
func cfgGroup(branches []int, i, groups int) int {
	last := 0
	for _, b := range branches {
		last = max(last, b)
	}
	if groups <= last+1 {
		return branches[i] % groups
	}
	return i % groups
}

// kept returns the rows of a sequence place that tensor rank t keeps between products: all, or a balanced part of text and image in the scattered form.
func (p Plan) kept(rows dit.Rows, t int) dit.Rows {
	if !p.Scatter {
		return rows
	}
	r := sequenceRows(rows.Text.Len(), rows.Image.Len(), p.Tensor)[t]
	return dit.Rows{
		Text:  dit.Range{Start: rows.Text.Start + r.Text.Start, End: rows.Text.Start + r.Text.End},
		Image: dit.Range{Start: rows.Image.Start + r.Image.Start, End: rows.Image.Start + r.Image.End},
	}
}

// storeRows is the tokens of attention a of a block: the second one is over image tokens only.
func storeRows(lt, li, a int) int {
	if a > 0 {
		return li
	}
	return lt + li
}

// eachAttention visits the attentions of a block.
func eachAttention(b dit.BlockSpec, visit func(index int, imageOnly bool)) {
	for i := range max(b.Attends, 1) {
		visit(i, b.Kind == dit.Cross || i > 0)
	}
}
