package engine

// Act names an activation function.
type Act uint8

// The activations. GELUTanh is 0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3))), GELUErf is 0.5x(1+erf(x/sqrt 2)), SiLU is
// x/(1+exp(-x)), QuickGELU is x/(1+exp(-1.702x)), ReLU is max(x, 0), Sigmoid is 1/(1+exp(-x)).
const (
	ActNone Act = iota
	GELUTanh
	GELUErf
	SiLU
	QuickGELU
	ReLU
	Sigmoid
)

// Epilogue is what Linear does with the product before it is stored: y = Residual + Gate * act(x W^T + bias).
type Epilogue struct {
	Act      Act
	Residual Tensor // same shape as y, may be y itself; absent: 0
	Gate     Tensor // [G, N] f32, G divides B (see the rule of modulation rows in Ops); absent: 1
	NoBias   bool   // leave the weight's bias out (partial sums of a tensor group)
}

// QKNorm is the per-head normalization of queries and keys.
type QKNorm struct {
	Kind           NormKind
	QScale, KScale Tensor // [D] f32 weights; absent: 1
	QBias, KBias   Tensor // [D] f32, LayerNorm only; absent: 0
	Eps            float32
}

// NormKind selects the normalization.
type NormKind uint8

// The normalizations: NoNorm passes values through, RMSNorm is x*rsqrt(mean(x^2)+eps)*w, LayerNorm is
// (x-mean)*rsqrt(var+eps)*w+b.
const (
	NoNorm NormKind = iota
	RMSNorm
	LayerNorm
)

// RoPE holds rotation tables for the rows of one call: cos and sin [L, D/2] f32. Pairs are neighbors (2i, 2i+1):
// (a, b) -> (a cos - b sin, a sin + b cos) (RoFormer, arXiv:2104.09864, eq. 34). Absent tables: no rotation.
type RoPE struct {
	Cos, Sin Tensor
}

// AttentionArgs are the options of Attention.
type AttentionArgs struct {
	Scale  float32 // factor of q.k; 0 means 1/sqrt(D)
	Causal bool    // query i sees keys <= i (Lq = Lk)
	Bias   Tensor  // [H, Lq, Lk] f32 added to the scaled scores (T5 relative positions); absent: 0
	KeyLen []int   // valid keys of each batch item, nil: all. Items with 0 keys give 0.
	LSE    Tensor  // [B, H, Lq] f32, receives log-sum-exp of the scores when present (ring attention); -Inf where no key
}

// ConvArgs are the options of Conv2D: kernel size, stride, and zero padding in pixels on each side.
type ConvArgs struct {
	KY, KX                   int
	Stride                   int
	Top, Bottom, Left, Right int
	Residual                 Tensor // same shape as y, added before storing; absent: 0
}

// Pending is a host read that may not have happened yet.
type Pending struct {
	wait func() error
}

// NewPending makes a Pending of a function that blocks until the data is in host memory; nil means it already is.
func NewPending(wait func() error) Pending { return Pending{wait: wait} }

// Wait blocks until the data is there. It returns the device's error, if any.
func (p Pending) Wait() error {
	if p.wait == nil {
		return nil
	}
	return p.wait()
}

