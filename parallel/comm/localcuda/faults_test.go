//go:build cgo && fakegpu

package localcuda_test

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaults plants mistakes in the order of streams, one at a time, and runs the check that must detect each.
func TestPlantedFaults(t *testing.T) {
	const (
		one     = "TestLocalCUDA/one device/"
		apart   = "TestLocalCUDA/devices that do not reach each other/"
		waits   = "\tmeet(streams, record(streams))\n\tif calls"
		sum     = "../../../engine/cuda/sum.go"
		ordered = one + "OrderedWithOps"
	)
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{"sources read before they are written", "collective.go", "	meet(streams, ready)\n", "	_ = ready\n", ordered, "want"},
		{"sources overwritten before they are taken", "collective.go", waits, "	if calls", ordered, "want"},
		{
			"sums of the others read too early", "collective.go", waits,
			"	if calls[0].Op != \"AllReduce\" {\n		meet(streams, record(streams))\n	}\n	if calls",
			one + "ReductionsInRankOrder", "want",
		},
		{
			"sums overwritten before they are taken", "collective.go", "		meet(streams, record(streams))\n	}\n", "	}\n", ordered,
			"want",
		},
		{
			"sums in the order of the host's arrival", "../call.go", "out[r] = Piece(c.Src, at, n)",
			"out[len(calls)-1-r] = Piece(c.Src, at, n)", one + "ReductionsInRankOrder", "want",
		},
		{
			"a part of the wrong peer", "collective.go", "comm.Total(counts[:r]), n), g", "comm.Total(counts[:r/2]), n), g",
			one + "ReductionsInRankOrder", "want",
		},
		{"a message read before it is written", "message.go", "	s.After(out.Note.ready)\n", "", ordered, "want"},
		{
			"a message overwritten before it is taken", "message.go", "			e.stream.After(out.Note.moved)\n", "", ordered, "want",
		},
		{
			"a slot used again early", "message.go", "		e.stream.After(s.Note.moved)\n", "", one + "SlotsAreNotOverwritten",
			"want",
		},
		{
			"memory filled again early", "message.go", "	s.After(in.Note.ready)\n", "",
			one + "PostsAreReadBeforeTheyAreFilledAgain", "want",
		},
		{
			"a slot read before it is filled", "message.go", "		e.stream.After(in.Note.moved)\n", "",
			one + "OffersInOrder", "want",
		},
		{
			"a prefetch that begins too early", "collective.go", "		e.async.After(event)\n", "", one + "Prefetch", "want",
		},
		{"a prefetch that is not over", "collective.go", "		e.stream.After(over)\n", "", one + "Prefetch", "want"},
		{
			"memory that is not reached read where it lies", sum, "if !o.Reaches(of[i].Stream) {\n				staging",
			"if missing < 0 {\n				staging", apart + "ReductionsInRankOrder", "does not reach",
		},
		{
			"memory freed while another device reads it", "../../../engine/cuda/driver/device.go", "	dev.links.sync()\n", "",
			"TestFreeWaitsForOtherDevices", "want",
		},
	})
}
