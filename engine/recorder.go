package engine

import "fmt"

// Recorder is an Ops that computes nothing: it checks the shapes of every call and records it. Together with measuring
// arenas it determines memory sizes and arithmetic of a pass before anything is allocated; its tensors have shapes but
// no memory. It is not safe for concurrent use.
type Recorder struct {
	Through
	Calls      map[string]int   // calls by method name
	Linears    []LinearShape    // in call order; the products of adapters follow their layer as entries of their own
	Attentions []AttentionShape // in call order
	Convs      []ConvShape      // in call order
	Products   map[Product]bool // the distinct calls of Linear
	Allocated  int              // bytes requested from Alloc
	Downloads  int              // elements that the host reads
	Uploads    int              // elements that the host writes
	Read       int              // elements of the largest Download
	Gathered   int              // rows of the largest Gather
	Groups     int              // most groups of one group norm, over all items of the batch
	Moving     int              // most bytes that one Replay copies, each tensor rounded up to 256
}

// LinearShape is one product of Linear: Rows x K times K x N, with adapters whose ranks add up to Ranks.
type LinearShape struct{ Rows, N, K, Ranks int }

// AttentionShape is one call of Attention: B items, H heads of D, Lq queries and Lk keys.
type AttentionShape struct {
	B, H, Lq, Lk, D int
	DType           DType
	Q, K, V, O      [3]int // strides of item, row and head in elements
	Sums            bool   // the log-sum-exp is requested
	LSE             [2]int // strides of item and head of the log-sum-exp
	Plain           bool   // no causal mask, bias or key lengths
}

// AttentionOf describes a call of Attention.
func AttentionOf(o, q, k, v Tensor, a AttentionArgs) AttentionShape {
	strides := func(t Tensor) [3]int { return [3]int{t.Stride(0), t.Stride(1), t.Stride(2)} }
	s := AttentionShape{
		B: q.Dim(0), H: q.Dim(2), Lq: q.Dim(1), Lk: k.Dim(1), D: q.Dim(3), DType: q.DType,
		Q: strides(q), K: strides(k), V: strides(v), O: strides(o), Sums: !a.LSE.IsZero(),
		Plain: !a.Causal && a.Bias.IsZero() && a.KeyLen == nil,
	}
	if s.Sums {
		s.LSE = [2]int{a.LSE.Stride(0), a.LSE.Stride(1)}
	}
	return s
}

// ConvShape is one call of Conv2D: Pixels output pixels (of all items) in output pictures of Width x Height, N output
// channels, K = KY*KX*C, with adapters whose ranks add up to Ranks.
type ConvShape struct {
	Pixels, N, K         int
	Width, Height, Ranks int
	DType                DType
}

// Product is a call of Linear as a backend plans it.
type Product struct {
	Batch, Rows, N, K, Ranks int
	X, Y, Residual           [2]int // strides of item and row in elements, 0 for an absent residual
	XType, YType, Weight     DType
	Act                      Act
	Gated, Added, Bias       bool // there is a gate, a residual, a bias
	Blocks                   bool // the weight is block-quantized (Matrix.Blocks)
}

// ProductOf describes a call of Linear.
func ProductOf(y, x Tensor, w *Weight, e Epilogue) Product {
	p := Product{
		Batch: 1, Rows: x.Dim(-2), N: w.N(), K: w.K(), Ranks: w.Ranks(), XType: x.DType, YType: y.DType,
		Weight: w.Base.DType, Act: e.Act, Gated: !e.Gate.IsZero(), Added: !e.Residual.IsZero(),
		Bias: !e.NoBias && !w.Bias.IsZero(), Blocks: w.Base.Blocks != nil,
	}
	if x.Dims() == 3 {
		p.Batch = x.Dim(0)
	}
	strides := func(t Tensor) (s [2]int) {
		switch t.Dims() {
		case 3:
			s[0] = t.Stride(0)
			fallthrough
		case 2:
			s[1] = t.Stride(-2)
		}
		return s
	}
	p.X, p.Y, p.Residual = strides(x), strides(y), strides(e.Residual)
	return p
}

// NewRecorder makes an empty recorder.
func NewRecorder() *Recorder {
	r := &Recorder{Calls: map[string]int{}, Products: map[Product]bool{}}
	r.Do = func(op string, check func(), _ func(Ops)) {
		check()
		r.Calls[op]++
	}
	return r
}

