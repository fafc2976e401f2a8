package rank

import (
	"time"

	"patchbay/engine"
	"patchbay/engine/profile"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
)

// around is a Comm whose exchanges, except Post, go through call.
type around struct {
	comm.Comm
	call func(c comm.Comm, op string, f func())
}

func (w around) Run(c *comm.Call) { w.call(w.Comm, c.Op, func() { w.Comm.Run(c) }) }

func (w around) Begin(c *comm.Call) { w.call(w.Comm, "Begin "+c.Op, func() { w.Comm.Begin(c) }) }

func (w around) Fetched() { w.call(w.Comm, "Fetched", w.Comm.Fetched) }

func (w around) SendRecv(dst engine.Tensor, from int, src engine.Tensor, to int) {
	w.call(w.Comm, "SendRecv", func() { w.Comm.SendRecv(dst, from, src, to) })
}

func (w around) Offer(slot, src engine.Tensor, to int) {
	w.call(w.Comm, "Offer", func() { w.Comm.Offer(slot, src, to) })
}

func (w around) Await(dst engine.Tensor, from int) {
	w.call(w.Comm, "Await", func() { w.Comm.Await(dst, from) })
}

// watch returns comms whose exchanges, except Post, go through call.
func watch(comms [plan.AxisCount]comm.Comm, call func(c comm.Comm, op string, f func())) [plan.AxisCount]comm.Comm {
	for a, c := range comms {
		comms[a] = around{c, call}
	}
	return comms
}

// measured returns the operations and comms of a profiled session. Exchanges become spans whose time is transfer and
// waiting together. zero is the start of the profile in nanoseconds of Unix time.
func measured(ops engine.Ops, comms [plan.AxisCount]comm.Comm, rank int, zero int64) (engine.Ops,
	[plan.AxisCount]comm.Comm,
) {
	p := profile.Wrap(ops, rank, time.Unix(0, zero))
	return p, watch(comms, func(c comm.Comm, op string, f func()) {
		before, end := c.Traffic().Bytes, p.Begin("exchange", op)
		f()
		end(c.Traffic().Bytes - before)
	})
}

// layer names the layer that later operations belong to, if the session is profiled.
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
