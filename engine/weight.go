package engine

import "slices"

// Matrix is a weight as it lies in a file: row-major [N, K] (convolutions: [N, KY, KX, C] flattened to K = KY*KX*C),
// any storage dtype, at any byte alignment. Rows may be fewer than in the file: a rank of a tensor group hands over
// only its slice.
type Matrix struct {
	Data  []byte // N rows, of which the first K elements are used
	DType DType
	N, K  int
	Row   int     // elements between the starts of two rows; 0 means K
	Scale float32 // factor of scaled fp8 files; 0 means 1

	// Of I8: the factor of every row, and of how many inputs a group is that was rotated before the weight was rounded
	// (Rotate; 0: none). Linear rounds the rows of x to 8 bits in the same basis (see ref.QuantiseRow).
	Scales  []float32
	Rotated int

	// Blocks: Data holds blocks of this form, and DType (bf16 or f32) is what they are widened to; nil: elements of DType.
	Blocks *Blocks
}

// Blocks is a form in which so many neighbouring elements of a row share factors (GGUF). Backends that know the form by
// its name keep it in memory and widen it when they multiply, others when they pack; the values are the same.
type Blocks struct {
	Name            string // as the file format calls it, e.g. "Q4_K"
	Elements, Bytes int    // of one block
	// Widen widens whole blocks: len(dst) is a multiple of Elements.
	Widen func(dst []float32, src []byte)
}

// Form numbers the forms that backends multiply as they are, from 1 on: Q8_0, Q4_0, Q4_K, Q5_K, Q6_K; 0: another, or b
// is nil.
func (b *Blocks) Form() int {
	if b == nil {
		return 0
	}
	return 1 + slices.Index([]string{"Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K"}, b.Name)
}

// rowBytes returns the bytes of so many elements of a row.
func (m *Matrix) rowBytes(elements int) int {
	if m.Blocks != nil {
		return elements / m.Blocks.Elements * m.Blocks.Bytes
	}
	return elements * m.DType.Size()
}

// Packed is a matrix in the layout one backend reads fastest. Only that backend looks inside. It is immutable and
// shared by ranks.
type Packed struct {
	Buf     Buf
	Bytes   int   // size of Buf
	DType   DType // storage type; f32, bf16, f16 or i8
	N, K    int
	Rotated int     // as in Matrix
	Blocks  *Blocks // as in Matrix
	Layout  string  // name of the backend's layout
	// Head bytes of Buf come first, which depend on type, factor and channels alone; then PieceBytes for every PieceRows
	// rows, the last piece filled up. Rows [i*PieceRows, ...) packed alone give the same pieces, so that a matrix can be
	// put together of parts that were packed in several places.
	Head, PieceRows, PieceBytes int
}

// Adapter is a low-rank addition to a weight: y += Scale * Up(Down(x)). Down is [R, K], Up is [N, R].
type Adapter struct {
	Down, Up *Packed
	Scale    float32
}

// Weight is what Linear and Conv2D multiply with: a shared packed base, an optional bias and the adapters of one handle
// (LoRA). Nothing is ever merged into the base, so handles with different adapters share it.
type Weight struct {
	Name     string // checkpoint name, for error texts
	Base     *Packed
	Bias     Tensor // [N] f32, absent when zero
	Adapters []Adapter
}

// N returns the number of output features.
func (w *Weight) N() int { return w.Base.N }

// K returns the number of input features.
func (w *Weight) K() int { return w.Base.K }

// Ranks returns the sum of the ranks of the adapters.
func (w *Weight) Ranks() int {
	r := 0
	for i := range w.Adapters {
		r += w.Adapters[i].Down.N
	}
	return r
}