var (
	_ Ops      = (*Recorder)(nil)
	_ Replayer = (*Recorder)(nil)
)

// Name returns "recorder".
func (*Recorder) Name() string { return "recorder" }

// Alloc notes the size and returns a Buf without memory.
func (r *Recorder) Alloc(bytes int) (Buf, error) {
	r.Calls["Alloc"]++
	r.Allocated += bytes
	return Buf{}, nil
}

func (r *Recorder) Free(Buf) { r.Calls["Free"]++ }

func (r *Recorder) Sync() error { r.Calls["Sync"]++; return nil }

// Pack checks m and returns a Packed without memory.
func (r *Recorder) Pack(m Matrix, c int) (*Packed, error) {
	r.Calls["Pack"]++
	if err := CheckPack(m, c); err != nil {
		return nil, fmt.Errorf("recorder %w", err)
	}
	m = m.Blocked(c)
	row := m.rowBytes(m.K)
	return &Packed{
		Bytes: m.N * row, DType: m.DType, N: m.N, K: m.K, Layout: "recorder", PieceRows: 1, PieceBytes: row,
		Rotated: m.Rotated, Blocks: m.Blocks,
	}, nil
}

func (r *Recorder) Upload(dst Tensor, src []float32) {
	r.Through.Upload(dst, src)
	r.Uploads += len(src)
}

// Download notes the call; dst keeps its contents.
func (r *Recorder) Download(dst []float32, src Tensor) Pending {
	CheckDownload(len(dst), src)
	r.Calls["Download"]++
	r.Downloads += len(dst)
	r.Read = max(r.Read, len(dst))
	return NewPending(nil)
}

// Linear notes the call, the shape of its product and of its adapters.
func (r *Recorder) Linear(y, x Tensor, w *Weight, e Epilogue) {
	r.Through.Linear(y, x, w, e)
	rows := 1
	for i := range x.Dims() - 1 {
		rows *= x.Dim(i)
	}
	r.Linears = append(r.Linears, LinearShape{rows, w.N(), w.K(), w.Ranks()})
	r.Products[ProductOf(y, x, w, e)] = true
	for _, a := range w.Adapters {
		r.Linears = append(r.Linears, LinearShape{rows, a.Down.N, a.Down.K, 0}, LinearShape{rows, a.Up.N, a.Up.K, 0})
	}
}

// Attention notes the call and its shape.
func (r *Recorder) Attention(o, q, k, v Tensor, a AttentionArgs) {
	r.Through.Attention(o, q, k, v, a)
	r.Attentions = append(r.Attentions, AttentionOf(o, q, k, v, a))
}

func (r *Recorder) Gather(y, table Tensor, ids []int32) {
	r.Through.Gather(y, table, ids)
	r.Gathered = max(r.Gathered, len(ids))
}

// Conv2D notes the call and its shape.
func (r *Recorder) Conv2D(y, x Tensor, w *Weight, a ConvArgs) {
	r.Through.Conv2D(y, x, w, a)
	r.Convs = append(r.Convs, ConvShape{
		y.Dim(0) * y.Dim(1) * y.Dim(2), w.N(), w.K(), y.Dim(2), y.Dim(1), w.Ranks(), x.DType,
	})
}

func (r *Recorder) GroupNormStats(stats, x Tensor, groups int) {
	r.Through.GroupNormStats(stats, x, groups)
	r.Groups = max(r.Groups, x.Dim(0)*groups)
}

func (r *Recorder) GroupNormApply(y, x, stats, w, b Tensor, count int, eps float32, act Act) {
	r.Through.GroupNormApply(y, x, stats, w, b, count, eps, act)
	r.Groups = max(r.Groups, x.Dim(0)*stats.Dim(1))
}

// Replay issues the calls of f and notes the size of the moving tensors.
func (r *Recorder) Replay(_ string, moving []Tensor, f func([]Tensor) error) (bool, error) {
	const piece = 256
	n := 0
	for i := range moving {
		n += (moving[i].Bytes() + piece - 1) / piece * piece
	}
	r.Moving = max(r.Moving, n)
	return false, f(moving)
}

func (r *Recorder) Between(call func()) { call() }

func (r *Recorder) Drop() {}
