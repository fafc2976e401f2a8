package weights

import (
	"fmt"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
)

// selection describes which rows and columns of a stored matrix become a weight.
type selection struct {
	n, k     int   // stored rows and columns
	order    []int // stored row of every selected row; nil: count rows from first on
	first    int
	count    int
	cols     []span // selected column ranges, in order
	channels int    // C of a convolution; else 0
	taps     int    // KY*KX of a convolution
}

// cut evaluates the rows, perm, split and conv tags of it for the stored matrix s.
func (f *filler) cut(it item, s Stored) (selection, error) {
	if len(s.Shape) < 2 {
		return selection{}, fmt.Errorf("shape %v is not a matrix", s.Shape)
	}
	c := selection{n: s.Shape[0], k: s.Len() / max(s.Shape[0], 1)}
	c.count, c.cols = c.n, []span{{0, c.k}}
	d := dims(f.opt.Dims)
	if it.rows != "" {
		r, err := d.rowRange(it.rows)
		if err != nil {
			return c, err
		}
		if r.lo < 0 || r.hi > c.n || r.lo > r.hi {
			return c, fmt.Errorf("rows %s are [%d, %d) of %d", it.rows, r.lo, r.hi, c.n)
		}
		c.first, c.count = r.lo, r.hi-r.lo
	}
	if it.perm != "" {
		c.order = f.opt.Perms[it.perm]
		if len(c.order) != c.n {
			return c, fmt.Errorf("row order %q has %d rows, the matrix %d", it.perm, len(c.order), c.n)
		}
	}
	if it.conv {
		if len(s.Shape) != 4 {
			return c, fmt.Errorf("shape %v is not a convolution [N, C, KY, KX]", s.Shape)
		}
		c.channels, c.taps = s.Shape[1], s.Shape[2]*s.Shape[3]
	}
	if it.split != "" && f.opt.Ranks > 1 {
		return c, c.split(it.split, d, f.opt)
	}
	return c, nil
}

// split narrows c to the slice of one rank of a tensor group.
func (c *selection) split(expr string, d dims, opt Options) error {
	side, list, _ := strings.Cut(expr, " ")
	groups, err := d.groups(list, opt.Units)
	if err != nil {
		return err
	}
	var spans []span
	total, rank := 0, dit.Held{Rank: opt.Rank, Ranks: opt.Ranks}
	for _, g := range groups {
		share := rank.Share(g.units)
		spans = append(spans, span{total + share.Start*g.unit, total + share.End*g.unit})
		total += g.size
	}
	switch side {
	case "rows":
		if total != c.count {
			return fmt.Errorf("split %q covers %d rows of %d", expr, total, c.count)
		}
		order := []int{}
		for _, s := range spans {
			for r := s.lo; r < s.hi; r++ {
				order = append(order, c.row(r))
			}
		}
		c.order, c.count = order, len(order)
	case "cols":
		if total != c.k || c.channels != 0 {
			return fmt.Errorf("split %q covers %d columns of %d", expr, total, c.k)
		}
		c.cols = spans
	default:
		return fmt.Errorf("split %q: want \"rows ...\" or \"cols ...\"", expr)
	}
	return nil
}

// width returns the number of selected columns.
func (c *selection) width() (k int) {
	for _, span := range c.cols {
		k += span.hi - span.lo
	}
	return k
}

// matrix returns what c selects of s: a view, a copy, or computed on demand. It may use scratch until the next call.
func (c *selection) matrix(s Stored, scratch *[]byte) engine.Matrix {
	if s.Scales != nil && !c.wholeGroups(s.Rotated) {
		s = s.as(engine.BF16)
	}
	size, k := s.DType.Size(), c.width()
	m := engine.Matrix{DType: s.DType, N: c.count, K: k, Scale: s.Scale, Rotated: s.Rotated, Unrounded: s.unrounded}
	if s.Scales != nil {
		m.Scales = make([]float32, c.count)
		for i := range m.Scales {
			m.Scales[i] = s.Scales[c.row(i)]
		}
	}
	if s.packed != nil {
		if c.wholeGroups(s.packed.form.Elements) {
			m.Data, m.Blocks = c.blocks(s, k, scratch), s.packed.form
			for _, span := range c.cols {
				if s.inputs != nil {
					m.Inputs = append(m.Inputs, s.inputs[span.lo:span.hi]...)
				}
			}
			return m
		}
	}
	if s.inputs != nil || s.packed != nil && s.Scales != nil { // bf16 has no room for them
		return c.matrix(s.as(engine.F32), scratch)
	}
	// Elements that are computed on demand are not computed for columns that are then dropped.
	whole := s.make == nil || k == c.k
	if c.order == nil && len(c.cols) == 1 && c.channels == 0 && whole {
		lo, hi := c.first*c.k+c.cols[0].lo, (c.first+c.count-1)*c.k+c.cols[0].hi
		if c.count > 0 {
			m.Data = s.elements(scratch, lo, hi)
		}
		m.Row = c.k
		return m
	}
	m.Data = make([]byte, 0, c.count*k*size)
	for i := 0; i < c.count; {
		n := c.run(i)
		rows := s.elements(scratch, c.row(i)*c.k, (c.row(i)+n)*c.k)
		for r := range n {
			m.Data = appendRow(c, m.Data, rows[r*c.k*size:(r+1)*c.k*size], size)
		}
		i += n
	}
	return m
}

// wholeGroups reports whether c selects whole groups of that many inputs of a linear layer.
func (c *selection) wholeGroups(group int) bool {
	return c.channels == 0 && (group == 0 || !slices.ContainsFunc(c.cols, func(s span) bool {
		return s.lo%group != 0 || s.hi%group != 0
	}))
}

// runElements bounds the result of run.
const runElements = 1 << 20

// run returns how many of the selected rows from i on are consecutive in the stored matrix: at least 1, and not many
// more than runElements hold.
func (c *selection) run(i int) int {
	n := 1
	for i+n < c.count && c.row(i+n) == c.row(i)+n && n*c.k < runElements {
		n++
	}
	return n
}

// appendRow appends what c selects of one stored row, whose elements are size T each: its columns, or for a convolution
// [C, KY*KX] -> [KY*KX, C].
func appendRow[T any](c *selection, dst, row []T, size int) []T {
	if c.channels == 0 {
		for _, s := range c.cols {
			dst = append(dst, row[s.lo*size:s.hi*size]...)
		}
		return dst
	}
	for tap := range c.taps {
		for ch := range c.channels {
			at := (ch*c.taps + tap) * size
			dst = append(dst, row[at:at+size]...)
		}
	}
	return dst
}

func (c *selection) row(i int) int {
	if c.order != nil {
		return c.order[i]
	}
	return c.first + i
}

// part returns the selection of rows [lo, hi) of c.
func (c *selection) part(lo, hi int) selection {
	out := *c
	out.count = hi - lo
	if c.order != nil {
		out.order = c.order[lo:hi]
	} else {
		out.first += lo
	}
	return out
}

// pickInto writes the selected rows [lo, lo+len(dst)) of a stored bias and reads no others.
func (c *selection) pickInto(dst []float32, bias Stored, lo int) {
	for i := 0; i < len(dst); {
		n := 1
		for i+n < len(dst) && c.row(lo+i+n) == c.row(lo+i)+n {
			n++
		}
		bias.wide(dst[i:i+n], c.row(lo+i))
		i += n
	}
}
