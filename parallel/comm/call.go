package comm

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"patchbay/engine"
)

// Call is one rank's part of a collective.
type Call struct {
	Op       string // name of the constructor without New
	Dst, Src engine.Tensor
	Recv     []int // element counts of Dst by rank: AllToAll, AllGather
	Send     []int // element counts of Src by rank: AllToAll, ReduceScatter
	Site     Site
}

// NewAllToAll returns the call that sends send[i] elements of src to rank i and receives recv[i] elements from it into
// dst, both in rank order.
func NewAllToAll(dst, src engine.Tensor, recv, send []int) *Call {
	return &Call{Op: "AllToAll", Dst: dst, Src: src, Recv: recv, Send: send, Site: caller(1)}
}

// NewAllGather returns the call that receives every rank's src, counts[i] elements from rank i, in rank order into dst.
func NewAllGather(dst, src engine.Tensor, counts []int) *Call {
	return &Call{Op: "AllGather", Dst: dst, Src: src, Recv: counts, Site: caller(1)}
}

// NewReduceScatter returns the call that sums src over the ranks and leaves part i, counts[i] elements, in dst of rank
// i. The type must be f32 or bf16, which is summed in f32.
func NewReduceScatter(dst, src engine.Tensor, counts []int) *Call {
	return &Call{Op: "ReduceScatter", Dst: dst, Src: src, Send: counts, Site: caller(1)}
}

// NewAllReduce returns the call that sums buf over the ranks in place. The type must be f32, f64 or bf16, which is
// summed in f32. Every rank gets the same bits.
func NewAllReduce(buf engine.Tensor) *Call {
	return &Call{Op: "AllReduce", Dst: buf, Src: buf, Site: caller(1)}
}

// Sent returns the number of elements that a rank sends to others, for AllReduce those of a ring.
func (c *Call) Sent(rank, size int) int {
	switch c.Op {
	case "AllToAll", "ReduceScatter":
		return Total(c.Send) - c.Send[rank]
	case "AllGather":
		return c.Recv[rank] * (size - 1)
	}
	return 2 * (size - 1) * c.Src.Len() / size
}

// Lengths returns how many elements of Dst and Src a rank's part uses, counted from their beginnings.
func (c *Call) Lengths(rank int) (dst, src int) {
	switch c.Op {
	case "AllToAll":
		return Total(c.Recv), Total(c.Send)
	case "AllGather":
		return Total(c.Recv), c.Recv[rank]
	case "ReduceScatter":
		return c.Send[rank], Total(c.Send)
	}
	return c.Dst.Len(), c.Src.Len()
}

// Transfer computes Dst of a rank from the parts of all ranks in host memory. It does not write memory that others may
// be reading; finish does that, and may be called only when all ranks have transferred.
func (c *Call) Transfer(rank int, calls []*Call) (finish func()) {
	switch c.Op {
	case "AllToAll", "AllGather":
		c.Pieces(rank, calls, func(at, peer, off, n int) { copyElements(c.Dst, at, calls[peer].Src, off, n) })
	case "ReduceScatter":
		Sum(Piece(c.Dst, 0, c.Send[rank]), Sources(calls, Total(c.Send[:rank]), c.Send[rank]))
	case "AllReduce":
		total := engine.NewTensor(engine.Buf{Host: make([]byte, c.Dst.Bytes())}, c.Dst.DType, c.Dst.Len())
		Sum(total, Sources(calls, 0, total.Len()))
		return func() { copyElements(c.Dst, 0, total, 0, total.Len()) }
	}
	return func() {}
}

// Pieces calls move, in rank order, for each piece that a rank of an AllToAll or AllGather receives: n elements of
// peer's source from element off on go to element at of the rank's destination.
func (c *Call) Pieces(rank int, calls []*Call, move func(at, peer, off, n int)) {
	at := 0
	for peer, n := range c.Recv {
		off := 0
		if c.Op == "AllToAll" {
			off = Total(calls[peer].Send[:rank])
		}
		move(at, peer, off, n)
		at += n
	}
}

// Sources returns n elements of the source of every rank, from element at on.
func Sources(calls []*Call, at, n int) []engine.Tensor {
	out := make([]engine.Tensor, len(calls))
	for r, c := range calls {
		out[r] = Piece(c.Src, at, n)
	}
	return out
}

