package cpu

/*
#cgo noescape pb_run_pack
#cgo nocallback pb_run_pack
#include "cpu.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// packedHeader precedes the panels, or the factors of inputs as f32 before these: one cache line, so that panels stay
// aligned.
type packedHeader struct {
	scale    float32 // factor of scaled fp8 files
	channels int32   // per tap
	_        [56]byte
}

// headRows8 is the number of rows of words before the weights of an i8 panel.
const headRows8 = C.I8_HEAD

const headerBytes = int(unsafe.Sizeof(packedHeader{}))

// layout names the panel width; levels of equal width share weights, whatever the activations are.
func (o *Ops) layout() string { return fmt.Sprintf("panels%d", o.nr) }

// Pack turns m into panels of the level's width nr. f32 and f16 become [N/nr][K][nr]; bf16 becomes [N/nr][K/2][nr][2],
// pairs of neighboring channels, which are widened for f32 activations and multiplied directly with bf16 ones. An odd
// number of channels (per tap in a convolution) is padded with 0, so such a weight fits only the c it was packed for.
// i8 becomes words of four channels after the scales and sums of the columns (kernels/int8.h). Blocks, fp8 and
// unrounded i8 stay as they are, their bytes interleaved with those of other columns (kernels/blocks.h), except those
// of convolutions and of rows that are no multiple of 8. The caller owns the memory: Free(p.Buf).
func (o *Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	if err := engine.CheckPack(m, c); err != nil {
		return nil, err
	}
	m = m.Blocked(c)
	d := m.DType
	if d == engine.F8E4M3 || d == engine.F8E5M2 {
		d = engine.BF16
	}
	if c == 0 {
		c = m.K
	}
	if m.Blocks != nil && (m.Blocks.Form() == 0 || m.DType != engine.BF16) {
		m = m.Widened(m.DType)
	}
	panels, depth := (m.N+o.nr-1)/o.nr, m.K
	if d == engine.BF16 && c > 0 {
		depth = m.K / c * roundUp(c, 2)
	}
	if d == engine.I8 {
		depth = roundUp(m.K, 4) + 4*headRows8
	}
	piece := o.nr * depth * d.Size()
	if m.Blocks != nil {
		piece = o.nr * (m.K / m.Blocks.Elements * m.Blocks.Bytes)
	}
	if m.Blocks.Factors() {
		piece += 4 * o.nr
	}
	head := headerBytes + roundUp(4*len(m.Inputs), headerBytes)
	buf, err := o.Alloc(head + panels*piece)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	h := (*packedHeader)(unsafe.Pointer(&buf.Host[0]))
	h.scale, h.channels = m.Scale, int32(c)
	if m.Scale == 0 {
		h.scale = 1
	}
	p := &engine.Packed{Buf: buf, Bytes: len(buf.Host), DType: d, N: m.N, K: m.K, Layout: o.layout(), Rotated: m.Rotated}
	p.Head, p.PieceRows, p.PieceBytes, p.Blocks = head, o.nr, piece, m.Blocks
	engine.Narrow(buf.Host[headerBytes:], m.Inputs, engine.F32)
	if m.N == 0 || m.K == 0 {
		return p, nil
	}
	defer o.done()
	a := C.pb_pack{
		src: o.pin(unsafe.Pointer(&m.Data[0])), dst: panelAddr(p), n: C.int64_t(m.N), k: C.int64_t(m.K), c: C.int64_t(c),
		row: C.int64_t(m.Row),
		lut: o.table(m.DType), src_dtype: C.int32_t(m.DType), dst_dtype: C.int32_t(d),
	}
	if m.Row == 0 {
		a.row = a.k
	}
	if m.Blocks != nil {
		size := func(n C.int64_t) C.int64_t { return n / C.int64_t(m.Blocks.Elements) * C.int64_t(m.Blocks.Bytes) }
		a.k, a.row, a.src_dtype = size(a.k), size(a.row), C.PB_BLOCKS
		a.c = C.int64_t(m.Blocks.Form())
	}
	if m.Scales != nil {
		a.scales = o.pin(unsafe.Pointer(&m.Scales[0]))
	}
	per := max(1, (1<<18)/(o.nr*m.K))
	each(o.threads, (panels+per-1)/per, func(_, t int) {
		a := a
		a.p0, a.p1 = C.int64_t(t*per), C.int64_t(min(panels, (t+1)*per))
		C.pb_run_pack(o.k, &a)
	})
	return p, nil
}

// table returns the address of the bf16 values of an fp8 type, 0 for others.
func (o *Ops) table(d engine.DType) C.uint64_t {
	switch d {
	case engine.F8E4M3:
		return o.pin(unsafe.Pointer(&o.fp8[0]))
	case engine.F8E5M2:
		return o.pin(unsafe.Pointer(&o.fp8[1]))
	}
	return 0
}

// panelAddr returns the address of the first panel.
func panelAddr(p *engine.Packed) C.uint64_t {
	return C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(p.Buf.Host)))) + C.uint64_t(p.Head)
}

func headerOf(p *engine.Packed) *packedHeader {
	return (*packedHeader)(unsafe.Pointer(unsafe.SliceData(p.Buf.Host)))
}

// scaleOf returns the factor of the whole matrix.
func scaleOf(p *engine.Packed) float32 { return headerOf(p).scale }
