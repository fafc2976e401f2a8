package comm

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"patchbay/engine"
)

// Call is one rank's part of a collective on host memory: what transports inside a process compare and carry out.
type Call struct {
	Op       string // method of Comm
	Dst, Src engine.Tensor
	Recv     []int   // counts of Dst: AllToAll, AllGather
	Send     []int   // counts of Src: AllToAll, ReduceScatter
	Site     uintptr // who called, for errors
}

// NewAllToAll is the part of a rank in Comm.AllToAll.
func NewAllToAll(dst, src engine.Tensor, recv, send []int) *Call {
	return &Call{Op: "AllToAll", Dst: dst, Src: src, Recv: recv, Send: send, Site: caller()}
}

// NewAllGather is the part of a rank in Comm.AllGather.
func NewAllGather(dst, src engine.Tensor, counts []int) *Call {
	return &Call{Op: "AllGather", Dst: dst, Src: src, Recv: counts, Site: caller()}
}

// NewReduceScatter is the part of a rank in Comm.ReduceScatter.
func NewReduceScatter(dst, src engine.Tensor, counts []int) *Call {
	return &Call{Op: "ReduceScatter", Dst: dst, Src: src, Send: counts, Site: caller()}
}

// NewAllReduce is the part of a rank in Comm.AllReduce.
func NewAllReduce(buf engine.Tensor) *Call {
	return &Call{Op: "AllReduce", Dst: buf, Src: buf, Site: caller()}
}

// Sent is the elements that a rank sends to others.
func (c *Call) Sent(rank, size int) int {
	switch c.Op {
	case "AllToAll":
		return sum(c.Send) - c.Send[rank]
	case "AllGather":
		return c.Recv[rank] * (size - 1)
	case "ReduceScatter":
		return sum(c.Send) - c.Send[rank]
	}
	return 2 * (size - 1) * c.Src.Len() / size
}

// Transfer fills Dst of a rank from the parts of all ranks. It only reads what others may be reading; finish, which may
// be called when all ranks have transferred, writes what they read.
func (c *Call) Transfer(rank int, calls []*Call) (finish func()) {
	switch c.Op {
	case "AllToAll", "AllGather":
		c.Pieces(rank, calls, func(at, peer, off, n int) { copyElements(c.Dst, at, calls[peer].Src, off, n) })
	case "ReduceScatter":
		addElements(c.Dst, calls, sum(c.Send[:rank]), c.Send[rank])
	case "AllReduce":
		total := engine.NewTensor(engine.Buf{Host: make([]byte, c.Dst.Bytes())}, c.Dst.DType, c.Dst.Len())
		addElements(total, calls, 0, total.Len())
		return func() { copyElements(c.Dst, 0, total, 0, total.Len()) }
	}
	return func() {}
}

// Pieces calls move for what a rank of an AllToAll or AllGather receives, in rank order: n elements from off of the
// source of peer, to at in its destination.
func (c *Call) Pieces(rank int, calls []*Call, move func(at, peer, off, n int)) {
	at := 0
	for peer, n := range c.Recv {
		off := 0
		if c.Op == "AllToAll" {
			off = sum(calls[peer].Send[:rank])
		}
		move(at, peer, off, n)
		at += n
	}
}

// Check compares the parts of all ranks before any byte moves; name is the group's.
func Check(name string, calls []*Call) error {
	a := calls[0]
	differ := func(r int, what string) error {
		b := calls[r]
		return &Error{Text: fmt.Sprintf("%s: ranks 0 and %d disagree in %s: %s %s at %s, %s %s at %s",
			name, r, what, a.Op, a.Src, where(a.Site), b.Op, b.Src, where(b.Site))}
	}
	for i, b := range calls[1:] {
		switch r := i + 1; {
		case a.Op != b.Op || a.Src.DType != b.Src.DType:
			return differ(r, "operation or dtype")
		case a.Op == "AllGather" && !slices.Equal(a.Recv, b.Recv), a.Op == "ReduceScatter" && !slices.Equal(a.Send, b.Send):
			return differ(r, "counts")
		case a.Op == "AllReduce" && a.Src.Len() != b.Src.Len():
			return differ(r, "length")
		}
	}
	for r, c := range calls {
		if err := c.Sizes(len(calls)); err != nil {
			return &Error{Text: fmt.Sprintf("%s: rank %d at %s: %v", name, r, where(c.Site), err)}
		}
		if c.Op != "AllToAll" {
			continue
		}
		for p, q := range calls {
			if q.Send[r] != c.Recv[p] {
				return &Error{Text: fmt.Sprintf("%s: AllToAll: rank %d sends %d elements to rank %d at %s, which expects %d at %s",
					name, p, q.Send[r], r, where(q.Site), c.Recv[p], where(c.Site))}
			}
		}
	}
	return nil
}

// At says where the call was.
func (c *Call) At() string { return where(c.Site) }

