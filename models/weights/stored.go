package weights

import (
	"cmp"
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/engine/datafile"
)

// Stored is one tensor as a file stores it: row-major, little-endian. Those of a file, and those that do not exist in a
// file in the wanted form (quantized blocks, pieces of a fused matrix), have no Data: Elements reads or computes what
// is asked for, so that a whole model is never in memory. Methods that return elements panic with a
// the error of datafile.Changed if the file cannot be read.
type Stored struct {
	DType engine.DType
	Shape []int
	Data  []byte  // in memory; nil: read or computed on demand
	Scale float32 // scale of the whole tensor (fp8, nvfp4); 0 means 1
	// As in engine.Matrix: the scale of every row, and of i8 the size of the groups of inputs that were rotated.
	Scales  []float32
	Rotated int

	// factors of the columns of a matrix in blocks, which belong to its values (engine.Matrix.Inputs)
	inputs []float32

	unrounded bool // i8 whose values are multiplied by x as it is (engine.Matrix.Unrounded)

	packed *blocks // the same elements in the blocks of the file; nil: not in blocks, or not as whole rows
	padded bool    // a quantized matrix that may have more rows and columns than the layer

	make func(dst []byte, lo, hi int) // writes elements [lo, hi) of the flattened tensor; nil: Data has them
	span datafile.Span                // the bytes of the tensor if it is one of a file as it is
	file *datafile.File               // a file that the elements come from; nil: none
}

// storedAs returns a tensor whose elements are those bytes.
func storedAs(d engine.DType, shape []int, data datafile.Span) Stored {
	s := Stored{DType: d, Shape: shape, span: data, file: data.File()}
	if s.file == nil {
		s.Data = data.Bytes()
		return s
	}
	size := d.Size()
	s.make = func(dst []byte, lo, hi int) { data.Read(dst[:(hi-lo)*size], lo*size) }
	return s
}

// raw returns the bytes of a tensor that nothing was done to.
func (s Stored) raw() datafile.Span {
	if s.Data != nil {
		return datafile.Of(s.Data)
	}
	return s.span
}

// Floats returns an f32 tensor with the values v, which must fill shape.
func Floats(v []float32, shape ...int) Stored {
	s := Stored{DType: engine.F32, Shape: shape, Data: make([]byte, 4*len(v))}
	engine.Narrow(s.Data, v, engine.F32)
	return s
}

// Len returns the number of elements.
func (s Stored) Len() int {
	n := 1
	for _, d := range s.Shape {
		n *= d
	}
	return n
}

// Bytes returns the size of all elements in DType, or in the blocks of the file.
func (s Stored) Bytes() int64 {
	if s.packed != nil {
		return int64(s.Shape[0]) * int64(s.packed.rowBytes())
	}
	return int64(s.Len()) * int64(s.DType.Size())
}

// Elements returns elements [lo, hi) of the flattened tensor as bytes of DType, Scale not applied: a view of Data, or
// new memory if Data is nil.
func (s Stored) Elements(lo, hi int) []byte {
	var fresh []byte
	return s.elements(&fresh, lo, hi)
}

// elements is Elements with scratch memory to reuse.
func (s Stored) elements(scratch *[]byte, lo, hi int) []byte {
	size := s.DType.Size()
	if s.make == nil {
		return s.Data[lo*size : hi*size]
	}
	n := (hi - lo) * size
	if cap(*scratch) < n {
		*scratch = make([]byte, n)
	}
	dst := (*scratch)[:n]
	s.make(dst, lo, hi)
	return dst
}

// put writes elements [lo, hi) to dst.
func (s Stored) put(dst []byte, lo, hi int) {
	if s.make != nil {
		s.make(dst, lo, hi)
		return
	}
	copy(dst, s.Elements(lo, hi))
}

// F32 returns a copy of the elements widened to f32, Scale applied.
func (s Stored) F32() []float32 {
	v := make([]float32, s.Len())
	s.wide(v, 0)
	return v
}

// wideChunk is the number of elements that are widened at a time.
const wideChunk = 1 << 16

