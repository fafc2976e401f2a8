//go:build cgo

package cuda

/*
#include "shim.h"
#include "kernels/args.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"unsafe"

	"patchbay/engine"
)

// Upload implements engine.Ops: src is rounded into pinned memory at once and copied from there when the stream gets to
// it.
func (o *Ops) Upload(dst engine.Tensor, src []float32) {
	engine.CheckUpload(dst, len(src))
	size := dst.DType.Size()
	to := uint64(address("Upload", dst))
	for len(src) > 0 {
		n := min(len(src), ringBytes/size)
		p, err := o.up.take()
		if err != nil {
			o.note(err)
			return
		}
		engine.Narrow(p.bytes, src[:n], dst.DType)
		o.send(to, p, n*size)
		to += uint64(n * size)
		src = src[n:]
	}
}

// Download implements engine.Ops: the elements are copied to pinned memory in stream order and widened by Wait.
func (o *Ops) Download(dst []float32, src engine.Tensor) engine.Pending {
	engine.CheckDownload(len(dst), src)
	if len(dst) == 0 {
		err := o.err
		return engine.NewPending(func() error { return err })
	}
	size, dtype := len(dst)*src.DType.Size(), src.DType
	p, err := o.receiver(size)
	o.note(err)
	if o.err == nil {
		o.note(try(func(e *C.pb_error) {
			C.pb_download(o.dev.c, o.stream, p.at, C.uint64_t(address("Download", src)), C.uint64_t(size), e)
		}))
		o.record(p)
	}
	if err := o.err; err != nil {
		return engine.NewPending(func() error { return err })
	}
	finished, broken := false, error(nil)
	return engine.NewPending(func() error {
		if finished {
			return broken
		}
		if err := o.dev.wait(p); err != nil {
			return err
		}
		if broken = o.ending(); broken == nil {
			engine.Widen(dst, p.bytes[:size], dtype)
		}
		finished = true
		select {
		case o.done <- p:
		default:
			return cmp.Or(broken, o.dev.release(p))
		}
		return broken
	})
}

// receiver returns pinned memory of at least the given bytes that no download uses.
func (o *Ops) receiver(bytes int) (*pinned, error) {
	o.takeBack()
	for i, p := range o.down {
		if len(p.bytes) >= bytes && len(p.bytes) <= 4*bytes+4096 {
			o.down = append(o.down[:i], o.down[i+1:]...)
			return p, nil
		}
	}
	return o.dev.newPinned(receiverBytes(bytes))
}

// takeBack collects the buffers that Wait is done with.
func (o *Ops) takeBack() {
	for {
		select {
		case p := <-o.done:
			o.down = append(o.down, p)
		default:
			return
		}
	}
}

// layout names the packed form: rows of K elements, filled up with zeros to a multiple of rowAlign, as f32, bf16 or
// f16.
const layout = "cuda"

// rowAlign is the number of elements that rows of weights are filled up to: 16 bytes of the narrowest type.
const rowAlign = 8

// rowStride returns the elements between the starts of two packed rows of k.
func rowStride(k int) int { return (k + rowAlign - 1) / rowAlign * rowAlign }

// stored returns the type that a weight of type d and the given factor is kept in. fp8 becomes bf16, which holds every
// fp8 number; with a factor the product is rounded to bf16, a sixteenth of the rounding of fp8 itself. An f16 with a
// factor becomes f32.
func stored(d engine.DType, scale float32) engine.DType {
	switch {
	case d == engine.F8E4M3 || d == engine.F8E5M2:
		return engine.BF16
	case d == engine.F16 && scale != 1:
		return engine.F32
	}
	return d
}

// Pack implements engine.Ops. Rows pass through pinned memory and are widened and padded on the device.
func (o *Ops) Pack(m engine.Matrix, c int) (*engine.Packed, error) {
	if err := engine.CheckPack(m, c); err != nil {
		return nil, fmt.Errorf("cuda %w", err)
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
	p.Bytes = m.N * p.PieceBytes
	at, err := o.dev.alloc(p.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cuda pack: %w", err)
	}
	p.Buf = engine.Buf{Dev: at}
	line := m.K * m.DType.Size()
	if line > ringBytes {
		return nil, fmt.Errorf("cuda pack: rows of %d bytes, at most %d fit through", line, ringBytes)
	}
	if m.N*m.K == 0 {
		return p, o.err
	}
	if err := o.mem.need(room(ringBytes)); err != nil {
		return nil, err
	}
	staged := o.mem.take(ringBytes)
	for from := 0; from < m.N; {
		rows := min(m.N-from, max(1, ringBytes/line))
		slot, err := o.up.take()
		if err != nil {
			return nil, err
		}
		for i := range rows {
			src := (from + i) * row * m.DType.Size()
			copy(slot.bytes[i*line:(i+1)*line], m.Data[src:src+line])
		}
		dst := at + uint64(from*p.PieceBytes)
		if to == m.DType && scale == 1 && line == p.PieceBytes {
			o.send(dst, slot, rows*line)
		} else {
			o.send(staged, slot, rows*line)
			o.args.pack = C.struct_pb_pack{
				dst: C.pb_u64(dst), src: C.pb_u64(staged), rows: C.pb_i64(rows), k: C.pb_i64(m.K), src_ld: C.pb_i64(m.K),
				width: C.pb_i64(rowStride(m.K)), dst_ld: C.pb_i64(rowStride(m.K)), from: C.int(m.DType), to: C.int(to),
				scale: C.float(scale),
			}
			o.flat(kPack, rows*rowStride(m.K), unsafe.Pointer(&o.args.pack))
		}
		from += rows
	}
	return p, o.err
}
