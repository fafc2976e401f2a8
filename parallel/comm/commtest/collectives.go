package commtest

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/engine"
	"patchbay/parallel/comm"
)

func nan() float32 { return float32(math.NaN()) }

func sum(v []int) (n int) {
	for _, x := range v {
		n += x
	}
	return n
}

// allToAll checks that every element arrives once, in rank order, for random counts and several rounds in a row, and
// that bytes sent to other ranks are counted.
func allToAll(t *testing.T, rig Rig) {
	draws := 0
	rapid.Check(t, func(r *rapid.T) {
		if draws++; rig.Draws > 0 && draws > rig.Draws {
			return
		}
		p := rapid.IntRange(1, 6).Draw(r, "ranks")
		counts := make([][]int, p) // counts[from][to]
		for i := range counts {
			counts[i] = rapid.SliceOfN(rapid.IntRange(0, 5), p, p).Draw(r, "counts")
		}
		rounds := rapid.IntRange(1, 3).Draw(r, "rounds")
		err := world(t, rig, p, time.Minute, func(m *member) error {
			me := m.Rank()
			for round := range rounds {
				var src, want []float32
				var recv []int
				for peer := range p {
					for k := range counts[me][peer] {
						src = append(src, float32(10000*round+1000*me+100*peer+k))
					}
					recv = append(recv, counts[peer][me])
					for k := range counts[peer][me] {
						want = append(want, float32(10000*round+1000*peer+100*me+k))
					}
				}
				dst := m.none(len(want))
				m.Run(comm.NewAllToAll(dst, m.vec(src...), recv, counts[me]))
				m.want(r, "AllToAll", dst, want...)
			}
			sent := int64(4 * rounds * (sum(counts[me]) - counts[me][me]))
			if m.Traffic().Bytes != sent {
				r.Errorf("rank %d counted %d bytes, sent %d", me, m.Traffic().Bytes, sent)
			}
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
	})
}

func allGather(t *testing.T, rig Rig) {
	counts := []int{1, 0, 2}
	err := world(t, rig, 3, time.Minute, func(m *member) error {
		all := m.none(3)
		m.Run(comm.NewAllGather(all, m.vec([][]float32{{7}, {}, {8, 9}}[m.Rank()]...), counts))
		m.want(t, "AllGather", all, 7, 8, 9)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// reductions checks that sums are made in rank order, in f32 for f32 and bf16, and are the same on every rank. With
// these parts any other order, or rounding in between, gives a different number.
func reductions(t *testing.T, rig Rig) {
	const n = 37 // divisible by nothing that matters
	f32 := []float32{1e8, 1, -1e8, 1}
	narrow := []float32{256, 1, 1, -256}
	wide := []float64{1e17, 1, -1e17, 1}
	pair := func(v float64) (low, high float32) {
		bits := math.Float64bits(v)
		return math.Float32frombits(uint32(bits)), math.Float32frombits(uint32(bits >> 32))
	}
	repeat := func(v float32) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = v * float32(1+i%5)
		}
		return out
	}
	counts := []int{5, 0, 22, 10}
	err := world(t, rig, 4, time.Minute, func(m *member) error {
		r := m.Rank()
		all := m.vec(repeat(f32[r])...)
		m.Run(comm.NewAllReduce(all))
		m.want(t, "AllReduce f32", all, repeat(1)...)
		all = m.as(engine.BF16, repeat(narrow[r])...)
		m.Run(comm.NewAllReduce(all))
		m.want(t, "AllReduce bf16", all, repeat(2)...)
		low, high := pair(wide[r])
		oneLow, oneHigh := pair(1)
		all = m.vec(low, high, low, high, low, high)
		m.Run(comm.NewAllReduce(engine.NewTensor(all.Buf, engine.F64, 3)))
		m.want(t, "AllReduce f64", all, oneLow, oneHigh, oneLow, oneHigh, oneLow, oneHigh)
		from := sum(counts[:r])
		part := m.none(counts[r])
		m.Run(comm.NewReduceScatter(part, m.vec(repeat(f32[r])...), counts))
		m.want(t, "ReduceScatter f32", part, repeat(1)[from:from+counts[r]]...)
		part = m.empty(engine.BF16, counts[r])
		m.Run(comm.NewReduceScatter(part, m.as(engine.BF16, repeat(narrow[r])...), counts))
		m.want(t, "ReduceScatter bf16", part, repeat(2)[from:from+counts[r]]...)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// longReductions checks sums of more elements than a transport may process at once.
func longReductions(t *testing.T, rig Rig) {
	const n = 300_001
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		v, want := make([]float32, n), make([]float32, n)
		for i := range v {
			v[i] = float32(i%1000) + float32(m.Rank())
			want[i] = float32(2*(i%1000) + 1)
		}
		all := m.vec(v...)
		m.Run(comm.NewAllReduce(all))
		m.want(t, "AllReduce", all, want...)
		part := m.none(n - 1)
		if m.Rank() == 0 {
			part = m.none(1)
		}
		m.Run(comm.NewReduceScatter(part, m.vec(v...), []int{1, n - 1}))
		m.want(t, "ReduceScatter", part, [][]float32{want[:1], want[1:]}[m.Rank()]...)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// ordered checks that an exchange reads what earlier calls have written, and that later calls neither change what it
// sends nor read before it has received. It takes many rounds, since the order of streams may be random.
func ordered(t *testing.T, rig Rig) {
	const size, n, rounds = 3, 64, 24
	even := []int{n, n, n}
	fill := func(v float32, n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			out[i] = v
		}
		return out
	}
	for name, exchange := range map[string]struct {
		call func(m *member, dst, src engine.Tensor)
		want func(rank int, v []float32) []float32
	}{
		"AllToAll": {
			func(m *member, dst, src engine.Tensor) { m.Run(comm.NewAllToAll(dst, src, even, even)) },
			func(_ int, v []float32) (out []float32) {
				for _, x := range v {
					out = append(out, fill(x, n)...)
				}
				return out
			},
		},
		"AllGather": {
			func(m *member, dst, src engine.Tensor) { m.Run(comm.NewAllGather(dst, src.Slice(0, 0, n), even)) },
			func(_ int, v []float32) (out []float32) {
				for _, x := range v {
					out = append(out, fill(x, n)...)
				}
				return out
			},
		},
		"AllReduce": {
			func(m *member, dst, src engine.Tensor) { m.ops.Copy(dst, src); m.Run(comm.NewAllReduce(dst)) },
			func(_ int, v []float32) []float32 { return fill(v[0]+v[1]+v[2], size*n) },
		},
		"ReduceScatter": {
			func(m *member, dst, src engine.Tensor) {
				m.Run(comm.NewReduceScatter(dst.Slice(0, 0, n), src, even))
				m.ops.Copy(dst.Slice(0, n, 2*n), dst.Slice(0, 0, n))
				m.ops.Copy(dst.Slice(0, 2*n, 3*n), dst.Slice(0, 0, n))
			},
			func(_ int, v []float32) []float32 { return fill(v[0]+v[1]+v[2], size*n) },
		},
		"SendRecv": {
			func(m *member, dst, src engine.Tensor) {
				m.SendRecv(dst, (m.Rank()+size-1)%size, src, (m.Rank()+1)%size)
			},
			func(r int, v []float32) []float32 { return fill(v[(r+size-1)%size], size*n) },
		},
	} {
		err := world(t, rig, size, time.Minute, func(m *member) error {
			src, dst, other := m.none(size*n), m.none(size*n), m.none(size*n)
			for round := range rounds {
				v := make([]float32, size)
				for r := range v {
					v[r] = float32(10*round + r + 1)
				}
				m.ops.Fill(dst, nan())
				m.ops.Fill(src, v[m.Rank()])
				exchange.call(m, dst, src)
				m.ops.Fill(src, nan())
				m.ops.Copy(other, dst)
				m.ops.Fill(dst, nan())
				if round == rounds-1 || round%2 == m.Rank()%2 { // ranks wait for results at different times
					m.want(t, name, other, exchange.want(m.Rank(), v)...)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// prefetch checks that Begin waits for no other rank and that all parts have arrived after Fetched, from sources
// written just before, for AllGather and AllToAll.
func prefetch(t *testing.T, rig Rig) {
	begun := make(chan struct{})
	err := world(t, rig, 2, time.Minute, func(m *member) error {
		mine := [][]float32{{7}, {8, 9}}[m.Rank()]
		for round := range 4 {
			all, src := m.none(3), m.vec(mine...)
			m.ops.Add(src, src, src)
			if m.Rank() == 1 && round == 0 {
				<-begun // rank 0 has gone on without rank 1
			}
			m.Begin(comm.NewAllGather(all, src, []int{1, 2}))
			if m.Rank() == 0 && round == 0 {
				close(begun)
			}
			m.Fetched()
			m.want(t, "Prefetch", all, 14, 16, 18)
			m.ops.Add(src, src, src)
			m.ops.Fill(all, nan())
			m.Begin(comm.NewAllToAll(all, src, [][]int{{0, 1}, {1, 1}}[m.Rank()], [][]int{{0, 1}, {1, 1}}[m.Rank()]))
			m.Fetched()
			m.want(t, "Exchange", all.Slice(0, 0, len(mine)), [][]float32{{32}, {28, 36}}[m.Rank()]...)
		}
		if got := m.Traffic(); got.Calls != 8 || got.Bytes != int64(4*4*(len(mine)+1)) {
			t.Errorf("rank %d counted %+v", m.Rank(), got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// traffic checks the counted bytes against the definition of every operation: those sent to others, not those kept.
func traffic(t *testing.T, rig Rig) {
	const size = 3
	counts := []int{5, 2, 1}
	for _, c := range []struct {
		name string
		call func(m *member)
		want [size]int64 // elements that each rank sends
	}{
		{"AllToAll", func(m *member) {
			send := []int{4, 7, 9} // to each rank, by every rank
			recv := []int{send[m.Rank()], send[m.Rank()], send[m.Rank()]}
			m.Run(comm.NewAllToAll(m.none(sum(recv)), m.none(sum(send)), recv, send))
		}, [size]int64{16, 13, 11}},
		{"AllGather", func(m *member) {
			m.Run(comm.NewAllGather(m.none(sum(counts)), m.none(counts[m.Rank()]), counts))
		}, [size]int64{10, 4, 2}},
		{"ReduceScatter", func(m *member) {
			m.Run(comm.NewReduceScatter(m.none(counts[m.Rank()]), m.none(sum(counts)), counts))
		}, [size]int64{3, 6, 7}},
		{"AllReduce", func(m *member) { m.Run(comm.NewAllReduce(m.none(6))) }, [size]int64{8, 8, 8}},
		{"SendRecv", func(m *member) {
			from, to := m.Rank()-1, m.Rank()+1
			if to == size {
				to = -1
			}
			m.SendRecv(m.none(6), from, m.none(6), to)
		}, [size]int64{6, 6, 0}},
	} {
		var got [size]comm.Traffic
		if err := world(t, rig, size, 0, func(m *member) error {
			c.call(m)
			got[m.Rank()] = m.Traffic()
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for rank, want := range c.want {
			if got[rank].Bytes != 4*want {
				t.Errorf("%s: rank %d counts %d bytes, want %d", c.name, rank, got[rank].Bytes, 4*want)
			}
		}
	}
}
