//go:build cgo

package cuda

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaultsOfProducts are mistakes in the use of cuBLASLt.
func TestPlantedFaultsOfProducts(t *testing.T) {
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"leading dimensions swapped", "lt.c", "(uint64_t)s->k, (uint64_t)s->n, s->ldw",
			"(uint64_t)s->k, (uint64_t)s->n, s->ldx", "TestLibrary", "and shapes refused",
		},
		{
			"rows for columns", "lt.c", "&p->y, PB_LT_R_16BF, (uint64_t)s->n, (uint64_t)s->m,",
			"&p->y, PB_LT_R_16BF, (uint64_t)s->m, (uint64_t)s->n,", "TestLibrary", "operands that do not fit together",
		},
		{
			"a bias that is f32", "lt.go",
			"		o.convert(c.bias, uint64(address(op, w.Bias)), p.N, engine.BF16, engine.F32)\n",
			"		c.bias = uint64(address(op, w.Bias))\n", "TestLibrary", "got",
		},
		{
			"a workspace too small", "lt.go", "C.uint64_t(c.workspace), C.uint64_t(o.dev.blas.space)",
			"C.uint64_t(c.workspace), C.uint64_t(1024)", "TestLibrary", "a workspace that is too small",
		},
		{
			"a workspace over the bias", "lt.go", "		c.bias = o.mem.take(2 * p.N)\n", "		c.bias = c.workspace\n", "TestLibrary",
			"got NaN",
		},
		{
			"no stream", "lt.go", "C.pb_lt_matmul(o.dev.blas.c, C.uint64_t(stream),",
			"C.pb_lt_matmul(o.dev.blas.c, 0*C.uint64_t(stream),", "TestLibrary",
			"not a stream",
		},
		{
			"the residual is not added", "lt.go", "uint64(address(op, e.Residual)), 1\n	} else {",
			"uint64(address(op, e.Residual)), 0\n	} else {", "TestLibrary", "got",
		},
		{
			"the bias of a gated product twice", "lt.go", "	pl.bias = p.Bias && !(pl.aside && p.Act == engine.ActNone)\n",
			"	pl.bias = p.Bias\n", "TestLibrary", "got",
		},
		{
			"whatever the library says", "lt.go", "!(diff <= bound*whole)", "diff < 0", "TestLibraryThatIsWrong", "got",
		},
		{
			"plans that Reserve does not make", "reserve.go", "o.routeOf(&part)", "_ = part", "TestLibraryReserved",
			"allocations",
		},
		{
			"a workspace that is not forecast", "lt.go", "bytes := room(b.space) +", "bytes :=", "TestLibraryReserved",
			"more scratch memory than it asked for",
		},
		{"adapters left out", "lt.go", "		o.items(r.low, low,", "		o.items(r.low, low, 0*", "TestLibrary", "got"},
		{
			"adapters' products not added", "lt.go", "		c.beta = 1\n", "", "TestLibrary", "got",
		},
		{
			"a strip's lines not the picture's", "conv.go", "seen.Buf.Dev, x, y, a, (b*y.Dim(1)+from)*y.Dim(2)",
			"seen.Buf.Dev, x, y, a, b*y.Dim(1)*y.Dim(2)", "TestLibraryConvolves", "got",
		},
	})
}
