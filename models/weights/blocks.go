package weights

import (
	"patchbay/engine"
	"patchbay/engine/datafile"
)

// blocks holds the rows of a matrix in whole quantization blocks, row after row. The rows may be in several places.
type blocks struct {
	form   *engine.Blocks
	k      int // elements of a row
	pieces []lines
	from   func(row int) int // where a row is in the pieces; nil: in its place
}

// lines are some rows of blocks: bytes of a file, or made on demand.
type lines struct {
	count int
	span  datafile.Span
	make  func(dst []byte, row, n int) // writes rows [row, row+n); nil: span has them
	first int                          // number of the first row for make
}

// linesOf returns rows of size bytes each that are stored one after the other.
func linesOf(span datafile.Span, size int) lines {
	return lines{count: span.Len() / max(size, 1), span: span}
}

// rows returns rows [first, first+n), which have size bytes each.
func (l lines) rows(first, n, size int) lines {
	out := lines{count: n, make: l.make, first: l.first + first}
	if l.make == nil {
		out.span = l.span.Slice(first*size, (first+n)*size)
	}
	return out
}

// view returns the bytes of all rows, with scratch memory to reuse.
func (l lines) view(scratch *[]byte, size int) []byte {
	if l.make == nil {
		return l.span.View(scratch)
	}
	if cap(*scratch) < l.count*size {
		*scratch = make([]byte, l.count*size)
	}
	dst := (*scratch)[:l.count*size]
	l.make(dst, l.first, l.count)
	return dst
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
	lo, hi := first, first+n
	for _, p := range b.pieces {
		if a, z := max(lo, 0), min(hi, p.count); a < z {
			out.pieces = append(out.pieces, p.rows(a, z-a, b.rowBytes()))
		}
		lo, hi = lo-p.count, hi-p.count
	}
	return out
}

// columns returns the first k elements of every row, whole blocks, without reading them; nil if k cuts a block.
func (b *blocks) columns(k int) *blocks {
	switch {
	case b == nil || k == b.k:
		return b
	case k%b.form.Elements != 0:
		return nil
	}
	whole, n := *b, 0
	for _, p := range b.pieces {
		n += p.count
	}
	out := &blocks{form: b.form, k: k}
	size := out.rowBytes()
	out.pieces = []lines{{count: n, make: func(dst []byte, row, n int) {
		var scratch []byte
		for _, p := range whole.rows(row, n).pieces {
			for line := p.view(&scratch, whole.rowBytes()); len(line) > 0; line = line[whole.rowBytes():] {
				dst = dst[copy(dst, line[:size]):]
			}
		}
	}}}
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
func (c *selection) blocks(s Stored, k int, scratch *[]byte) []byte {
	b := s.packed
	all := len(c.cols) == 1 && k == c.k
	if c.order == nil && all {
		if r := b.rows(c.first, c.count); len(r.pieces) == 1 {
			return r.pieces[0].view(scratch, b.rowBytes())
		}
	}
	var read []byte
	data := (*scratch)[:0]
	for i := 0; i < c.count; {
		n := c.run(i)
		for _, piece := range b.rows(c.row(i), n).pieces {
			for p := piece.view(&read, b.rowBytes()); len(p) > 0; p = p[b.rowBytes():] {
				for _, span := range c.cols {
					per, size := b.form.Elements, b.form.Bytes
					data = append(data, p[span.lo/per*size:span.hi/per*size]...)
				}
			}
		}
		i += n
	}
	*scratch = data
	return data
}
