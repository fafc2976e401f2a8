//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaultsOfProducts plants mistakes in the use of cuBLASLt and checks that the tests notice each.
func TestPlantedFaultsOfProducts(t *testing.T) {
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"leading dimensions swapped", "lt/lt.c", "(uint64_t)s->k, (uint64_t)s->n, s->ldw",
			"(uint64_t)s->k, (uint64_t)s->n, s->ldx", "TestLibrary", "and shapes refused",
		},
		{
			"rows for columns", "lt/lt.c", "&p->y, PB_LT_R_16BF, (uint64_t)s->n, (uint64_t)s->m,",
			"&p->y, PB_LT_R_16BF, (uint64_t)s->m, (uint64_t)s->n,", "TestLibrary", "operands that do not fit together",
		},
		{
			"a bias that is f32", "lt.go",
			"		o.convert(c.Bias, driver.Address(op, w.Bias), p.N, engine.BF16, engine.F32)\n",
			"		c.Bias = driver.Address(op, w.Bias)\n", "TestLibrary", "got",
		},
		{
			"a workspace too small", "lt/lt.go", "C.uint64_t(c.Workspace), C.uint64_t(d.Space)",
			"C.uint64_t(c.Workspace), C.uint64_t(1024)", "TestLibrary", "a workspace that is too small",
		},
		{
			"a workspace over the bias", "lt.go", "		c.Bias = o.mem.take(2 * p.N)\n", "		c.Bias = c.Workspace\n", "TestLibrary",
			"got NaN",
		},
		{
			"no stream", "lt/lt.go", "C.pb_lt_matmul(d.c, C.uint64_t(stream),", "C.pb_lt_matmul(d.c, 0*C.uint64_t(stream),",
			"TestLibrary",
			"not a stream",
		},
		{
			"the residual is not added", "lt.go", "driver.Address(op, e.Residual), 1\n	} else {",
			"driver.Address(op, e.Residual), 0\n	} else {", "TestLibrary", "got",
		},
		{
			"the bias of a gated product twice", "lt.go", "	pl.bias = p.Bias && !(pl.aside && p.Act == engine.ActNone)\n",
			"	pl.bias = p.Bias\n", "TestLibrary", "got",
		},
		{
			"whatever the library says", "lt.go", "!(diff <= bound*whole)", "diff < 0", "TestLibraryThatIsWrong", "got",
		},
		{
			"sums that grow with their depth", "lt.go", "Alpha: 3 / float32(math.Sqrt(float64(k))),",
			"Alpha: float32(min(1, math.Sqrt(float64(k)))),", "TestLibraryThatIsWrong", "no_",
		},
		{
			"a failing query is an error", "lt.go", "			o.chosen.unplannedProducts++\n", "			o.Note(err)\n",
			"TestLibraryThatFails", "cublasLtMatmulAlgoGetHeuristic",
		},
		{
			"plans that Reserve does not make", "reserve.go", "o.routeOf(&part)", "_ = part", "TestLibraryReserved",
			"allocations",
		},
		{
			"a workspace that is not forecast", "lt.go", "bytes := room(dev.lt.Space) +", "bytes :=", "TestLibraryReserved",
			"more scratch memory than it asked for",
		},
		{"adapters left out", "lt.go", "		o.items(r.low, low,", "		o.items(r.low, low, 0*", "TestLibrary", "got"},
		{
			"adapters' products not added", "lt.go", "		c.Beta = 1\n", "", "TestLibrary", "got",
		},
		{
			"a strip's lines not the picture's", "image.go", "seen.Buf.Dev, x, y, a, (b*y.Dim(1)+from)*y.Dim(2)",
			"seen.Buf.Dev, x, y, a, b*y.Dim(1)*y.Dim(2)", "TestLibraryConvolves", "got",
		},
	})
}
