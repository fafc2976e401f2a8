package optest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"patchbay/engine"
)

// guard is the number of elements before and after every operand. It preserves the alignment of the memory.
const guard = 64

// rig provides the operands of one run of a case. Two rigs with the same case name produce the same numbers.
type rig struct {
	t       testing.TB
	ops     engine.Ops
	name    string
	dtype   engine.DType // of the activations
	gapped  bool
	rotated int // rotation group of the i8 weights that pack makes
	// i8 weights that pack makes are multiplied by x as it is
	unrounded bool
	scaled    bool // the next matrix has factors of rows
	weighed   bool // the next narrow matrix has factors of inputs
	rng       *rand.Rand
	slabs     []*slab
	other     []engine.Buf // memory that is neither checked nor compared: weights, scratch
}

// slab is the memory of one operand, including its guards and gaps.
type slab struct {
	label  string
	buf    engine.Buf
	all    engine.Tensor // the whole memory, contiguous; f64 as pairs of f32
	dtype  engine.DType
	before []float32 // contents of all before the calls
	after  []float32 // the same after them
	// view holds, for each element of all, the 1-based number of the output element that it is, or 0 where nothing may
	// be written.
	view  []int32
	count int // elements of outputs so far
}

func newRig(t testing.TB, ops engine.Ops, name string, dtype engine.DType, gapped bool) *rig {
	h := fnv.New64a()
	h.Write([]byte(strings.TrimPrefix(name, "ref: ")))
	return &rig{t: t, ops: ops, name: name, dtype: dtype, gapped: gapped, rng: rand.New(rand.NewPCG(h.Sum64(), 1))}
}

// normal draws a number from the standard normal distribution.
func (r *rig) normal() float32 { return float32(r.rng.NormFloat64()) }

// in returns an activation of normal numbers.
func (r *rig) in(label string, shape ...int) engine.Tensor {
	return r.alloc(label, r.dtype, r.normal, shape...)
}

// f32 returns an f32 input (norm weights, gates, tables) of normal numbers.
func (r *rig) f32(label string, shape ...int) engine.Tensor {
	return r.alloc(label, engine.F32, r.normal, shape...)
}

// out returns an output activation filled with NaN.
func (r *rig) out(label string, shape ...int) engine.Tensor {
	return r.writes(r.alloc(label, r.dtype, nan, shape...))
}

// inout returns an activation of normal numbers that is also written.
func (r *rig) inout(label string, shape ...int) engine.Tensor {
	return r.writes(r.in(label, shape...))
}

func nan() float32 { return float32(math.NaN()) }

// alloc makes an operand in the rig's layout. Its elements come from fill in row-major order, and everything around
// them is NaN.
func (r *rig) alloc(label string, dtype engine.DType, fill func() float32, shape ...int) engine.Tensor {
	r.t.Helper()
	padded := append([]int(nil), shape...)
	for i := range padded {
		if r.gapped {
			padded[i] += 1 + 2*(i%2) // odd gaps: rows lose their alignment
		}
	}
	n := 1
	for _, s := range padded {
		n *= s
	}
	n += 2 * guard
	buf, err := r.ops.Alloc(n * dtype.Size())
	if err != nil {
		r.t.Fatalf("%s: alloc %s: %v", r.name, label, err)
	}
	view := engine.NewTensor(buf, dtype, padded...)
	view.Off = guard
	for i, s := range shape {
		lo := (padded[i] - s + 1) / 2
		view = view.Slice(i, lo, lo+s)
	}
	s := &slab{label: label, buf: buf, dtype: dtype, all: engine.NewTensor(buf, dtype, n)}
	if dtype == engine.F64 { // transfers do not support f64: its halves are uploaded as f32
		n *= 2
		s.all = engine.NewTensor(buf, engine.F32, n)
	}
	s.before, s.view = make([]float32, n), make([]int32, n)
	for i := range s.before {
		s.before[i] = nan()
	}
	if dtype != engine.F64 {
		eachElement(view, func(_, off int) { s.before[off] = round(fill(), dtype) })
	}
	r.slabs = append(r.slabs, s)
	r.ops.Upload(s.all, s.before)
	return view
}

// round returns v rounded to dtype, which is F32 or BF16.
func round(v float32, dtype engine.DType) float32 {
	if dtype == engine.BF16 {
		return engine.F32FromBF16(engine.BF16FromF32(v))
	}
	return v
}