// Ops is the specification of everything our models compute, one method per fused operation. A value is bound to one
// stream of one device: calls run in issue order and every call may return before it has run. The host sees results
// only through Download(...).Wait(). Misuse of shapes panics with *ShapeError before anything runs; the checks are
// shared (check.go). Activations are f32 or bf16 (all operands of one call alike unless said otherwise), norms, tables,
// gates, biases and statistics are f32, sums accumulate in f32 or better.
//
// Rule of modulation rows: where x is [B, L, E] and a vector operand is [G, E], G divides B and item b uses row
// b/(B/G). Aliasing: outputs may be one of the inputs only where the method says so. Views with batch and row strides
// are allowed everywhere.
type Ops interface {
	// Name names backend and level for logs, e.g. "cpu/avx2" or "ref".
	Name() string

	// Alloc takes bytes of zeroed memory from the device, 64-byte aligned. It is called for the memory of arenas, never
	// within a step.
	Alloc(bytes int) (Buf, error)
	// Free releases memory of Alloc once the calls issued so far have run. Calls of another Ops that use it must be
	// synced first.
	Free(Buf)
	// Sync blocks until every call issued so far has run and returns the device's error, if any. Memory that this Ops has
	// written may be read by another one afterwards, and memory that it has read may be written or freed.
	Sync() error
	// Pack turns a stored matrix into the backend's layout. m.Data is read before Pack returns. Convolution weights come
	// as [N, KY*KX*C]; c is the channel count (0 for a linear weight), so that tails can be padded per tap.
	Pack(m Matrix, c int) (*Packed, error)

	// Upload copies src into dst (contiguous f32 or bf16). src may be reused at once.
	Upload(dst Tensor, src []float32)
	// Download copies src (contiguous, f32 or bf16) to dst, which is filled when Wait returns.
	Download(dst []float32, src Tensor) Pending
	// Copy copies and converts between tensors of equal shape and any strides, also of the last dimension. No overlap.
	Copy(dst, src Tensor)
	// Fill sets every element of dst.
	Fill(dst Tensor, v float32)

	// Linear computes y = e.Residual + e.Gate * e.Act(x W^T + bias + adapters of w); x [B, L, K] or [L, K], y [B, L, N]
	// or [L, N]. y may alias e.Residual, not x. Tolerance against ref: 2e-6 * sqrt(K) relative to max|y|.
	Linear(y, x Tensor, w *Weight, e Epilogue)
	// LayerNorm computes y = (x-mean)*rsqrt(var+eps)*w + b over the last dimension; w, b [E] f32 may be absent. y may be
	// x.
	LayerNorm(y, x, w, b Tensor, eps float32)
	// AdaLN computes y = (x-mean)*rsqrt(var+eps)*(1+scale) + shift; x, y [B, L, E]; shift, scale [G, E] f32, either may be
	// absent. y may be x.
	AdaLN(y, x, shift, scale Tensor, eps float32)
	// RMSNorm computes y = x*rsqrt(mean(x^2)+eps)*w over the last dimension; w [E] f32 may be absent. y may be x.
	RMSNorm(y, x, w Tensor, eps float32)
	// GatedAdd computes y = x + gate*(r + bias); x, r, y [B, L, E]; gate [G, E] f32 and bias [E] f32 may be absent (1 and
	// 0). y may be x or r.
	GatedAdd(y, x, gate, r, bias Tensor)
	// Add computes y = a + b; b has the shape of a, or is [1, L, E] or [1, 1, E] and is repeated. y may be a.
	Add(y, a, b Tensor)
	// Activate computes y = act(x). y may be x.
	Activate(y, x Tensor, act Act)
	// ActivateMul computes y = act(a) * b (gated feed-forward, arXiv:2002.05202). y may be a or b.
	ActivateMul(y, a, b Tensor, act Act)

	// QKNormRoPE normalizes and rotates heads and stores them: dq = rope(norm(q)), dk = rope(norm(k)), dv = v. All are
	// [B, L, H, D] views; q, k, v usually lie in one [B, L, 3, H, D] buffer, dq, dk, dv may be q, k, v themselves (in
	// place) or slots of an exchange buffer: packing for an all-to-all is this op with other destinations. v and dv may
	// be absent. r.Cos, r.Sin [L, D/2] belong to the rows of the call. q and dq may be absent too (keys only).
	QKNormRoPE(dq, dk, dv, q, k, v Tensor, n QKNorm, r RoPE)
	// Attention computes o = softmax(scale * q k^T + bias) v per head; o, q [B, Lq, H, D]; k, v [B, Lk, H, D]. o must not
	// alias q, k, v.
	Attention(o, q, k, v Tensor, a AttentionArgs)
	// MergeAttention folds a second partial result into the first (online softmax, arXiv:2310.01889, sec. 2):
	// o [B, Lq, H, D], lse [B, H, Lq] f32 are updated with o2, lse2 computed over other keys.
	MergeAttention(o, lse, o2, lse2 Tensor)

	// Quantise stores rows of D elements in 8 bits: scale = max|x| / 448 of each row, q = x / scale as the nearest E4M3
	// number, ties to even (the format: arXiv:2209.05433, table 1, and OCP 8-bit Floating Point Specification 1.0; 448
	// is its largest number, which is why nothing saturates). x [..., D], q of its shape, scale [...] f32. All
	// arithmetic is f32, so that every backend gives the same bits. A row whose scale would be subnormal becomes zeros;
	// a row with a NaN or an infinity gets scale NaN and dequantizes to NaN.
	Quantise(q, scale, x Tensor)
	// Dequantise reverses Quantise: y = q * scale; y [..., D]. Against x the error of an element is at most 2^-4 of its
	// magnitude or 2^-10 scale, whichever is larger.
	Dequantise(y, q, scale Tensor)

	// Gather copies table rows: y[i] = table[ids[i]], table [V, E] of any weight dtype, y [L, E]. ids are read before
	// Gather returns.
	Gather(y, table Tensor, ids []int32)
	// MeanRows computes y[b] = mean over l of x[b, l]; x [B, L, E], y [B, E].
	MeanRows(y, x Tensor)

	// Conv2D convolves x [B, Y, X, C] with w [N, KY*KX*C] into y [B, Y', X', N], channels last, zero padding, Y' =
	// (Y+Top+Bottom-KY)/Stride+1.
	Conv2D(y, x Tensor, w *Weight, a ConvArgs)
	// GroupNormStats writes stats [B, G, 2] f64: sum and sum of squares of x [B, Y, X, C] over each group of C/G
	// channels. For a picture split into bands, an all-reduce adds up their stats before GroupNormApply.
	GroupNormStats(stats, x Tensor, groups int)
	// GroupNormApply computes y = act((x-mean)*rsqrt(var+eps)*w + b) with mean and var from stats over count elements per
	// group. y may be x.
	GroupNormApply(y, x, stats, w, b Tensor, count int, eps float32, act Act)
	// Upsample2x repeats every pixel twice in both directions: x [B, Y, X, C] -> y [B, 2Y, 2X, C].
	Upsample2x(y, x Tensor)
}
