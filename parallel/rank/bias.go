package rank

import (
	"math"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/plan"
)

// biasTable is what tokens of an entry add to their attention scores, a row for all queries that add the same. Queries
// that read the same row are adjacent, so that it is broadcast and never written out.
type biasTable struct {
	text, image []reads
	rows        engine.Tensor // [rows, keys] f32, keys in the order of attention
}

// reads says that queries from a token on, up to the next reads, read a row; below 0: none.
type reads struct{ from, row int }

// bias is what the keys of some tokens add to the scores of all queries that read a row.
type bias struct {
	row   int
	text  bool // text tokens, else image tokens
	keys  dit.Range
	value float32
}

// newBiasTable makes a table from env.Arena for a sequence whose keys are attended to in the given order.
func newBiasTable(env dit.Env, e *dit.Entry, frame dit.Grid, size plan.Sequence, keys []dit.Rows) *biasTable {
	t := &biasTable{}
	var all []bias
	if len(e.Biases) > 0 {
		all = t.ofText(e.Biases)
	} else {
		all = t.ofKeyframes(e.Keyframes, frame, size.Image)
	}
	n, rows := size.Text+size.Image, 0
	for _, b := range all {
		rows = max(rows, b.row+1)
	}
	t.rows = env.Arena.Alloc(engine.F32, rows, n)
	if env.Arena.Measuring() {
		return t
	}
	values, at := make([]float32, rows*n), 0
	for _, r := range keys {
		for _, b := range all {
			has, first := r.Image, at+r.Text.Len()
			if b.text {
				has, first = r.Text, at
			}
			for token := max(b.keys.Start, has.Start); token < min(b.keys.End, has.End); token++ {
				values[b.row*n+first+token-has.Start] = b.value
			}
		}
		at += r.Len()
	}
	env.Ops.Upload(t.rows, values)
	return t
}

// ofText returns the biases of texts (dit.Entry.Biases). Image tokens, and text tokens before the first range, add all
// of them; text tokens after the start of range i only those of later ranges. Row i has the ranges from i on.
func (t *biasTable) ofText(list []dit.Bias) (all []bias) {
	t.text, t.image = []reads{{0, 0}}, []reads{{0, 0}}
	for i, b := range list {
		next := i + 1
		if next == len(list) {
			next = -1
		}
		t.text = append(t.text, reads{b.Rows.Start, next})
		for row := range i + 1 {
			all = append(all, bias{row, true, b.Rows, b.Value})
		}
	}
	return all
}

// hiddenKey takes the place of the logarithm of 0.
const hiddenKey = -1e30

// ofKeyframes returns the biases between the tokens of a video with frames of that grid and those of keyframes at the
// end of n image tokens. Row 0 is what tokens of the video add, each of the others what those of keyframes add
// that have the same weight.
func (t *biasTable) ofKeyframes(list []dit.Keyframes, frame dit.Grid, n int) (all []bias) {
	var weights []float32 // of the tokens of all keyframes
	for _, k := range list {
		for i := range k.Tokens(frame) {
			weight := k.Weight
			if k.Mask != nil {
				weight *= k.Mask[i]
			}
			weights = append(weights, weight)
		}
	}
	begin := n - len(weights)
	t.text, t.image = []reads{{0, -1}}, []reads{{0, 0}}
	rows := map[float32]int{}
	for at := 0; at < len(weights); {
		weight, end := weights[at], at+1
		for end < len(weights) && weights[end] == weight {
			end++
		}
		value := float32(hiddenKey)
		if weight > 0 {
			value = float32(math.Log(float64(weight)))
		}
		row, known := rows[weight]
		if !known {
			row = len(rows) + 1
			rows[weight] = row
			all = append(all, bias{row, false, dit.Range{End: begin}, value})
		}
		t.image = append(t.image, reads{begin + at, row})
		all = append(all, bias{0, false, dit.Range{Start: begin + at, End: begin + end}, value})
		at = end
	}
	return all
}

// each visits rows [lo, hi) of text tokens or image tokens with the row of the table that they read; below 0 means that
// they read none.
func (t *biasTable) each(text bool, of dit.Range, visit func(lo, hi, row int)) {
	list := t.image
	if text {
		list = t.text
	}
	for i, r := range list {
		end := of.End
		if i+1 < len(list) {
			end = min(end, list[i+1].from)
		}
		if from := max(of.Start, r.from); from < end {
			visit(from-of.Start, end-of.Start, r.row)
		}
	}
}

// weighs reports whether keyframes of an entry change attention.
func weighs(e *dit.Entry) bool {
	for _, k := range e.Keyframes {
		if k.Weight != 1 || k.Mask != nil {
			return true
		}
	}
	return false
}