// wide writes len(dst) elements from lo on as f32, Scale applied.
func (s Stored) wide(dst []float32, lo int) {
	if s.inputs != nil {
		by := s.inputs
		s.inputs = nil
		s.wide(dst, lo)
		for i := range dst {
			dst[i] *= by[(lo+i)%len(by)]
		}
		return
	}
	if s.Scales != nil {
		s.wideRows(dst, lo)
		return
	}
	var scratch []byte
	for at := 0; at < len(dst); {
		n := min(len(dst)-at, wideChunk)
		engine.Widen(dst[at:at+n], s.elements(&scratch, lo+at, lo+at+n), s.DType)
		at += n
	}
	if s.Scale != 0 && s.Scale != 1 {
		for i := range dst {
			dst[i] *= s.Scale
		}
	}
}

// Rows returns rows [first, first+n) of the outermost dimension without reading them.
func (s Stored) Rows(first, n int) (Stored, error) {
	if len(s.Shape) == 0 || first < 0 || n < 0 || n > s.Shape[0]-first {
		return Stored{}, fmt.Errorf("shape %v has no rows [%d, %d)", s.Shape, first, first+n)
	}
	row := s.Len() / max(s.Shape[0], 1)
	from, whole := first*row, s.make
	s.span = datafile.Span{}
	if whole == nil {
		s.Data = s.Elements(from, from+n*row)
	} else {
		s.make = func(dst []byte, lo, hi int) { whole(dst, from+lo, from+hi) }
	}
	if s.Scales != nil {
		s.Scales = s.Scales[first : first+n]
	}
	s.packed = s.packed.rows(first, n)
	s.Shape = append([]int{n}, s.Shape[1:]...)
	return s, nil
}

// LastTap returns the last temporal tap of a 3D convolution, [N, C, T, Y, X] -> [N, C, Y, X], without reading it.
// Tensors with another number of dimensions are returned unchanged.
func (s Stored) LastTap() (Stored, error) {
	if len(s.Shape) != 5 {
		return s, nil
	}
	return s.Tap(s.Shape[2] - 1)
}

// Tap returns one temporal tap of a 3D convolution, as LastTap does.
func (s Stored) Tap(i int) (Stored, error) {
	if len(s.Shape) != 5 || i < 0 || i >= s.Shape[2] || s.Shape[3]*s.Shape[4] < 1 {
		return s, fmt.Errorf("shape %v has no tap %d", s.Shape, i)
	}
	taps, plane := s.Shape[2], s.Shape[3]*s.Shape[4]
	shape := []int{s.Shape[0], s.Shape[1], s.Shape[3], s.Shape[4]}
	return s.gathered(shape, plane, func(kernel int) int { return (kernel*taps + i) * plane }), nil
}

// gathered returns a tensor of another shape without reading it. Its rows have k elements each; row r is taken from s
// at element start(r).
func (s Stored) gathered(shape []int, k int, start func(row int) int) Stored {
	from, size := s, s.DType.Size()
	s.Shape, s.Data, s.span, s.packed = shape, nil, datafile.Span{}, nil
	s.make = func(dst []byte, lo, hi int) {
		for at := lo; at < hi; {
			n, first := min(hi-at, k-at%k), start(at/k)+at%k
			from.put(dst[(at-lo)*size:(at-lo+n)*size], first, first+n)
			at += n
		}
	}
	return s
}

// Transposed returns a matrix with rows and columns exchanged, without reading it. Quantized ones and other tensors are
// returned unchanged.
func (s Stored) Transposed() Stored {
	if len(s.Shape) != 2 || s.packed != nil || s.Scales != nil {
		return s
	}
	from, rows, columns, size := s, s.Shape[0], s.Shape[1], s.DType.Size()
	s.Shape, s.Data, s.span = []int{columns, rows}, nil, datafile.Span{}
	s.make = func(dst []byte, lo, hi int) {
		all := from.Elements(0, from.Len())
		for i := lo; i < hi; i++ {
			copy(dst[(i-lo)*size:(i-lo+1)*size], all[(i%rows*columns+i/rows)*size:])
		}
	}
	return s
}

