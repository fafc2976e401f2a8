package engine

// Matrix is a weight as it lies in a file: row-major [N, K] (convolutions: [N, KY, KX, C] flattened to K = KY*KX*C),
// any storage dtype, at any byte alignment. Rows may be fewer than in the file: a rank of a tensor group hands over
// only its slice.
type Matrix struct {
	Data  []byte // N rows, of which the first K elements are used
	DType DType
	N, K  int
	Row   int     // elements between the starts of two rows; 0 means K
	Scale float32 // factor of scaled fp8 files; 0 means 1, as it must be with Scales

	// Scales has the factor of each row: always of I8; of fp8 and Blocks with Factors nil if all are Scale.
	Scales []float32
	// Inputs has the factor of each input, by which Linear multiplies x first, rounded to its type (nvfp4 files with
	// pre_quant_scale); nil: none. Only for Blocks with Factors.
	Inputs []float32
	// For I8: the size of the groups of inputs that were rotated before the weight was rounded (see Rotate; 0: none).
	// Linear rotates the rows of x likewise and rounds them to 8 bits (see ref.QuantiseRow).
	Rotated int
	// Unrounded: Linear multiplies such a matrix, rounded to bf16, with x as it is.
	Unrounded bool

	// If Blocks is set, Data holds blocks of this format, and DType (bf16 or f32) is the type they are widened to. If
	// it is nil, Data holds elements of DType.
	Blocks *Blocks
}

// rowBytes returns the size in bytes of the given number of elements of a row.
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
	Rotated int     // as in Matrix; of I8, and of blocks of it
	Blocks  *Blocks // as in Matrix
	Layout  string  // name of the backend's layout
	// RoundsBias: some products with the matrix add the bias rounded to bf16, and convert it unless the weight has it so
	// (Weight.BiasBF16).
	RoundsBias bool
	// Buf starts with Head bytes, which depend only on type, scale, channel count and factors of inputs. PieceBytes for
	// every PieceRows rows follow, the last piece padded. Packing rows from i*PieceRows on by themselves gives the same
	// pieces, so a matrix can be assembled from parts that were packed in different places.
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
	BiasBF16 Tensor // [N] bf16, Bias rounded; absent: there is none, or products do without (Packed.RoundsBias)
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
