package comm

import "testing"

// TestTrafficCountsWhatLeavesTheRank: counters have the bytes that a rank sends to others, by the definition of every
// operation: nothing of what it keeps.
func TestTrafficCountsWhatLeavesTheRank(t *testing.T) {
	const size = 3
	counts := []int{5, 2, 1}
	for _, c := range []struct {
		name string
		call func(c Comm)
		want [size]int64 // values
	}{
		{"AllToAll", func(c Comm) {
			send := []int{4, 7, 9} // to each rank, by every rank
			recv := []int{send[c.Rank()], send[c.Rank()], send[c.Rank()]}
			c.AllToAll(vec(make([]float32, sum(recv))...), vec(make([]float32, sum(send))...), recv, send)
		}, [size]int64{16, 13, 11}},
		{"AllGather", func(c Comm) {
			c.AllGather(vec(make([]float32, sum(counts))...), vec(make([]float32, counts[c.Rank()])...), counts)
		}, [size]int64{10, 4, 2}},
		{"ReduceScatter", func(c Comm) {
			c.ReduceScatter(vec(make([]float32, counts[c.Rank()])...), vec(make([]float32, sum(counts))...), counts)
		}, [size]int64{3, 6, 7}},
		{"AllReduce", func(c Comm) { c.AllReduce(vec(make([]float32, 6)...)) }, [size]int64{8, 8, 8}},
		{"SendRecv", func(c Comm) {
			from, to := c.Rank()-1, c.Rank()+1
			if to == size {
				to = -1
			}
			c.SendRecv(vec(make([]float32, 6)...), from, vec(make([]float32, 6)...), to)
		}, [size]int64{6, 6, 0}},
	} {
		var got [size]int64
		if err := world(size, 0, func(end Comm) error {
			c.call(end)
			got[end.Rank()] = end.Traffic().Bytes
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for rank, want := range c.want {
			if got[rank] != 4*want {
				t.Errorf("%s: rank %d counts %d bytes, want %d", c.name, rank, got[rank], 4*want)
			}
		}
	}
}
