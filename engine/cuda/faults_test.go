//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaults builds kernels for the fake device with one mistake each and runs the test that must notice it.
func TestPlantedFaults(t *testing.T) {
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"residual's stride for y", "linear.cu", "a.y + b * a.ybs + l * a.yls + c, v, n, vec);\n}",
			"a.y + b * a.rbs + l * a.rls + c, v, n, vec);\n}", "TestEveryTile", "got",
		},
		{
			"weights closer together", "linear.cu", "w[i] = (const bf16*)f.w + row * f.ld;",
			"w[i] = (const bf16*)f.w + row * f.k;", "TestEveryTile", "",
		},
		{
			"gate before the activation", "linear.cu", "  if (a.act) {\n",
			"  if (a.gate) {\n    load8(t, (const float*)a.gate + b / a.gate_per * a.gate_s + c, n, vec);\n    for (int i = " +
				"0; i < 8; i++) v[i] = activate(v[i] * t[i], a.act) / t[i];\n  } else if (a.act) {\n", "TestEveryTile", "got",
		},
		{"a missing wait", "linear.cu", "      copy_wait<STAGES - 2>();\n", "", "TestEveryTile", ""},
		{
			"a wait for one group too few", "linear.cu", "copy_wait<STAGES - 2>();", "copy_wait<STAGES - 1>();",
			"TestEveryTile", "got NaN",
		},
		{
			"a missing commit", "linear.cu", "      copy_commit();\n      const bf16 *sx", "      const bf16 *sx",
			"TestEveryTile", "",
		},
		{
			"no barrier before a stage is read", "linear.cu", "      __syncthreads();\n      if (next == first)",
			"      if (next == first)", "TestEveryTile", "got NaN",
		},
		{
			"no barrier before the stages become the epilogue's", "linear.cu", "    copy_wait<0>();\n    __syncthreads();\n",
			"    copy_wait<0>();\n", "TestEveryTile", "got",
		},
		{
			"an adapter's rows by the wrong columns", "linear.cu",
			"point(a, a.f[1], first);\n      if (next < steps) load(a, a.f[next >= first], s + next % STAGES",
			"point(a, a.f[1], 0);\n      if (next < steps) load(a, a.f[next >= first], s + next % STAGES",
			"TestEveryTile", "got",
		},
		{
			"a row too many", "linear.cu", "if (row >= m || col >= a.n) continue;\n        float v[8];",
			"if (row > m || col >= a.n) continue;\n        float v[8];", "TestEveryTile", "wrote beside",
		},
		{
			"activations that are not rotated", "quantise.cu", "fetch(s, x + from, n, a.group);\n      for (int i = " +
				"threadIdx.x; i < n; i += blockDim.x)\n        q[", "fetch(s, x + from, n, 0);\n      for (int i = " +
				"threadIdx.x; i < n; i += blockDim.x)\n        q[", "TestRoundedExactly", "got",
		},
		{
			"a quotient by the exact scale", "quantise.cu", "by = narrowed(scale, T());", "by = scale;",
			"TestRoundedExactly", "got",
		},
		{
			"the maximum of one warp", "quantise.cu", "i < (int)(blockDim.x >> 5); i++) top", "i < 1; i++) top",
			"TestRoundedExactly", "got",
		},
		{
			"a factor for all features", "linear.cu", "(col + e) * a.f[0].ld + a.f[0].k", "col * a.f[0].ld + a.f[0].k",
			"TestRoundedExactly", "got",
		},
		{
			"adapters over the residual", "int8.go", "if a.res != 0 {", "if a.res == 1 {", "TestRoundedProducts", "got",
		},
		{
			"scratch without the rounded rows", "linear.go", " + roundedRoom(p)", "", "TestReserve", "scratch memory",
		},
		{"blocks too close together", "linear.cu", "k / 256 * 210", "k / 256 * 208", "TestWidenedBits", "got"},
		{
			"blocks without their minimum", "linear.cu", "& 1) << 4)), m);", "& 1) << 4)), 0 * m);",
			"TestWidenedBits/Q4_K", "got",
		},
		{
			"the minimum of another group", "linear.cu", "s[g + 4] >> 4 | s[g] >> 6 << 4", "s[g + 4] >> 4 | s[g - 4] >> 6 << 4",
			"TestWidenedBits/Q5_K", "got",
		},
		{
			"widened in registers, not rounded", "linear.cu", "w[i] = widen(__float2bfloat16_rn(w[i]));", "w[i] = w[i];",
			"TestBlockProducts", "got",
		},
		{
			"a product before its weight is widened", "blocks.go",
			"		o.widen(tile.Base.Buf.Dev, b, from, n)\n		o.multiplied(\"Linear\", &r, out, x, &tile, epilogue)\n",
			"		o.multiplied(\"Linear\", &r, out, x, &tile, epilogue)\n		o.widen(tile.Base.Buf.Dev, b, from, n)\n",
			"TestBlockProducts", "got",
		},
		{
			"the first rows for every tile", "blocks.go", "p.Buf.Dev + uint64(from*p.PieceBytes)", "p.Buf.Dev",
			"TestWidenedBits", "got",
		},
		{
			"the first adapter rows for every tile", "blocks.go", "Piece(from*up.PieceBytes,", "Piece(0,",
			"TestBlockProducts", "got",
		},
		{"a tile's gate for all columns", "blocks.go", ", columns(e.Gate)", ", e.Gate", "TestBlockProducts", ""},
		{
			"scratch without the widened rows", "reserve.go", "widenedTileRoom(&p, &part)+", "", "TestReserve",
			"took memory",
		},
		{
			"the other buffer's values", "attend.cu", "sv + s * KEYS * row + at(kk", "sv + (s ^ 1) * KEYS * row + at(kk",
			"TestEveryHead", "got",
		},
		{
			"a wait for keys too few", "attend.cu", "      copy_wait<2>();  // queries", "      copy_wait<3>();  // queries",
			"TestEveryHead", "got NaN",
		},
		{
			"a missing commit of keys", "attend.cu", "lk, KEYS, a.d);\n      copy_commit();\n      copy_wait<2>();  // queries",
			"lk, KEYS, a.d);\n      copy_wait<2>();  // queries", "TestEveryHead", "",
		},
		{
			"no barrier before the keys are read", "attend.cu",
			"copy_wait<2>();  // queries and these keys are there\n      __syncthreads();", "copy_wait<2>();",
			"TestEveryHead", "got NaN",
		},
		{
			"no barrier before the values are read", "attend.cu",
			"      copy_wait<2>();  // these values are there\n      __syncthreads();", "      copy_wait<2>();",
			"TestEveryHead", "got",
		},
		{
			"a key too many", "attend.cu", "if (key >= lk || (MASKED", "if (key > lk || (MASKED",
			"TestEveryHead/.*/.*/lse", "got",
		},
		{
			"the causal mask hides the diagonal", "attend.cu", "a.causal && key > query)", "a.causal && key >= query)",
			"TestEveryHead", "got",
		},
		{
			"the sums of the old maximum", "attend.cu", "sum[r] = sum[r] * f + t;", "sum[r] = sum[r] + t;",
			"TestEveryHead", "got",
		},
		{
			"halves of bf16 away from zero", "cuda_bf16.h", "0x7fff + ((u >> 16) & 1)", "0x8000",
			"TestConformance/late/Copy", "error",
		},
		{
			"a fast division in the codes", "quantise.cu", "e4m3_code(__fdiv_rn(widen(x[c]), s))",
			"e4m3_code(widen(x[c]) * __fdiv_rn(1.f, s))", "TestConformance/late/Quantise", "error",
		},
		{
			"heads of the last round left out", "heads.cu", "rounds = (count + per_warp - 1) / per_warp",
			"rounds = max(1, count / per_warp)", "TestConformance/late/QKNormRoPE", "error",
		},
		{
			"rows in pieces without the first element taken off", "norm.cu", "v[j][i] = __fsub_rn(v[j][i], pivot);",
			"v[j][i] = __fsub_rn(v[j][i], 0 * pivot);",
			"TestPiecesHaveTheSameBits", "other bits",
		},
		{
			"a sum over the first element that others still need", "norm.cu",
			"    __syncthreads();  // the sum may be written over its first element\n", "",
			"TestPiecesHaveTheSameBits", "other bits",
		},
		{
			"a norm of what is not stored", "norm.cu", "v[2 * i] = pair_low(a.v[i]);\n    v[2 * i + 1]",
			"float t = pair_low(a.v[i]);\n    if (t) v[2 * i + 1]", "TestPiecesHaveTheSameBits", "other bits",
		},
		{
			"a norm written over what a sum reads", "rows.go", "return !out.meets(sum, a, b, gate, bias)",
			"return !out.meets(sum, a, gate, bias)", "TestSumsJoinNorms", "got",
		},
		{
			"a norm behind another one from a later row on", "norm.cu", "norm_rows<T>(a.second, a.rows)",
			"norm_rows<T>(a.second, 0)", "TestSumsJoinNorms", "",
		},
		{
			"a norm of an address before its memory", "rows.go", "		l.k, l.x, l.args = typed(kNormPair, d)",
			"		p.second.x.at -= C.pb_u64(C.pb_i64(o.held.x*d.Size()) * a.x.stride[3])\n" +
				"		l.k, l.x, l.args = typed(kNormPair, d)",
			"TestSumsJoinNorms/and_a_norm_of_other_memory", "bytes before memory",
		},
		{
			"a norm beside the sum that it reads", "rows.go", "!sum.meets(x, w, shift) &&", "!sum.meets(w, shift) &&",
			"TestSumsJoinNorms", "",
		},
		{
			"image normalised as text", "heads.cu", "l < a.split ? part.w : part.w2", "part.w", "TestHeadsJoin", "got",
		},
		{
			"heads beside those that they read", "rows.go", "	return !of(a, p.dst, &p.ds)",
			"	return true || !of(a, p.dst, &p.ds)", "TestHeadsJoin", "want 2",
		},
		{
			"the bias of the first tile", "blocks.go", "BiasBF16: columns(w.BiasBF16),", "BiasBF16: columns(w.BiasBF16),\n}\n" +
				"if !w.BiasBF16.IsZero() {\ntile.BiasBF16 = w.BiasBF16.Slice(0, 0, n)",
			"TestRoundedBias", "other bits",
		},
		{
			"a sum after the call that follows", "driver/stream.go", "	s.Flush()\n	if s.err != nil {", "	if s.err != nil {",
			"TestSumsJoinNorms", "got",
		},
		{
			"a sum after its memory is freed", "scratch.go", "	if s.flush != nil {", "	if false {",
			"TestHeldSumsKeepTheirMemory", "",
		},
		{
			"a capture that never began", "driver/capture.go", "s.capture = err == nil", "s.capture = true",
			"TestMarksAfterARefusedCapture", "after the stream ran, want 1",
		},
		{
			"slices added in the wrong item", "image.cu", "(item * a.slices + s) * 2 + which",
			"(item + s * a.slices) * 2 + which", "TestConformance/late/GroupNorm", "error",
		},
		{
			"the context is not set", "driver/shim.c", "    CALL((d)->driver, cuCtxSetCurrent, (d)->context);      \\\n", "",
			"TestManyThreads", "context",
		},
		{
			"shared memory is not asked for", "driver/shim.c", "if (shared > 48 << 10)", "if (shared > 480 << 10)",
			"TestEveryTile",
			"bytes of shared memory, allowed are 49152",
		},
		{
			"pinned memory reused early", "driver/pinned.go", "return p, r.dev.wait(p)", "return p, nil", "TestUploadsInARow",
			"got",
		},
		{"weights read before they are there", "driver/stream.go", "	s.After(end)\n", "", "TestPackBeside", "got NaN"},
		{
			"weights on the stream that computes", "driver/stream.go", "	s.at = s.aloft\n", "", "TestPackBeside",
			"waited for all",
		},
		{"a copy's event is not recorded", "driver/pinned.go", "	p.used = true\n", "", "TestUploadsInARow", "got"},
		{
			"freed before the stream is done", "driver/device.go",
			"	if err := dev.Sync(); err != nil {\n		return err\n	}\n	dev.links.sync()",
			"	dev.links.sync()", "TestFreeWaits", "got",
		},
		{
			"zeros that other streams do not see", "driver/stream.go",
			"	if err := s.Drain(); err != nil {\n		return engine.Buf{}, errors.Join(err, s.dev.Free(at))\n	}\n", "",
			"TestAllocIsZeroForAll", "got",
		},
		{
			"a download read before it is there", "driver/transfer.go",
			"cmp.Or(s.dev.wait(p), s.ending())", "s.ending()", "TestUploadsInARow", "got",
		},
		{
			"an odd row left out by the grid", "linear.go", "(m+t.m-1)/t.m, (r.n", "max(1, m/t.m), (r.n",
			"TestEveryTile", "got",
		},
		{"the wrong stride of the keys", "attention.go", "ks: long(s.K)", "ks: long(s.Q)", "TestEveryHead", ""},
		{
			"every strip written to the first lines", "image.go", "out, e := part(y), engine.Epilogue{}",
			"out, e := y.Index(0, b).Slice(0, 0, n), engine.Epilogue{}", "TestStrips", "got",
		},
		{
			"scratch without the adapters of a layer", "linear.go", "return adapterRoom(p.Batch*p.Rows, p.N, p.Ranks,",
			"return adapterRoom(p.Batch*p.Rows, p.N, 0,", "TestReserve", "more scratch memory than it asked for",
		},
		{
			"scratch without the adapters of a convolution", "reserve.go",
			"K: c.K, Ranks: c.Ranks,", "K: c.K, Ranks: 0,",
			"TestReserve", "took memory",
		},
		{
			"scratch for the probabilities alone", "attention.go", "return room(4*rows*ld) + room(2*rows*ld) + room(2*d*ld)",
			"return room(2 * rows * ld)", "TestReserve", "more scratch memory than it asked for",
		},
		{
			"one pinned buffer for two downloads", "driver/transfer.go", "i < 2 && download > 0", "i < 1 && download > 0",
			"TestReserve", "took memory",
		},
		{
			"marks that are issued, not reached", "driver/mark.go", "return n - int64(uint32(n)-low)", "_ = low\n	return n",
			"TestMarks", "marked",
		},
		{
			"marks of 32 bits", "driver/mark.go", "return n - int64(uint32(n)-low)", "_ = n\n	return int64(low)",
			"TestMarks", "marked",
		},
		{
			"an event used again too early", "driver/stamp.go", "dev.timed.put(c.last)\n		}\n		c.last",
			"dev.timed.put(s.event)\n		}\n		c.last", "TestStamps", "",
		},
		{"times of the last stamp alone", "driver/stamp.go", "c.now += ", "c.now = ", "TestStamps", "after"},
		{
			"free and whole memory swapped", "driver/device.go", "return int64(f), int64(t), err",
			"return int64(t), int64(f), err",
			"TestLocation", "memory",
		},
		{
			"queries of the first strip again", "attention.go",
			"queries, results := q.Index(2, h).Index(0, b).Slice(0, from, from+n)",
			"queries, results := q.Index(2, h).Index(0, b).Slice(0, 0, n)", "TestStrips", "got",
		},
		{
			"hidden keys in the softmax", "attention.go", "			valid = a.KeyLen[b]", "			valid = min(lk, a.KeyLen[b]+1)",
			"TestEveryHead/.*/.*/lse", "got",
		},
		{
			"Q and O strides swapped", "attention.go", "os: long(s.O)", "os: long(s.Q)",
			"TestEveryHead", "",
		},
		{
			"rows that do not move", "graph.go", "	o.copyMoving(g.fixed, moving)\n", "", "TestGraphs", "other bits",
		},
		{
			"a graph on scratch memory that has moved", "graph.go", " && g.scratch == o.mem.at", "", "TestGraphsMove",
			"replayed: true, want false",
		},
		{
			"a mark in a graph", "driver/mark.go", "	if !s.capture {\n", "	{\n", "TestGraphs", "replayed: false",
		},
		{
			"places too close", "graph.go", "a.ds[3], a.ds[4], a.ss[3], a.ss[4] = C.pb_i64(room(size)/per)",
			"a.ds[3], a.ds[4], a.ss[3], a.ss[4] = C.pb_i64(size/per)", "TestCopyMoving", "got",
		},
		{
			"a capture that others must keep out of", "driver/shim.c", "STREAM(stream), PB_CAPTURE_RELAXED",
			"STREAM(stream), PB_CAPTURE_GLOBAL", "TestGraphsBeside", "capture",
		},
	})
}
