package plan

import (
	"slices"

	"patchbay/models/dit"
)

// Sequence is the length of an entry's sequence, in tokens.
type Sequence struct{ Text, Image int }

// Part is what one evaluation computes: all tokens, or the image tokens of one patch, with the text if Text is set.
type Part struct {
	Whole  bool
	Tokens dit.Range
	Text   bool
}

// Rows returns what each sequence rank computes of an entry in one evaluation, by SequenceRank. places are those of
// Plan.Places.
func (p Part) Rows(e Sequence, places []int) []dit.Rows {
	if p.Whole {
		return sequenceRows(e.Text, e.Image, places)
	}
	text := 0
	if p.Text {
		text = e.Text
	}
	out := sequenceRows(text, p.Tokens.Len(), places)
	for i := range out {
		out[i].Image = behind(p.Tokens.Start, out[i].Image)
	}
	return out
}

// CFGCoord returns the cfg group of entry i, whose branch is branches[i]. Branches are dealt to groups in turn; where
// there are more groups than branches, entries are.
func CFGCoord(branches []int, i, groups int) int {
	last := 0
	for _, b := range branches {
		last = max(last, b)
	}
	if groups <= last+1 {
		return branches[i] % groups
	}
	return i % groups
}

// Kept returns which of the rows of a sequence rank tensor rank t keeps between projections: all, or with Scatter a
// balanced part of text and image.
func (p Plan) Kept(rows dit.Rows, t int) dit.Rows {
	if !p.Scatter {
		return rows
	}
	r := sequenceRows(rows.Text.Len(), rows.Image.Len(), slices.Repeat([]int{1}, p.Tensor))[t]
	return dit.Rows{Text: behind(rows.Text.Start, r.Text), Image: behind(rows.Image.Start, r.Image)}
}

// PatchesMayTakeMore reports whether a micro-step of a patch may take more memory than one of the whole image. That is
// so where synchronous evaluations are spread, and where a model with a joint sequence has blocks that attend over
// image tokens alone: ranks whose rows begin with text have fewer of these in the whole image than in a later patch.
func (p Plan) PatchesMayTakeMore(spec *dit.Spec) bool {
	return p.Spread || p.Patches > 1 && spec.JointText() &&
		slices.ContainsFunc(spec.Blocks, func(b dit.BlockSpec) bool { return b.Kind == dit.Cross })
}

// StoreRows returns how many tokens a K/V store has room for in attention a of a block: the second is over image alone.
func StoreRows(lt, li, a int) int {
	if a > 0 {
		return li
	}
	return lt + li
}

// EachAttention calls visit for each attention of a block.
func EachAttention(b dit.BlockSpec, visit func(imageOnly bool)) {
	for i := range b.Attends {
		visit(b.Kind == dit.Cross || i > 0)
	}
}
