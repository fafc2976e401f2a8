package cpu

/*
#cgo noescape pb_run_gemm
#cgo nocallback pb_run_gemm
#include "cpu.h"
*/
import "C"

import "unsafe"

const (
	// rows of a panel per pass: a piece of 400 to 800 KB, which fits the L2 cache (docs/speed.md)
	passDepth  = 6144
	tileDepth  = 1024 // the same for products of words, which take two panels
	chunk      = 2    // panels whose sums are kept between the passes of a deeper product
	taskRows   = 112  // about as many output rows per task, which share a panel
	maxTiles   = 64   // MAX_TILES of gemm.h
	smallMacs  = 1e6  // smaller products are not worth a goroutine
	packWeight = 24   // cost of copying a value, in multiply-adds
)

// cut divides a product into tasks of up to tiles register tiles by panels panels.
type cut struct {
	tiles, panels  int // of one task
	blocks, splits int // tasks along rows and columns
}

// cutProduct finds the division of tiles x panels that minimizes the time of the slowest of the threads. The cost of a
// task is that of its multiply-adds, of copying its rows and of reading its panels.
func (o *Ops) cutProduct(tiles, panels, threads int) cut {
	best, least := cut{}, 0.0
	for t := min(tiles, taskRows/o.mr); t >= 1; t-- {
		for s := 1; s <= min(panels, 4*threads); s++ {
			c := cut{tiles: t, panels: (panels + s - 1) / s, blocks: (tiles + t - 1) / t}
			c.splits = (panels + c.panels - 1) / c.panels
			rows, cols := float64(t*o.mr), float64(c.panels*o.nr)
			rounds := (c.blocks*c.splits + threads - 1) / threads
			cost := float64(rounds) * (rows*cols + packWeight*rows + 6*cols)
			if best.tiles == 0 || cost < least*0.98 {
				best, least = c, cost
			}
			if threads == 1 {
				break
			}
		}
	}
	return best
}

// depth returns the rows of a panel that one pass takes. A single tile reads every piece only once, so it needs no
// passes.
func depth(tiles int) int {
	if tiles == 1 {
		return 1 << 40
	}
	return passDepth
}

// words reports whether s is multiplied in words of two bf16.
func (o *Ops) words(s *C.pb_seg) bool { return o.dot && s.dtype == C.PB_BF16 && s.x_dtype == C.PB_BF16 }

// together returns how many panels of s are taken at once.
func (o *Ops) together(s *C.pb_seg) C.int64_t {
	if s.blocks == 0 && (s.dtype == C.PB_I8 || o.words(s)) {
		return o.panels
	}
	return 1
}

// threadsFor returns how many workers a product of macs multiply-adds is worth.
func (o *Ops) threadsFor(macs float64) int {
	if macs*16 < smallMacs*float64(o.vw) {
		return 1
	}
	return o.threads
}

// steps returns the steps of the microkernel over the channels of a factor: pairs of channels where bf16 meets bf16.
func (o *Ops) steps(s *C.pb_seg) int {
	if o.words(s) {
		return (int(s.k) + 1) / 2
	}
	return int(s.k)
}

// linear runs the product g with the factors segs, a slice of o.segs or o.down.
func (o *Ops) linear(g C.pb_gemm, segs []C.pb_seg) {
	k, aFloats := 0, 0
	for _, s := range segs {
		k += int(s.k)
		aFloats += o.mr * roundUp(int(s.k), o.vw)
	}
	g.seg, g.nseg = o.pin(unsafe.Pointer(&segs[0])), C.int64_t(len(segs))
	perItem := (int(g.rows) + o.mr - 1) / o.mr
	g.tiles = C.int64_t(perItem)
	tiles, panels := perItem*int(g.batch), (int(g.n)+o.nr-1)/o.nr
	threads := o.threadsFor(float64(g.batch*g.rows*g.n) * float64(k))
	c := o.cutProduct(tiles, panels, threads)
	g.kc, g.chunk = C.int64_t(depth(c.tiles)), chunk
	if o.together(&segs[0]) > 1 {
		g.kc = min(g.kc, tileDepth)
	}
	if len(segs) == 1 && (o.steps(&segs[0]) <= int(g.kc) || segs[0].blocks != 0) {
		g.chunk = o.together(&segs[0])
	}
	o.fresh()
	each(threads, c.blocks*c.splits, func(worker, task int) {
		g := g
		block, split := task/c.splits, task%c.splits
		g.t0, g.t1 = C.int64_t(block*c.tiles), C.int64_t(min(tiles, (block+1)*c.tiles))
		g.p0, g.p1 = C.int64_t(split*c.panels), C.int64_t(min(panels, (split+1)*c.panels))
		o.task(&g, worker, block, c.tiles*aFloats, c.tiles)
	})
}

// fresh forgets which rows the workers hold packed.
func (o *Ops) fresh() {
	for i := range o.mem.worker {
		o.mem.worker[i].tile = -1
	}
}

// task runs g with the scratch memory of a worker. block identifies the rows that it packs: the next task of the worker
// with the same block finds them packed.
func (o *Ops) task(g *C.pb_gemm, worker, block, aFloats, tiles int) {
	w := &o.mem.worker[worker]
	g.a = numOf(w.a.need(4 * aFloats))
	g.c = numOf(w.c.need(4 * int(g.chunk) * tiles * 2 * o.mr * o.vw))
	if o.segs[0].blocks != 0 {
		g.wide = numOf(w.wide.need(4 * C.WIDE_INPUTS / 2 * o.nr))
	}
	if w.tile == block {
		g.packed = 1
	}
	w.tile = block
	C.pb_run_gemm(o.k, g)
}
