package engine

import (
	"fmt"
	"slices"
	"unsafe"
)

// MaxDims is the largest number of dimensions of a Tensor.
const MaxDims = 5

// Buf is a piece of memory: exactly one of Host and Dev is set. The zero Buf belongs to a recording pass, which has
// shapes but no memory.
type Buf struct {
	Host []byte // memory of this process; 64-byte aligned if from Ops.Alloc
	Dev  uint64 // device address; only the arena that owns it knows the length
}

// IsZero reports whether b refers to no memory.
func (b Buf) IsZero() bool { return b.Host == nil && b.Dev == 0 }

// Piece returns bytes [from, from+n) of b, or the zero Buf if b is zero.
func (b Buf) Piece(from, n int) Buf {
	switch {
	case b.Host != nil:
		return Buf{Host: b.Host[from : from+n : from+n]}
	case b.Dev != 0:
		return Buf{Dev: b.Dev + uint64(from)}
	}
	return Buf{}
}

// Tensor is a strided view of a Buf. It is a value: copying it copies the view, never the elements. Elements are
// row-major unless strides say otherwise; every op except Copy requires the last dimension to be contiguous (stride 1).
type Tensor struct {
	Buf    Buf
	Off    int // element offset into Buf
	DType  DType
	rank   int
	shape  [MaxDims]int
	stride [MaxDims]int // in elements
}

// NewTensor views buf as a contiguous tensor of the given shape, starting at byte 0. It panics with *ShapeError if the
// shape is invalid or does not fit into buf.Host.
func NewTensor(buf Buf, dtype DType, shape ...int) Tensor {
	t := Tensor{Buf: buf, DType: dtype, rank: len(shape)}
	if len(shape) > MaxDims {
		panic(&ShapeError{Op: "NewTensor", Rule: fmt.Sprintf("at most %d dimensions", MaxDims), Shapes: fmt.Sprint(shape)})
	}
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] < 0 {
			panic(&ShapeError{Op: "NewTensor", Rule: "no negative dimension", Shapes: fmt.Sprint(shape)})
		}
		t.shape[i], t.stride[i] = shape[i], n
		n *= shape[i]
	}
	if buf.Host != nil && n*dtype.Size() > len(buf.Host) {
		panic(&ShapeError{
			Op: "NewTensor", Rule: fmt.Sprintf("needs %d bytes, buffer has %d", n*dtype.Size(), len(buf.Host)),
			Shapes: fmt.Sprint(shape),
		})
	}
	return t
}

// FromF32 views a Go slice as a contiguous f32 tensor; the slice stays the caller's and must outlive the tensor.
func FromF32(v []float32, shape ...int) Tensor {
	var b []byte
	if len(v) > 0 {
		b = unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v))
	} else {
		b = []byte{}
	}
	return NewTensor(Buf{Host: b}, F32, shape...)
}

// IsZero reports whether t is the zero Tensor, which stands for an absent operand.
func (t Tensor) IsZero() bool { return t.rank == 0 }

// Dims returns the number of dimensions.
func (t Tensor) Dims() int { return t.rank }

// Dim returns the size of dimension i; negative i counts from the end.
func (t Tensor) Dim(i int) int { return t.shape[t.axis(i)] }

// Stride returns the distance in elements between neighbors along dimension i; negative i counts from the end.
func (t Tensor) Stride(i int) int { return t.stride[t.axis(i)] }

// axis resolves a dimension index; negative i counts from the end.
func (t *Tensor) axis(i int) int {
	if i < 0 {
		i += t.rank
	}
	return i
}

// Shape returns a copy of the dimensions (allocates; for messages and checks, not for inner loops).
func (t Tensor) Shape() []int { return append([]int(nil), t.shape[:t.rank]...) }

// Len returns the number of elements.
func (t Tensor) Len() int {
	n := 1
	for i := range t.rank {
		n *= t.shape[i]
	}
	return n
}

// Contiguous reports whether the elements lie row-major without gaps.
func (t Tensor) Contiguous() bool {
	if t.Len() == 0 {
		return true
	}
	n := 1
	for i := t.rank - 1; i >= 0; i-- {
		if t.shape[i] != 1 && t.stride[i] != n {
			return false
		}
		n *= t.shape[i]
	}
	return true
}

// Slice returns the view [lo, hi) of dimension i.
func (t Tensor) Slice(i, lo, hi int) Tensor {
	i = t.axis(i)
	if i >= t.rank || lo < 0 || hi < lo || hi > t.shape[i] {
		panic(&ShapeError{Op: "Slice", Rule: fmt.Sprintf("0 <= lo <= hi <= %d, got [%d, %d) of dimension %d", t.shape[i], lo,
			hi, i), Shapes: t.String()})
	}
	if lo < hi { // an empty view keeps its offset so that it never points past the buffer
		t.Off += lo * t.stride[i]
	}
	t.shape[i] = hi - lo
	return t
}

// Index fixes dimension i at position at and drops it.
func (t Tensor) Index(i, at int) Tensor {
	t = t.Slice(i, at, at+1)
	t.drop(t.axis(i))
	return t
}

// drop removes dimension i.
func (t *Tensor) drop(i int) {
	copy(t.shape[i:], t.shape[i+1:t.rank])
	copy(t.stride[i:], t.stride[i+1:t.rank])
	t.rank--
	t.shape[t.rank], t.stride[t.rank] = 0, 0
}

