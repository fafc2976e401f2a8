//go:build cgo

package cuda

/*
#include "kernels/args.h"
*/
import "C"

import (
	"unsafe"

	"patchbay/engine"
)

// widenedTileBytes is the most bytes of a block-quantized weight that are widened at a time, 128 MiB: the largest layer
// of FLUX.1 is widened whole. With smaller tiles multiprocessors would idle at the end of each.
const widenedTileBytes = 128 << 20

// widenedTileStep is the number of rows that tiles are multiples of: the features of the largest tile of the tensor
// cores.
const widenedTileStep = 256

// widenedTileRows returns how many of the n rows of k elements of a block-quantized weight are widened at a time: tiles
// of about equal size that take at most o.widenedTile bytes, or widenedTileStep rows.
func (o *Ops) widenedTileRows(n, k int) int {
	most := max(1, o.widenedTile/(widenedTileStep*k*engine.BF16.Size())) * widenedTileStep
	tiles := (n + most - 1) / most
	return min(n, ((n+tiles-1)/tiles+widenedTileStep-1)/widenedTileStep*widenedTileStep)
}

// parts returns the distinct products that p is computed as: p itself or, with a block-quantized weight and more than a
// few rows of x, those of its tiles, of which the last one may be smaller.
func (o *Ops) parts(p *engine.Product) []engine.Product {
	if !p.Blocks || o.few(p.Batch*p.Rows) || p.N*p.K == 0 {
		return []engine.Product{*p}
	}
	tile := *p
	tile.Blocks, tile.N = false, o.widenedTileRows(p.N, p.K)
	last := tile
	if last.N = p.N % tile.N; last.N == 0 {
		return []engine.Product{tile}
	}
	return []engine.Product{tile, last}
}

// widenedTileRoom returns the scratch bytes of the widened rows of a part of p (see parts), 0 if it reads the weight
// itself.
func widenedTileRoom(p, part *engine.Product) int {
	if p.Blocks == part.Blocks {
		return 0
	}
	return room(part.N * part.K * engine.BF16.Size())
}

// byWidening computes a product with a block-quantized weight tile by tile: it widens a tile of rows to bf16 in scratch
// memory and multiplies it like a bf16 weight, into its columns of y.
func (o *Ops) byWidening(y, x engine.Tensor, w *engine.Weight, e engine.Epilogue) {
	rows, b := o.widenedTileRows(w.N(), w.K()), w.Base
	for from := 0; from < w.N(); from += rows {
		n := min(rows, w.N()-from)
		columns := func(t engine.Tensor) engine.Tensor {
			if t.IsZero() {
				return t
			}
			return t.Slice(t.Dims()-1, from, from+n)
		}
		tile := engine.Weight{
			Name: w.Name, Base: &engine.Packed{DType: b.DType, N: n, K: b.K, Layout: layout}, Bias: columns(w.Bias),
			BiasBF16: columns(w.BiasBF16),
		}
		for _, a := range w.Adapters {
			up := *a.Up
			up.Buf, up.N = up.Buf.Piece(from*up.PieceBytes, n*up.PieceBytes), n
			tile.Adapters = append(tile.Adapters, engine.Adapter{Down: a.Down, Up: &up, Scale: a.Scale})
		}
		out, epilogue := columns(y), e
		epilogue.Residual, epilogue.Gate = columns(e.Residual), columns(e.Gate)
		r := o.route(out, x, &tile, epilogue)
		bytes := n * b.K * engine.BF16.Size()
		if err := o.mem.need(room(bytes) + r.scratch); err != nil {
			o.Note(err)
			return
		}
		tile.Base.Buf.Dev = o.mem.take(bytes)
		o.widen(tile.Base.Buf.Dev, b, from, n)
		o.multiplied("Linear", &r, out, x, &tile, epilogue)
	}
}

// widen converts rows [from, from+n) of a block-quantized matrix to bf16.
func (o *Ops) widen(to uint64, p *engine.Packed, from, n int) {
	o.args.pack = C.struct_pb_pack{
		dst: C.pb_u64(to), src: C.pb_u64(p.Buf.Dev + uint64(from*p.PieceBytes)), rows: C.pb_i64(n), k: C.pb_i64(p.K),
		width: C.pb_i64(p.K), dst_ld: C.pb_i64(p.K), src_ld: C.pb_i64(p.PieceBytes),
		from: C.PB_BLOCKS + C.int(p.Blocks.Form()), to: C.PB_BF16, scale: 1,
	}
	o.flat(kWiden, n*p.K/8, unsafe.Pointer(&o.args.pack))
}
