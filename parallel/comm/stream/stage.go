package stream

import (
	"patchbay/engine"
	"patchbay/engine/cuda"
	"patchbay/parallel/comm"
)

// staged makes a call in host memory of one whose tensors lie on the device of the rank: what is sent is there, behind
// the calls issued before. The function puts what was received on the device.
func (e *end) staged(c *comm.Call) (*comm.Call, func()) {
	if e.device == nil {
		return c, func() {}
	}
	if err := c.Sizes(e.Size()); err != nil {
		panic(e.broken("rank %d at %s: %v", e.rank, c.At(), err))
	}
	own, in, out := *c, 0, 0
	switch c.Op {
	case "AllToAll":
		out, in = sum(c.Send), sum(c.Recv)
	case "AllGather":
		out, in = c.Recv[e.rank], sum(c.Recv)
	case "ReduceScatter":
		out, in = sum(c.Send), c.Send[e.rank]
	default:
		out, in = c.Src.Len(), c.Dst.Len()
	}
	own.Src = e.fetched(c.Src, out)
	own.Dst = own.Src
	if c.Op != "AllReduce" {
		own.Dst = hostTensor(c.Dst.DType, in)
	}
	return &own, func() { e.put(c.Dst, own.Dst.Buf.Host) }
}

// hostTensor is memory for n elements.
func hostTensor(d engine.DType, n int) engine.Tensor {
	return engine.NewTensor(engine.Buf{Host: make([]byte, n*d.Size())}, d, n)
}

// fetched is the first n elements of a tensor in host memory: where they are, or copied from the device when the calls
// issued before have run.
func (e *end) fetched(t engine.Tensor, n int) engine.Tensor {
	if e.device == nil || n == 0 {
		return t
	}
	own := hostTensor(t.DType, n)
	if err := e.device.Read(own.Buf.Host, t).Wait(); err != nil {
		lost := &comm.Error{Text: e.name + ": read what is to be sent", Cause: err}
		e.Abort(lost)
		panic(lost)
	}
	return own
}

// put writes bytes to the beginning of a tensor.
func (e *end) put(t engine.Tensor, b []byte) {
	switch {
	case len(b) == 0:
	case e.device == nil:
		copy(bytes(t, 0, t.Len()), b)
	default:
		e.device.Write(t, b)
	}
}

// onDevice is the stream of a rank whose tensors lie on a GPU, nil of one that works in host memory.
func onDevice(o engine.Ops) *cuda.Ops {
	d, _ := o.(*cuda.Ops)
	return d
}