// halved returns a matrix or bias of heads with the rows of every head in another order, without reading it: first the
// even ones, then the odd ones.
func (s Stored) halved(heads int) (Stored, error) {
	if len(s.Shape) == 0 || s.Shape[0] == 0 || s.Shape[0]%(2*heads) != 0 {
		return s, fmt.Errorf("shape %v is not that of %d heads with an even number of rows", s.Shape, heads)
	}
	d, k := s.Shape[0]/heads, s.Len()/s.Shape[0]
	from := func(row int) int { return row/d*d + row%d%(d/2)*2 + row%d/(d/2) }
	out := s.gathered(s.Shape, k, func(row int) int { return from(row) * k })
	if s.packed != nil {
		out.packed = &blocks{form: s.packed.form, k: k, pieces: s.packed.pieces, from: from}
	}
	return out, nil
}

// Concat stacks the rows of the pieces without reading them. All dimensions but the outermost must agree. If element
// types, rotations, or scales that the form has no room for differ, the result is f32.
func Concat(pieces ...Stored) (Stored, error) {
	if len(pieces) == 0 || len(pieces[0].Shape) == 0 {
		return Stored{}, fmt.Errorf("nothing to join")
	}
	out := Stored{
		DType: pieces[0].DType, Scale: pieces[0].Scale, Shape: slices.Clone(pieces[0].Shape),
		Rotated: pieces[0].Rotated, unrounded: pieces[0].unrounded, file: pieces[0].file, inputs: pieces[0].inputs,
	}
	out.Shape[0] = 0
	same := true
	pieces = apart(pieces)
	out.Scale = pieces[0].Scale
	for _, p := range pieces {
		if len(p.Shape) != len(out.Shape) || !slices.Equal(p.Shape[1:], out.Shape[1:]) {
			return Stored{}, fmt.Errorf("rows of shape %v do not fit below rows of shape %v", p.Shape, pieces[0].Shape)
		}
		if !p.usable() {
			return Stored{}, fmt.Errorf("element type of shape %v is not supported", p.Shape)
		}
		out.Shape[0] += p.Shape[0]
		same = same && p.DType == out.DType && p.Scale == out.Scale && p.Rotated == out.Rotated &&
			slices.Equal(p.inputs, out.inputs)
		out.Scales = append(out.Scales, p.Scales...)
	}
	if same {
		out.packed = joinBlocks(pieces)
	} else {
		out.DType, out.Scale, out.Scales, out.Rotated, out.inputs = engine.F32, 0, nil, 0, nil
		pieces = slices.Clone(pieces)
		for i, p := range pieces {
			pieces[i] = p.as(engine.F32)
		}
	}
	size := out.DType.Size()
	out.make = func(dst []byte, lo, hi int) {
		at := 0 // index of the piece's first element
		for _, p := range pieces {
			if a, b := max(lo, at), min(hi, at+p.Len()); a < b {
				p.put(dst[(a-lo)*size:(b-lo)*size], a-at, b-at)
			}
			at += p.Len()
		}
	}
	return out, nil
}

// apart returns the pieces of a matrix with their scales as those of rows, if these differ and the form of the pieces
// has room for them.
func apart(pieces []Stored) []Stored {
	differ := false
	form := func(p Stored) string {
		if p.packed != nil && p.packed.form.Factors() {
			return p.packed.form.Name
		}
		if p.packed == nil && p.narrow() {
			return p.DType.String()
		}
		return ""
	}
	for _, p := range pieces {
		if f := form(p); f == "" || f != form(pieces[0]) {
			return pieces
		}
		differ = differ || p.Scale != pieces[0].Scale || p.Scales != nil
	}
	if !differ {
		return pieces
	}
	pieces = slices.Clone(pieces)
	for i, p := range pieces {
		if p.Scales == nil {
			pieces[i].Scales = slices.Repeat([]float32{cmp.Or(p.Scale, 1)}, p.Shape[0])
		}
		pieces[i].Scale = 0
	}
	return pieces
}
