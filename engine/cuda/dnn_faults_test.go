//go:build cgo && fakegpu

package cuda

import (
	"testing"

	"patchbay/tests/fakegpu"
)

// TestPlantedFaultsOfAttention plants mistakes in the use of cuDNN and checks that the tests notice each.
func TestPlantedFaultsOfAttention(t *testing.T) {
	const fine, wrong, reserved = "TestAttentionByCUDNN", "TestCUDNNThatIsWrong", "TestAttentionByCUDNNReserved"
	fakegpu.Faults(t, []struct{ Name, File, Old, New, Test, Want string }{
		{
			"strides of rows and heads swapped", "dnn/dnn.c", "{t[0], t[2], t[1], 1};", "{t[0], t[1], t[2], 1};", fine,
			"counted",
		},
		{"keys' strides for the values", "dnn/dnn.c", "s->q, s->k, s->v, s->o}", "s->q, s->k, s->k, s->o}", fine, "counted"},
		{"dimensions in our order", "dnn/dnn.c", "dims[] = {s->b, s->h, i", "dims[] = {s->h, s->b, i", fine, "counted"},
		{"queries counted as keys", "dnn/dnn.c", "i == K || i == V ?", "i == V ?", fine, "counted"},
		{
			"no scale", "dnn/dnn.c",
			"  if (tensor(dnn, &p->tensor[SCALE], SCALE, PB_DNN_FLOAT, one, one, true, e)) return e->code;\n", "", fine,
			"counted",
		},
		{
			"a scale in device memory", "dnn/dnn.c", "PB_DNN_FLOAT, one, one, true, e)", "PB_DNN_FLOAT, one, one, false, e)",
			fine,
			"counted",
		},
		{
			"the wrong scale", "dnn.go", "o.sdpa.on.Attend(p, scale, at, o.mem.take(dnn.Space))\n	o.chosen",
			"o.sdpa.on.Attend(p, scale*1.2, at, o.mem.take(dnn.Space))\n	o.chosen", fine, "got",
		},
		{"no statistics", "dnn/dnn.c", "  if (!s->stats) return 0;\n", "  if (s->d) return 0;\n", fine, "counted"},
		{
			"statistics by the strides of rows", "dnn/dnn.c", "{s->lse[0], s->lse[1], 1, 1}", "{s->lse[1], s->lse[0], 1, 1}",
			fine, "counted",
		},
		{
			"statistics not asked for", "dnn/dnn.c", "int64_t count = p->stats ? STATS : SCALE;", "int64_t count = STATS;", fine,
			"counted",
		},
		{"keys and values swapped", "dnn/dnn.c", "AT(q), AT(k), AT(v)", "AT(q), AT(v), AT(k)", fine, "counted"},
		{
			"no workspace", "dnn/dnn.c", "  SET(dnn, pack, PB_DNN_PACK_WORKSPACE, PB_DNN_TYPE_VOID_PTR, 1, &workspace);\n", "",
			fine, "counted",
		},
		{
			"a workspace that is not forecast", "reserve.go", "bytes = max(bytes, room(dnn.Space))", "_ = dnn.Space", reserved,
			"promised",
		},
		{"plans that Reserve does not make", "reserve.go", "			o.plan(a)\n", "			_ = a\n", reserved, "plans before"},
		{
			"no stream", "dnn/dnn.c", "cudnnSetStream(v.handle, (cudaStream_t)(uintptr_t)stream)", "cudnnSetStream(v.handle, 0)",
			fine, "not a stream",
		},
		{"whatever the library says", "dnn.go", "!(diff <= bound*whole)", "diff < 0", wrong + "/scale", "got"},
		{"sums that are not compared", "dnn.go", "err == nil && s.Sums", "err == nil && s.Sums && s.B < 0", wrong, "counted"},
		{
			"a handle made during a capture", "dnn.go",
			"		o.dev.CaptureMu.Lock() // the library may wait for the whole device\n" +
				"		o.sdpa.on, err = o.sdpa.lib.On(o.Stream)\n		o.dev.CaptureMu.Unlock()\n",
			"		o.sdpa.on, err = o.sdpa.lib.On(o.Stream)\n", "TestCUDNNBesideACapture", "refused:1",
		},
		{
			"copies of all results", "dnn.go", "sampleOf(lq, 256), sampleOf(h, 2)", "sampleOf(lq, lq), sampleOf(h, h)",
			"TestCUDNNOnAFullCard", "unplanned:1",
		},
		{"a mask that the library does not see", "dnn.go", "!a.Plain || ", "", fine, "got"},
		{
			"compared on one item alone", "dnn.go", "	o.attend(flashKernel(d), flashQueries, s,",
			"	one := *s\n	one.B = 1\n	o.attend(flashKernel(d), flashQueries, &one,", fine, "counted",
		},
	})
}
