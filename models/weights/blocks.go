package weights

import (
	"patchbay/engine"
	"patchbay/engine/datafile"
)

// blocks holds the rows of a matrix as a GGUF file stores them: whole quantization blocks, row after row. The rows may
// be in several places.
type blocks struct {
	form   *engine.Blocks
	k      int // elements of a row
	pieces []datafile.Span
	from   func(row int) int // where a row is in the pieces; nil: in its place
}

func (b *blocks) rowBytes() int { return b.k / b.form.Elements * b.form.Bytes }

// rows returns rows [first, first+n).
func (b *blocks) rows(first, n int) *blocks {
	if b == nil {
		return nil
	}
	out := &blocks{form: b.form, k: b.k}
	if b.from != nil {
		ordered := blocks{form: b.form, k: b.k, pieces: b.pieces}
		for row := first; row < first+n; row++ {
			out.pieces = append(out.pieces, ordered.rows(b.from(row), 1).pieces...)
		}
		return out
	}
	lo, hi := first*b.rowBytes(), (first+n)*b.rowBytes()
	for _, p := range b.pieces {
		if a, z := max(lo, 0), min(hi, p.Len()); a < z {
			out.pieces = append(out.pieces, p.Slice(a, z))
		}
		lo, hi = lo-p.Len(), hi-p.Len()
	}
	return out
}

// joinBlocks returns the rows of all pieces, nil if a piece is not stored in blocks or its blocks have another form.
func joinBlocks(pieces []Stored) *blocks {
	out := &blocks{}
	for i, p := range pieces {
		if p.packed == nil || i > 0 && (p.packed.form.Name != out.form.Name || p.packed.k != out.k) {
			return nil
		}
		out.form, out.k = p.packed.form, p.packed.k
		out.pieces = append(out.pieces, p.packed.rows(0, p.Shape[0]).pieces...)
	}
	return out
}

// blocks returns what c selects of s, k columns, as blocks: a view or a copy. See matrix.
func (c *selection) blocks(s Stored, k int, scratch *[]byte) engine.Matrix {
	b := s.packed
	m := engine.Matrix{DType: s.DType, N: c.count, K: k, Scale: s.Scale, Blocks: b.form}
	all := len(c.cols) == 1 && k == c.k
	if c.order == nil && all {
		if r := b.rows(c.first, c.count); len(r.pieces) == 1 {
			m.Data = r.pieces[0].View(scratch)
			return m
		}
	}
	var read []byte
	m.Data = (*scratch)[:0]
	for i := 0; i < c.count; {
		n := c.run(i)
		for _, piece := range b.rows(c.row(i), n).pieces {
			for p := piece.View(&read); len(p) > 0; p = p[b.rowBytes():] {
				for _, span := range c.cols {
					per, size := b.form.Elements, b.form.Bytes
					m.Data = append(m.Data, p[span.lo/per*size:span.hi/per*size]...)
				}
			}
		}
		i += n
	}
	*scratch = m.Data
	return m
}