// writes marks the elements of t as outputs and returns t.
func (r *rig) writes(t engine.Tensor) engine.Tensor {
	for _, s := range r.slabs {
		same := s.buf.Dev == t.Buf.Dev
		if s.buf.Host != nil {
			same = &s.buf.Host[0] == &t.Buf.Host[0]
		}
		if !same {
			continue
		}
		eachElement(t, func(i, off int) {
			if s.dtype == engine.F64 {
				s.view[2*off] = int32(s.count + i + 1)
				off = 2*off + 1
			}
			s.view[off] = int32(s.count + i + 1)
		})
		s.count += t.Len()
	}
	return t
}

// eachElement calls f with the row-major index and the element offset of every element of t.
func eachElement(t engine.Tensor, f func(i, off int)) {
	if t.Len() == 0 {
		return
	}
	cols, step := t.Dim(-1), t.Stride(-1)
	for i := 0; i < t.Len(); i += cols {
		off, rest := t.Off, i/cols
		for d := t.Dims() - 2; d >= 0; d-- {
			off += rest % t.Dim(d) * t.Stride(d)
			rest /= t.Dim(d)
		}
		for c := range cols {
			f(i+c, off+c*step)
		}
	}
}

// finish downloads all slabs, frees the memory and fails the test if anything outside the outputs changed.
func (r *rig) finish() {
	r.t.Helper()
	defer func() {
		for _, b := range r.other {
			r.ops.Free(b)
		}
	}()
	for _, s := range r.slabs {
		s.after = make([]float32, len(s.before))
		if err := r.ops.Download(s.after, s.all).Wait(); err != nil {
			r.t.Fatalf("%s: download %s: %v", r.name, s.label, err)
		}
		r.ops.Free(s.buf)
		for i, was := range s.before {
			is := s.after[i]
			if s.view[i] == 0 && math.Float32bits(is) != math.Float32bits(was) && !(is != is && was != was) {
				r.t.Errorf("%s: %s: wrote where it must not: "+
					"element %d of the memory around the operand (operand starts at %d): got %g, was %g",
					r.name, s.label, i, guard, is, was)
				break
			}
		}
	}
}

// weight packs a matrix of normal numbers / sqrt(K) in the given storage type, with bias and adapters of the given
// ranks. The data starts at an odd address and, in the gapped layout, its rows have gaps, because files guarantee
// neither alignment nor density.
func (r *rig) weight(n, k, channels int, stored engine.DType, bias bool, ranks ...int) *engine.Weight {
	r.t.Helper()
	w := &engine.Weight{Name: "test.weight", Base: r.pack(n, k, channels, stored, 0)}
	if bias {
		w.Bias = r.f32("bias", n)
	}
	for _, rank := range ranks {
		w.Adapters = append(w.Adapters, engine.Adapter{
			Down: r.pack(rank, k, channels, engine.F32, 0),
			Up:   r.pack(n, rank, 0, engine.F32, 0), Scale: 0.75,
		})
	}
	return w
}

// factors returns n factors of rows if the next matrix has them, else nil.
func (r *rig) factors(n int) (out []float32) {
	if !r.scaled {
		return nil
	}
	r.scaled = false
	for range n {
		out = append(out, 0.25+r.rng.Float32())
	}
	return out
}

// pack packs a random matrix. scale is that of engine.Matrix.
func (r *rig) pack(n, k, channels int, stored engine.DType, scale float32) *engine.Packed {
	r.t.Helper()
	row := k
	if r.gapped {
		row += 3
	}
	values := make([]float32, n*row)
	for i := range values {
		values[i] = nan()
		if i%row < k {
			values[i] = r.normal() / float32(math.Sqrt(float64(k)))
		}
	}
	data := make([]byte, 1+len(values)*stored.Size())
	m := engine.Matrix{Data: data[1:], DType: stored, N: n, K: k, Row: row, Scale: scale}
	if stored == engine.I8 {
		m.Scales, m.Rotated, m.Unrounded = make([]float32, n), r.rotated, r.unrounded
		for i := range m.Scales {
			m.Scales[i] = (1 + r.rng.Float32()) / 64 / float32(math.Sqrt(float64(k)))
		}
		for i := range m.Data {
			m.Data[i] = byte(r.rng.IntN(256))
		}
	} else {
		engine.Narrow(m.Data, values, stored)
		m.Scales = r.factors(n)
	}
	p, err := r.ops.Pack(m, channels)
	if err != nil {
		r.t.Fatalf("%s: pack [%d, %d] %s: %v", r.name, n, k, stored, err)
	}
	clear(data) // Pack must have read it by now
	r.other = append(r.other, p.Buf)
	return p
}