// Sizes checks a call's counts against its tensors.
func (c *Call) Sizes(ranks int) error {
	fits := func(t engine.Tensor, n int) bool { return n == 0 || (t.Contiguous() && t.Len() >= n) }
	switch c.Op {
	case "AllToAll":
		if len(c.Recv) != ranks || len(c.Send) != ranks || !fits(c.Dst, sum(c.Recv)) || !fits(c.Src, sum(c.Send)) {
			return fmt.Errorf("AllToAll of %v -> %v does not fit %s -> %s or %d ranks", c.Send, c.Recv, c.Src, c.Dst, ranks)
		}
	case "AllGather":
		if len(c.Recv) != ranks || !fits(c.Dst, sum(c.Recv)) {
			return fmt.Errorf("AllGather of %v does not fit %s or %d ranks", c.Recv, c.Dst, ranks)
		}
	case "ReduceScatter":
		if len(c.Send) != ranks || !fits(c.Src, sum(c.Send)) {
			return fmt.Errorf("ReduceScatter of %v does not fit %s or %d ranks", c.Send, c.Src, ranks)
		}
	}
	return nil
}

// Share is part r of t when it is split among so many ranks, in multiples of 8 elements, so that parts are as aligned
// as t.
func Share(t engine.Tensor, r, of int) engine.Tensor {
	n := t.Len()
	each := ((n+of-1)/of + 7) / 8 * 8
	from, to := min(r*each, n), min((r+1)*each, n)
	return Piece(t, from, to-from)
}

// Piece is n elements of a contiguous tensor, from element at on.
func Piece(t engine.Tensor, at, n int) engine.Tensor {
	out := engine.NewTensor(t.Buf, t.DType, n)
	out.Off = t.Off + at
	return out
}

// Message is one side of a transfer from one rank to another.
type Message struct {
	Tensor engine.Tensor
	Site   uintptr // who called, for errors
}

// NewMessage is t with the address of the code that called a method of Comm.
func NewMessage(t engine.Tensor) Message { return Message{t, caller()} }

// Deliver copies a message to the memory that rank to has for it. Both must agree on count and dtype; name is the
// group's.
func Deliver(name string, dst Message, to int, src Message, from int) error {
	if err := Agree(name, dst, to, src, from); err != nil {
		return err
	}
	copyElements(dst.Tensor, 0, src.Tensor, 0, src.Tensor.Len())
	return nil
}

// Agree refuses a message whose sides differ in count or dtype.
func Agree(name string, dst Message, to int, src Message, from int) error {
	if src.Tensor.Len() != dst.Tensor.Len() || src.Tensor.DType != dst.Tensor.DType {
		return &Error{Text: fmt.Sprintf("%s: rank %d sends %s at %s, rank %d receives %s at %s",
			name, from, src.Tensor, where(src.Site), to, dst.Tensor, where(dst.Site))}
	}
	return nil
}

// At says where the call was.
func (m Message) At() string { return where(m.Site) }

// caller is the code address that called the Comm method that called a constructor here.
func caller() uintptr {
	var pc [1]uintptr
	runtime.Callers(4, pc[:])
	return pc[0]
}

func where(pc uintptr) string {
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return fmt.Sprintf("%s:%d", f.Function, f.Line)
}

func sum(v []int) int {
	n := 0
	for _, x := range v {
		n += x
	}
	return n
}

// copyElements copies n elements between host tensors that are contiguous.
func copyElements(dst engine.Tensor, at int, src engine.Tensor, off, n int) {
	if n == 0 {
		return
	}
	s := dst.DType.Size()
	copy(dst.Buf.Host[(dst.Off+at)*s:(dst.Off+at+n)*s], src.Buf.Host[(src.Off+off)*s:(src.Off+off+n)*s])
}

// Sum stores in dst the sum of parts, in their order: f32, f64, or bf16, which is summed in f32 and rounded once. All
// are contiguous host tensors of one length.
func Sum(dst engine.Tensor, parts []engine.Tensor) {
	calls := make([]*Call, len(parts))
	for i, p := range parts {
		calls[i] = &Call{Src: p}
	}
	addElements(dst, calls, 0, dst.Len())
}

// addElements stores in dst the sum over calls of n elements from off, in rank order.
func addElements(dst engine.Tensor, calls []*Call, off, n int) {
	if n == 0 {
		return
	}
	switch dst.DType {
	case engine.F64:
		add(host[float64](dst, 0, n), calls, off)
	case engine.BF16:
		addNarrow(dst, calls, off, n)
	default:
		add(host[float32](dst, 0, n), calls, off)
	}
}

// addNarrow is addElements for bf16: summed in f32, rounded once.
func addNarrow(dst engine.Tensor, calls []*Call, off, n int) {
	const chunk = 4096
	total, part := make([]float32, chunk), make([]float32, chunk)
	bytes := func(t engine.Tensor, at, m int) []byte { return t.Buf.Host[2*(t.Off+at) : 2*(t.Off+at+m)] }
	for at := 0; at < n; at += chunk {
		m := min(chunk, n-at)
		clear(total[:m])
		for _, c := range calls {
			engine.Widen(part[:m], bytes(c.Src, off+at, m), engine.BF16)
			for i, v := range part[:m] {
				total[i] += v
			}
		}
		engine.Narrow(bytes(dst, at, m), total[:m], engine.BF16)
	}
}

func add[T float32 | float64](out []T, calls []*Call, off int) {
	clear(out)
	for _, c := range calls {
		for i, v := range host[T](c.Src, off, len(out)) {
			out[i] += v
		}
	}
}

// host views n elements of a contiguous host tensor.
func host[T float32 | float64](t engine.Tensor, off, n int) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&t.Buf.Host[(t.Off+off)*t.DType.Size()])), n)
}
