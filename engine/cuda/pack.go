//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"patchbay/engine"
	"patchbay/engine/cuda/driver"
)

// layout names the packed form: rows of K elements as f32, bf16 or f16, padded with zeros to a multiple of rowAlign;
// rows of i8, padded to 16 bytes and followed by the scale of the row and zeros; rows of blocks as in the file, padded
// to 16 bytes, and followed likewise by the scale of the row or matrix if the form has factors.
const layout = "cuda"

// rowAlign pads rows of weights to a multiple of so many elements: 16 bytes of the narrowest type.
const rowAlign = 8

// rowStride returns the elements between the starts of two packed rows of k.
func rowStride(k int) int { return (k + rowAlign - 1) / rowAlign * rowAlign }

// stored returns the type in which a weight of type d with the given scale is kept, or computed with if it is in
// blocks. fp8 becomes bf16, which holds every fp8 number; with a scale the product is rounded to bf16, which adds at
// most a sixteenth of the rounding of fp8 itself. f16 with a scale becomes f32.
func stored(d engine.DType, scale float32) engine.DType {
	switch {
	case d == engine.F8E4M3 || d == engine.F8E5M2:
		return engine.BF16
	case d == engine.F16 && scale != 1:
		return engine.F32
	}
	return d
}

// Pack implements engine.Ops. Rows pass through two buffers of pinned memory and are widened and padded on the device,
// on a stream of their own: calls issued before continue meanwhile, calls issued after wait for them.
func (o *Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	if err := engine.CheckPack(m, c); err != nil {
		return nil, fmt.Errorf("cuda %w", err)
	}
	m = m.Blocked(c)
	scaled := m.Scale != 0 && m.Scale != 1
	switch { // there are no kernels for these
	case m.Rotated > C.PB_MAX_GROUP:
		m = m.Widened(engine.BF16)
	case m.Blocks != nil && (!m.Blocks.OnGPUs() || m.Inputs != nil || m.DType != engine.BF16 || m.Rotated > 0 ||
		scaled && !m.Blocks.Factors()):
		m = m.Widened(m.DType)
	}
	row, scale := m.Row, m.Scale
	if row == 0 {
		row = m.K
	}
	if scale == 0 {
		scale = 1
	}
	to := stored(m.DType, scale)
	p := &engine.Packed{DType: to, N: m.N, K: m.K, Layout: layout, PieceRows: 1, PieceBytes: rowStride(m.K) * to.Size()}
	p.RoundsBias = to == engine.BF16 // what cuBLASLt multiplies
	switch {
	case m.Blocks != nil:
		p.PieceBytes, p.Blocks = byteRow(m.K/m.Blocks.Elements*m.Blocks.Bytes), m.Blocks
		if m.Blocks.Factors() {
			p.PieceBytes += factorRoom
		}
	case to == engine.I8:
		p.PieceBytes, p.Rotated = byteRow(m.K)+factorRoom, m.Rotated
	}
	p.Bytes = m.N * p.PieceBytes
	if line := m.K*m.DType.Size() + 2*factorRoom; line > driver.SlotBytes {
		return nil, fmt.Errorf("cuda pack: rows of %d bytes, at most %d fit through", line, driver.SlotBytes)
	}
	at, err := o.dev.Alloc(p.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cuda pack: %w", err)
	}
	p.Buf = engine.Buf{Dev: at}
	if m.N*m.K > 0 {
		err = o.OnSecondStream(func() error { return o.rows(p, m, row, scale) })
	}
	if err != nil {
		return nil, errors.Join(err, o.dev.Free(at))
	}
	return p, o.Err()
}

// rows enqueues the rows of m, which start row elements apart.
func (o *Ops) rows(p *engine.Packed, m engine.Matrix, row int, scale float32) error {
	line := m.K * m.DType.Size()
	switch b := m.Blocks; {
	case b != nil:
		return o.lines(p, func(piece []byte, i int) {
			clear(piece[copy(piece, m.Data[i*(row/b.Elements*b.Bytes):][:m.K/b.Elements*b.Bytes]):])
			factor := scale
			if m.Scales != nil {
				factor = m.Scales[i]
			}
			if b.Factors() {
				binary.LittleEndian.PutUint32(piece[len(piece)-factorRoom:], math.Float32bits(factor))
			}
		})
	case m.DType == engine.I8:
		return o.lines(p, func(piece []byte, i int) {
			clear(piece[copy(piece, m.Data[i*row:i*row+m.K]):])
			binary.LittleEndian.PutUint32(piece[byteRow(m.K):], math.Float32bits(m.Scales[i]))
		})
	}
	straight := p.DType == m.DType && scale == 1 && line == p.PieceBytes
	staged := uint64(0)
	if !straight {
		if err := o.staged.need(room(driver.SlotBytes)); err != nil {
			return err
		}
		staged = o.staged.take(driver.SlotBytes)
	}
	for from := 0; from < m.N; {
		rows := min(m.N-from, max(1, driver.SlotBytes/line))
		slot, err := o.Slot()
		if err != nil {
			return err
		}
		for i := range rows {
			src := (from + i) * row * m.DType.Size()
			copy(slot.Bytes[i*line:(i+1)*line], m.Data[src:src+line])
		}
		dst := p.Buf.Dev + uint64(from*p.PieceBytes)
		if straight {
			o.Send(dst, slot, rows*line)
		} else {
			o.Send(staged, slot, rows*line)
			o.args.pack = C.struct_pb_pack{
				dst: C.pb_u64(dst), src: C.pb_u64(staged), rows: C.pb_i64(rows), k: C.pb_i64(m.K), src_ld: C.pb_i64(m.K),
				width: C.pb_i64(rowStride(m.K)), dst_ld: C.pb_i64(rowStride(m.K)), from: C.int(m.DType), to: C.int(p.DType),
				scale: C.float(scale),
			}
			o.flat(kPack, rows*rowStride(m.K), unsafe.Pointer(&o.args.pack))
		}
		from += rows
	}
	return nil
}

// factorRoom is the number of bytes after the elements of an i8 row, and of blocks with factors: its scale as f32, and
// zeros to the next 16 bytes.
const factorRoom = 16

// byteRow rounds the k bytes of a row up to a multiple of 16.
func byteRow(k int) int { return (k + 15) / 16 * 16 }

// lines enqueues the rows of p. fill writes the bytes of one row.
func (o *Ops) lines(p *engine.Packed, fill func(piece []byte, row int)) error {
	for from := 0; from < p.N; {
		rows := min(p.N-from, max(1, driver.SlotBytes/p.PieceBytes))
		slot, err := o.Slot()
		if err != nil {
			return err
		}
		for i := range rows {
			fill(slot.Bytes[i*p.PieceBytes:(i+1)*p.PieceBytes], from+i)
		}
		o.Send(p.Buf.Dev+uint64(from*p.PieceBytes), slot, rows*p.PieceBytes)
		from += rows
	}
	return nil
}
