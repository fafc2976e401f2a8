package rank

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/parallel/comm"
	"patchbay/parallel/plan"
	"patchbay/parallel/scope"
)

// TestSplitAttentionAtReleasedHeads compares attention over split tokens with its definition, at the numbers of heads
// of Wan (40), MiniMax-H3 (56) and Krea 2 (48, 12 of keys and values), for token counts that no degree divides.
func TestSplitAttentionAtReleasedHeads(t *testing.T) {
	const b, d = 2, 4
	for _, n := range []struct{ heads, keys int }{{40, 40}, {56, 56}, {48, 12}} {
		for i, text := range []string{
			"ulysses=3", "ring=3", "gather=2", "gather=3", "gather=3,overlap=off", "gather=5,ulysses=3", "ring=2,ulysses=3",
			"gather=4,speeds=100:60:30:10",
		} {
			t.Run(fmt.Sprintf("%d/%s", n.heads, text), func(t *testing.T) {
				size := plan.Sequence{Text: 7 + i, Image: 53 - i}
				l, random := size.Text+size.Image, rand.New(rand.NewPCG(uint64(n.heads), uint64(i)))
				values := func(heads int) []float32 {
					out := make([]float32, b*l*heads*d)
					for i := range out {
						out[i] = float32(random.NormFloat64())
					}
					return out
				}
				q, k, v := values(n.heads), values(n.keys), values(n.keys)
				got := splitAttention(t, planOf(t, text), size, b, d, n.heads, q, k, v)
				want := defined(b, l, d, n.heads, n.keys, q, k, v)
				for i := range want {
					if e := math.Abs(float64(got[i]) - want[i]); !(e < 1e-5) {
						t.Fatalf("value %d is %v, want %v", i, got[i], want[i])
					}
				}
			})
		}
	}
}

// defined is softmax(q k^T / sqrt(d)) v of [b, l, heads, d] and [b, l, keys, d].
func defined(b, l, d, heads, keys int, q, k, v []float32) []float64 {
	out := make([]float64, b*l*heads*d)
	for i := range b * l * heads {
		item, h := i/(l*heads), i%heads*keys/heads
		weights, sum := make([]float64, l), 0.
		for j := range weights {
			dot := 0.
			for x := range d {
				dot += float64(q[i*d+x]) * float64(k[((item*l+j)*keys+h)*d+x])
			}
			weights[j] = math.Exp(dot / math.Sqrt(float64(d)))
			sum += weights[j]
		}
		for j, w := range weights {
			for x := range d {
				out[i*d+x] += w / sum * float64(v[((item*l+j)*keys+h)*d+x])
			}
		}
	}
	return out
}

// splitAttention runs one attention on the ranks of a plan, each with its rows, and returns all results.
func splitAttention(
	t *testing.T, p plan.Plan, size plan.Sequence, b, d, heads int, q, k, v []float32,
) []float32 {
	t.Helper()
	l := size.Text + size.Image
	ranks, mesh := p.Ranks(), plan.Mesh{Plan: p}
	rows := plan.Part{Whole: true}.Rows(size, p.Places(false))
	ops, ends := make([]engine.Ops, ranks), map[plan.Axis][]comm.Comm{}
	for r := range ops {
		ops[r] = opsOf(t)
	}
	for _, a := range []plan.Axis{plan.AxisUlysses, plan.AxisRing} {
		ends[a] = make([]comm.Comm, ranks)
		for r := range ranks {
			group, at := mesh.Along(a, mesh.At(r))
			if at > 0 {
				continue
			}
			members := make([]engine.Ops, len(group))
			for i, other := range group {
				members[i] = ops[other]
			}
			made, err := comm.Local{}.Connect(comm.Group{Name: a.String(), Ranks: group}, members)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range made {
				ends[a][group[i]] = c
			}
		}
	}
	out, g := make([]float32, len(q)), scope.New(nil)
	arenas := make([][2]*engine.Arena, ranks)
	for r := range arenas {
		arenas[r] = [2]*engine.Arena{arenaOf(t, ops[r], 8<<20), arenaOf(t, ops[r], 8<<20)}
	}
	for r := range ranks {
		g.Go(fmt.Sprint("rank ", r), func() error {
			mine := rows[mesh.At(r).SequenceRank(p)]
			own := func(all []float32, visit func(rows []float32)) { // the rows of this rank among those of all
				row := len(all) / (b * l)
				for item := range b {
					for _, run := range []dit.Range{
						mine.Text, {Start: size.Text + mine.Image.Start, End: size.Text + mine.Image.End},
					} {
						visit(all[(item*l+run.Start)*row : (item*l+run.End)*row])
					}
				}
			}
			place := func(all []float32, heads int) engine.Tensor {
				var values []float32
				own(all, func(rows []float32) { values = append(values, rows...) })
				t := arenas[r][0].Alloc(engine.F32, b, mine.Len(), heads, d)
				ops[r].Upload(t, values)
				return t
			}
			keys := len(k) / (b * l * d)
			a := dit.Attention{
				Q: place(q, heads), K: place(k, keys), V: place(v, keys), Rows: mine,
				Out: arenas[r][0].Alloc(engine.F32, b, mine.Len(), heads, d),
			}
			s := &sequence{
				ops: ops[r], arena: arenas[r][1], ulysses: ends[plan.AxisUlysses][r], ring: ends[plan.AxisRing][r],
				rows: rows, whole: true, plan: p,
			}
			s.hook(newAttention(p, lane{}, NewLaneStore(), entryKey{}))(a)
			result := make([]float32, a.Out.Len())
			if err := ops[r].Download(result, a.Out).Wait(); err != nil {
				return err
			}
			own(out, func(rows []float32) { result = result[copy(rows, result):] })
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}
