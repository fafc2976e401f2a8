package rank

import (
	"time"

	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// timed is a Comm whose calls become spans of a profile: the time of a call is transfer and waiting together.
type timed struct {
	comm.Comm
	ops *profile.Ops
}

func (t timed) call(op string, f func()) {
	before, end := t.Comm.Traffic().Bytes, t.ops.Begin("exchange", op)
	f()
	end(t.Comm.Traffic().Bytes - before)
}

func (t timed) AllToAll(dst, src engine.Tensor, recv, send []int) {
	t.call("AllToAll", func() { t.Comm.AllToAll(dst, src, recv, send) })
}

func (t timed) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	t.call("SendRecv", func() { t.Comm.SendRecv(dst, from, src, to) })
}

func (t timed) Offer(slot, src engine.Tensor, to int) {
	t.call("Offer", func() { t.Comm.Offer(slot, src, to) })
}

func (t timed) Await(dst engine.Tensor, from int) {
	t.call("Await", func() { t.Comm.Await(dst, from) })
}

func (t timed) Fetched() {
	t.call("Fetched", func() { t.Comm.Fetched() })
}

func (t timed) AllGather(dst, src engine.Tensor, counts []int) {
	t.call("AllGather", func() { t.Comm.AllGather(dst, src, counts) })
}

func (t timed) ReduceScatter(dst, src engine.Tensor, counts []int) {
	t.call("ReduceScatter", func() { t.Comm.ReduceScatter(dst, src, counts) })
}

func (t timed) AllReduce(buf engine.Tensor) {
	t.call("AllReduce", func() { t.Comm.AllReduce(buf) })
}

// measured returns the operations and comms of a session that is profiled: zero is the start of the profile in
// nanoseconds of Unix time.
func measured(ops engine.Ops, comms [plan.AxisCount]comm.Comm, rank int, zero int64) (engine.Ops,
	[plan.AxisCount]comm.Comm,
) {
	p := profile.Wrap(ops, rank, time.Unix(0, zero))
	for a, c := range comms {
		comms[a] = timed{c, p}
	}
	return p, comms
}

// layer names the layer that following operations belong to, where the session is profiled.
func layer(env dit.Env, name string) {
	if p, ok := env.Ops.(*profile.Ops); ok {
		p.Layer(name)
	}
}

// spans returns what the session's profile has recorded.
func spans(ops engine.Ops) []profile.Span {
	if p, ok := ops.(*profile.Ops); ok {
		return p.Spans()
	}
	return nil
}
