package stream

import (
	"patchbay/engine"
	"patchbay/parallel/comm"
)

// staged counts a call's traffic and, if its tensors are on the rank's device, returns a copy of it in host memory
// whose source is read after the calls issued before. The returned function copies what was received to the device.
func (e *end) staged(c *comm.Call) (*comm.Call, func()) {
	if err := c.Fits(e.Name, e.Rank(), e.Size()); err != nil {
		e.fail(err)
	}
	e.Sent(c.Sent(e.Rank(), e.Size()), c.Src.DType)
	if e.device == nil {
		return c, func() {}
	}
	staged := *c
	in, out := c.Lengths(e.Rank())
	staged.Src = e.fetched(c.Src, out)
	staged.Dst = staged.Src
	if c.Op != "AllReduce" {
		staged.Dst = hostTensor(c.Dst.DType, in)
	}
	return &staged, func() { e.put(c.Dst, staged.Dst.Buf.Host) }
}

// hostTensor allocates a tensor of n elements in host memory.
func hostTensor(d engine.DType, n int) engine.Tensor {
	return engine.NewTensor(engine.Buf{Host: make([]byte, n*d.Size())}, d, n)
}

// fetched returns the first n elements of a tensor in host memory: t itself, or a copy from the device made after the
// calls issued before.
func (e *end) fetched(t engine.Tensor, n int) engine.Tensor {
	if e.device == nil || n == 0 {
		return t
	}
	fetched := hostTensor(t.DType, n)
	if err := e.device.Read(fetched.Buf.Host, t).Wait(); err != nil {
		e.fail(&comm.Error{Text: e.Name + ": read what is to be sent", Cause: err})
	}
	return fetched
}

// put writes bytes to the beginning of a tensor.
func (e *end) put(t engine.Tensor, b []byte) {
	switch {
	case len(b) == 0:
	case e.device == nil:
		copy(comm.HostBytes(t, 0, t.Len()), b)
	default:
		e.device.Write(t, b)
	}
}
