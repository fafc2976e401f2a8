//go:build cgo && fakegpu

package nccl

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaults plants mistakes in the order of streams and calls, one at a time, and runs the check for each.
func TestPlantedFaults(t *testing.T) {
	t.Setenv("FAKEGPU_PATIENCE", "5")
	const (
		slots  = "TestNCCL/SlotsAreNotOverwritten"
		awaits = "TestNCCL/AwaitWaits"
		posts  = "TestNCCL/PostsAreReadBeforeTheyAreFilledAgain"
	)
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"an exchange on the wrong stream", "collective.go", "	e.collective(c, e.stream)",
			"	e.collective(c, e.aside(&e.async))", "TestNCCL/OrderedWithOps", "want",
		},
		{
			"a receive without its send", "collective.go", "all.Exchange(rank, on.Stream, src, dst)",
			"all.Exchange(rank, on.Stream, src[:1], dst)", "TestNCCL/AllGather", "deadlock",
		},
		{
			"sums in NCCL's order", "collective.go", "if all := e.group.wires.all; e.Size() == 2 {",
			"if all := e.group.wires.all; e.Size() >= 2 {", "TestNCCL/ReductionsInRankOrder", "want",
		},
		{"a prefetch that is not over", "collective.go", "		follow(e.stream, e.async)\n", "", "TestNCCL/Prefetch", "want"},
		{"a slot used again early", "message.go", "		e.stream.After(s.Note)\n", "", slots, "want"},
		{
			"a slot sent before it is filled", "message.go", "	follow(on, e.stream)\n	edge := e.edges()[e.Rank()]",
			"	edge := e.edges()[e.Rank()]", posts, "want",
		},
		{"a slot read before it is filled", "message.go", "	e.stream.After(in.Note)\n", "", awaits, "want"},
		{
			"memory filled again early", "message.go", "	follow(on, e.stream)\n	edge := e.edges()[from]",
			"	edge := e.edges()[from]", posts, "want",
		},
		{
			"calls without their group", "../../../engine/cuda/nccl/nccl_shim.c",
			"call = \"ncclGroupStart\";\n  ncclResult_t r = n->ncclGroupStart(), end;",
			"call = \"ncclGroupStart\";\n  ncclResult_t r = PB_NCCL_SUCCESS, end;", "TestEvenExchanges",
			"while something is in progress",
		},
		{
			"a host that does not wait until it is connected", "wires.go", "for looks := 0; pending && err == nil; looks++ {",
			"for looks := 0; pending && err != nil; looks++ {", "TestEvenExchanges", "in progress",
		},
		{
			"an exchange whose host sleeps", "../../../engine/cuda/nccl/nccl_shim.c", "soon = 200000,", "soon = -1,",
			"TestExchangesAreEnqueued", "in progress after their call",
		},
		{
			"a host that goes on while an exchange is in progress", "../../../engine/cuda/nccl/nccl_shim.c",
			"if (*pending) return settle(n, communicator, pending, e);", "if (*pending) return *pending = 0;",
			"TestEvenExchanges", "while something is in progress",
		},
		{
			"messages that take all multiprocessors", "nccl.go", "limits[1+i] = edgeLimit", "limits[1+i] = 0", posts,
			"multiprocessors",
		},
		{
			"messages behind the tail of products", "../../../engine/cuda/sum.go", "o.dev.newOps(true)", "o.dev.newOps(false)",
			posts, "without priority",
		},
		{"broken communicators in use again", "wires.go", " && !w.broken()", "", "TestCommunicatorsAreKept", "want"},
		{
			"other processes are not told of an abort", "end.go", "		g.talk.abort(cause)", "		_ = g.talk",
			"TestEndsBetween", "deadlock: a peer",
		},
		{
			"results of an exchange that was aborted", "end.go", "		e.stream.Break(", "		_ = (", "TestAbortedResultsAreErrors",
			"want",
		},
	})
}