// Split replaces dimension i of size n by dimensions of the given sizes (their product is n): [L, 3*H*D] -> [L, 3, H,
// D].
func (t Tensor) Split(i int, sizes ...int) Tensor {
	i = t.axis(i)
	n := 1
	for _, s := range sizes {
		n *= s
	}
	if n != t.shape[i] || t.rank+len(sizes)-1 > MaxDims {
		panic(&ShapeError{Op: "Split", Rule: fmt.Sprintf("sizes %v do not make dimension %d", sizes, i), Shapes: t.String()})
	}
	u := t
	u.rank = t.rank + len(sizes) - 1
	step := t.stride[i]
	for k, size := range slices.Backward(sizes) {
		u.shape[i+k], u.stride[i+k] = size, step
		step *= size
	}
	copy(u.shape[i+len(sizes):u.rank], t.shape[i+1:t.rank])
	copy(u.stride[i+len(sizes):u.rank], t.stride[i+1:t.rank])
	return u
}

// Merge joins dimensions i and i+1, which must be adjacent in memory: [B, L, H, D] -> [B, L, H*D].
func (t Tensor) Merge(i int) Tensor {
	i = t.axis(i)
	if i+1 >= t.rank || (t.shape[i] > 1 && t.shape[i+1] > 1 && t.stride[i] != t.shape[i+1]*t.stride[i+1]) {
		panic(&ShapeError{
			Op: "Merge", Rule: fmt.Sprintf("dimensions %d and %d must be adjacent in memory", i, i+1),
			Shapes: t.String(),
		})
	}
	if t.shape[i+1] != 1 {
		t.stride[i] = t.stride[i+1]
	}
	t.shape[i] *= t.shape[i+1]
	t.drop(i + 1)
	return t
}

// Transpose swaps dimensions i and j of the view (for Copy; other ops want a contiguous last dimension).
func (t Tensor) Transpose(i, j int) Tensor {
	t.shape[i], t.shape[j] = t.shape[j], t.shape[i]
	t.stride[i], t.stride[j] = t.stride[j], t.stride[i]
	return t
}

// Unsqueeze inserts a dimension of size 1 at position i.
func (t Tensor) Unsqueeze(i int) Tensor {
	if t.rank == MaxDims {
		panic(&ShapeError{Op: "Unsqueeze", Rule: fmt.Sprintf("at most %d dimensions", MaxDims), Shapes: t.String()})
	}
	step := 1
	if i < t.rank {
		step = t.shape[i] * t.stride[i]
	}
	copy(t.shape[i+1:], t.shape[i:t.rank])
	copy(t.stride[i+1:], t.stride[i:t.rank])
	t.shape[i], t.stride[i] = 1, step
	t.rank++
	return t
}

// Broadcast repeats dimension i, which has size 1, n times without copying (stride 0). Only inputs may be broadcast.
func (t Tensor) Broadcast(i, n int) Tensor {
	i = t.axis(i)
	if t.shape[i] != 1 {
		panic(&ShapeError{Op: "Broadcast", Rule: fmt.Sprintf("dimension %d must have size 1", i), Shapes: t.String()})
	}
	t.shape[i], t.stride[i] = n, 0
	return t
}

// F32 returns the elements of a contiguous host f32 tensor without copying. Backends and tests use it; all other code
// reads through Ops.Download.
func (t Tensor) F32() []float32 {
	if t.DType != F32 || t.Buf.Host == nil || !t.Contiguous() {
		panic(&ShapeError{Op: "F32", Rule: "contiguous host f32 tensor", Shapes: t.String()})
	}
	n := t.Len()
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&t.Buf.Host[4*t.Off])), n)
}

// Start returns the element offset of item i, counted row-major over the first dims dimensions: of row i, with all
// dimensions but the last.
func (t Tensor) Start(i, dims int) int {
	at := t.Off
	for d := dims - 1; d >= 0; d-- {
		at += i % t.shape[d] * t.stride[d]
		i /= t.shape[d]
	}
	return at
}

// Same reports whether t and u view the same elements in the same shape; absent tensors are the same.
func (t Tensor) Same(u Tensor) bool {
	return t.Buf.Dev == u.Buf.Dev && unsafe.SliceData(t.Buf.Host) == unsafe.SliceData(u.Buf.Host) && t.Off == u.Off &&
		t.DType == u.DType && t.rank == u.rank && t.shape == u.shape && t.stride == u.stride
}

// Bytes returns the size of the elements in bytes, gaps of strided views not counted.
func (t Tensor) Bytes() int { return t.Len() * t.DType.Size() }

// String returns dtype, shape and, where not contiguous, strides: "f32[1 84 192]".
func (t Tensor) String() string {
	if t.IsZero() {
		return "none"
	}
	s := fmt.Sprintf("%s%v", t.DType, t.shape[:t.rank])
	if !t.Contiguous() {
		s += fmt.Sprintf("/%v", t.stride[:t.rank])
	}
	return s
}

// ShapeError is the panic value for misuse of shapes or dtypes, which is a bug in the caller. Package parallel/scope
// turns it into a failed job.
type ShapeError struct {
	Op     string // method of Ops or Tensor
	Rule   string // the rule that was broken
	Shapes string // operands
}

// Error returns "op: rule: operands".
func (e *ShapeError) Error() string { return e.Op + ": " + e.Rule + ": " + e.Shapes }