// Check compares the parts of all ranks before any byte moves. It returns an error if they disagree or do not fit. name
// is the group's name.
func Check(name string, calls []*Call) error {
	a := calls[0]
	differ := func(r int, what string) error {
		b := calls[r]
		return &Error{Text: fmt.Sprintf("%s: ranks 0 and %d disagree in %s: %s %s at %s, %s %s at %s",
			name, r, what, a.Op, a.Src, a.Site, b.Op, b.Src, b.Site)}
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
		if err := c.Fits(name, r, len(calls)); err != nil {
			return err
		}
		if c.Op != "AllToAll" {
			continue
		}
		for p, q := range calls {
			if q.Send[r] != c.Recv[p] {
				return &Error{Text: fmt.Sprintf("%s: AllToAll: rank %d sends %d elements to rank %d at %s, which expects %d at %s",
					name, p, q.Send[r], r, q.Site, c.Recv[p], c.Site)}
			}
		}
	}
	return nil
}

// Fits checks the counts of a rank's part against its tensors; name is the group's name.
func (c *Call) Fits(name string, rank, ranks int) error {
	ok := true
	for _, counts := range [][]int{c.Recv, c.Send} {
		ok = ok && (counts == nil || len(counts) == ranks)
	}
	if ok {
		dst, src := c.Lengths(rank)
		fits := func(t engine.Tensor, n int) bool { return n == 0 || t.Contiguous() && t.Len() >= n }
		ok = fits(c.Dst, dst) && fits(c.Src, src)
	}
	if ok {
		return nil
	}
	return &Error{Text: fmt.Sprintf("%s: rank %d at %s: %s of %v -> %v does not fit %s -> %s or %d ranks", name, rank,
		c.Site, c.Op, c.Send, c.Recv, c.Src, c.Dst, ranks)}
}

// Shares returns how many of n elements each rank gets when they are split: multiples of 8, so that the parts are as
// aligned as the whole.
func Shares(n, ranks int) []int {
	each, out := ((n+ranks-1)/ranks+7)/8*8, make([]int, ranks)
	for r := range out {
		out[r] = min(each, n)
		n -= out[r]
	}
	return out
}

// Piece returns n elements of a contiguous tensor, from element at on.
func Piece(t engine.Tensor, at, n int) engine.Tensor {
	out := engine.NewTensor(t.Buf, t.DType, n)
	out.Off = t.Off + at
	return out
}

// Total returns the sum of counts.
func Total(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Site is the place in the code where a call was made, for errors.
type Site uintptr

// caller returns the place from which the function that many levels above caller was called; 1 is caller's own caller.
func caller(above int) Site {
	var pc [1]uintptr
	runtime.Callers(2+above, pc[:])
	return Site(pc[0])
}

// String returns the function and the line.
func (s Site) String() string {
	f, _ := runtime.CallersFrames([]uintptr{uintptr(s)}).Next()
	return fmt.Sprintf("%s:%d", f.Function, f.Line)
}

// copyElements copies n elements between contiguous host tensors.
func copyElements(dst engine.Tensor, at int, src engine.Tensor, off, n int) {
	copy(HostBytes(dst, at, n), HostBytes(src, off, n))
}

// HostBytes returns the memory of n elements of a contiguous host tensor, from element at on.
func HostBytes(t engine.Tensor, at, n int) []byte {
	if n == 0 {
		return nil
	}
	s := t.DType.Size()
	return t.Buf.Host[(t.Off+at)*s : (t.Off+at+n)*s]
}

// Sum stores the sum of parts in dst, added in order: f32, f64, or bf16, which is summed in f32 and rounded once. All
// must be contiguous host tensors of the same length.
func Sum(dst engine.Tensor, parts []engine.Tensor) {
	switch {
	case dst.Len() == 0:
	case dst.DType == engine.F64:
		add[float64](dst, parts)
	case dst.DType == engine.BF16:
		addNarrow(dst, parts)
	default:
		add[float32](dst, parts)
	}
}

// addNarrow is Sum for bf16.
func addNarrow(dst engine.Tensor, parts []engine.Tensor) {
	const chunk = 4096
	total, part := make([]float32, chunk), make([]float32, chunk)
	for at := 0; at < dst.Len(); at += chunk {
		m := min(chunk, dst.Len()-at)
		clear(total[:m])
		for _, p := range parts {
			engine.Widen(part[:m], HostBytes(p, at, m), engine.BF16)
			for i, v := range part[:m] {
				total[i] += v
			}
		}
		engine.Narrow(HostBytes(dst, at, m), total[:m], engine.BF16)
	}
}

func add[T float32 | float64](dst engine.Tensor, parts []engine.Tensor) {
	out := host[T](dst)
	clear(out)
	for _, p := range parts {
		for i, v := range host[T](p) {
			out[i] += v
		}
	}
}

// host views a non-empty contiguous host tensor as a slice.
func host[T float32 | float64](t engine.Tensor) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&t.Buf.Host[t.Off*t.DType.Size()])), t.Len())
}
