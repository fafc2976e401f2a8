package goldenrun

import (
	"fmt"
	"sync"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Parts evaluates m, packed by NewOps, on case c with the sequence (text, then image) cut into n balanced ranges, each
// computed by a goroutine with an Env of its own. In every attention the parts exchange their keys and values, and each
// attends from its own queries. The result must equal that of Whole.
func Parts(m dit.Model, c Case, n int) ([]float32, error) {
	spec := m.Spec()
	grid := c.Grid(spec)
	meet := newMeeting(n)
	results, errs := make([][]float32, n), make([]error, n)
	cuts := make([]dit.Rows, n)
	var wg sync.WaitGroup
	for r := range n {
		lt := 0
		if spec.JointText() {
			lt = spec.JointTokens(&c.Entries()[0])
		}
		cuts[r] = cutRows(lt, spec.Split(grid), r, n)
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					errs[r] = fmt.Errorf("part %d: %v", r, v)
					meet.abort()
				}
			}()
			results[r], errs[r] = part(m, c, grid, cuts[r], meet, r)
			if errs[r] != nil {
				meet.abort()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return latents(c, spec, grid, joinRows(results, cuts, c.N(), spec, grid)), nil
}

func part(m dit.Model, c Case, grid dit.Grid, rows dit.Rows, meet *meeting, r int) ([]float32, error) {
	ops := NewOps()
	env, err := NewEnv(ops, nil)
	if err != nil {
		return nil, err
	}
	env.Attend = func(a dit.Attention) {
		dit.Normalise(ops, a)
		mark := env.Arena.Mark()
		all := meet.gather(r, shown{a.K, a.V, a.Rows})
		k, v := joinKeys(env, all)
		if a.Q.Dim(1) > 0 {
			q, o := a.Groups(a.Q), a.Groups(a.Out)
			args := engine.AttentionArgs{Scale: a.Scale}
			dit.AttendAfter(ops, env.Arena, a.Preface, o, q, args, func(args engine.AttentionArgs) {
				dit.Attend(ops, o, q, k, v, args)
			})
		}
		meet.gather(r, shown{}) // do not overwrite keys that others still read
		env.Arena.Release(mark)
	}
	env.AttendAlike = func(a dit.Attention) {
		mark := env.Arena.Mark()
		k, v := joinKeys(env, meet.gather(r, shown{a.K, a.V, a.Rows}))
		env.Ops.Attention(a.Out, a.Q, k, v, engine.AttentionArgs{Scale: a.Scale})
		meet.gather(r, shown{})
		env.Arena.Release(mark)
	}
	p, err := Prepare(env, m, c.Entries(), grid)
	if err != nil {
		return nil, err
	}
	return evaluate(env, func(int) dit.Model { return m }, p, c, rows, nil), nil
}

// cutRows returns range r of n of the joint sequence.
func cutRows(lt, li, r, n int) dit.Rows {
	l := lt + li
	lo, hi := l*r/n, l*(r+1)/n
	return dit.Rows{
		Text:  dit.Range{Start: min(lo, lt), End: min(hi, lt)},
		Image: dit.Range{Start: max(lo, lt) - lt, End: max(hi, lt) - lt},
	}
}

// joinRows joins the image rows of all parts, and those of the first that all have: [n, Li, F].
func joinRows(results [][]float32, cuts []dit.Rows, n int, spec *dit.Spec, grid dit.Grid) []float32 {
	f, alike := spec.FeaturesOut(), spec.Alike(grid)
	out := make([]float32, n*grid.Tokens()*f)
	for r, rows := range cuts {
		li := rows.Image.Len()
		for b := range n {
			part := results[r][b*(li+alike)*f : (b+1)*(li+alike)*f]
			copy(out[(b*grid.Tokens()+rows.Image.Start)*f:], part[:li*f])
			if r == 0 {
				copy(out[(b*grid.Tokens()+spec.Split(grid))*f:], part[li*f:])
			}
		}
	}
	return out
}

// shown is what a part contributes to an exchange.
type shown struct {
	k, v engine.Tensor
	rows dit.Rows
}

// joinKeys joins the keys and the values of all parts into whole sequences [B, L, H, D].
func joinKeys(env dit.Env, all []shown) (k, v engine.Tensor) {
	l := 0
	for _, s := range all {
		l += s.rows.Len()
	}
	shape := all[0].k.Shape()
	k = env.Arena.Alloc(env.DType, shape[0], l, shape[2], shape[3])
	v = env.Arena.Alloc(env.DType, shape[0], l, shape[2], shape[3])
	at := 0
	for _, s := range all {
		if n := s.rows.Len(); n > 0 {
			env.Ops.Copy(k.Slice(1, at, at+n), s.k)
			env.Ops.Copy(v.Slice(1, at, at+n), s.v)
			at += n
		}
	}
	return k, v
}

// meeting is a reusable barrier at which n goroutines exchange one value each.
type meeting struct {
	mu      sync.Mutex
	cond    *sync.Cond
	n, come int
	round   int
	values  []shown
	last    []shown
	broken  bool
}

func newMeeting(n int) *meeting {
	m := &meeting{n: n, values: make([]shown, n)}
	m.cond = sync.NewCond(&m.mu)
	return m
}

// gather contributes v, waits for all parts and returns the values of all.
func (m *meeting) gather(r int, v shown) []shown {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[r] = v
	m.come++
	if m.come == m.n {
		m.last, m.values = m.values, make([]shown, m.n)
		m.come = 0
		m.round++
		m.cond.Broadcast()
		return m.last
	}
	for round := m.round; round == m.round && !m.broken; {
		m.cond.Wait()
	}
	if m.broken {
		panic("another part stopped")
	}
	return m.last
}

func (m *meeting) abort() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = true
	m.cond.Broadcast()
}
