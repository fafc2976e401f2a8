package ref

import (
	"math"

	"patchbay/engine"
)

// queryTile is the number of queries that share one widened copy of a head's keys and values.
const queryTile = 64

func (*Ops) Attention(o, q, k, v engine.Tensor, a engine.AttentionArgs) {
	engine.CheckAttention(o, q, k, v, a)
	heads, lq, lk, d := q.Dim(2), q.Dim(1), k.Dim(1), q.Dim(3)
	if a.Scale == 0 {
		a.Scale = float32(1 / math.Sqrt(float64(d)))
	}
	tiles := (lq + queryTile - 1) / queryTile
	spread(q.Dim(0)*heads*tiles, 2*queryTile*lk*d, func(lo, hi int) {
		head := headRows{
			keys: make([]float64, lk*d), values: make([]float64, lk*d), scores: make([]float64, lk),
			q: make([]float64, d), o: make([]float64, d),
		}
		for i := lo; i < hi; i++ {
			b, h, from := i/(heads*tiles), i/tiles%heads, i%tiles*queryTile
			head.valid = lk
			if a.KeyLen != nil {
				head.valid = a.KeyLen[b]
			}
			for j := range head.valid {
				at := (b*lk+j)*heads + h
				load(head.keys[j*d:(j+1)*d], k, rowStart(k, at))
				load(head.values[j*d:(j+1)*d], v, rowStart(v, at))
			}
			for l := from; l < min(from+queryTile, lq); l++ {
				at := (b*lq+l)*heads + h
				load(head.q, q, rowStart(q, at))
				lse := head.attend(a, h, l)
				store(o, rowStart(o, at), head.o)
				if !a.LSE.IsZero() {
					store(a.LSE, rowStart(a.LSE, b*heads+h)+l, []float64{lse})
				}
			}
		}
	})
}

// headRows is the scratch memory of one head: widened keys and values [Lk, D], of which valid rows count, one query and
// its result [D].
type headRows struct {
	keys, values []float64
	valid        int
	scores, q, o []float64
}

// attend computes the result of query l of head h and returns the log-sum-exp of its scores.
func (r *headRows) attend(a engine.AttentionArgs, h, l int) float64 {
	n, d := r.valid, len(r.q)
	if a.Causal {
		n = min(n, l+1)
	}
	scores := r.scores[:n]
	if !a.Bias.IsZero() {
		load(scores, a.Bias, rowStart(a.Bias, h*a.Bias.Dim(1)+l))
	} else {
		clear(scores)
	}
	scale, top, j := float64(a.Scale), math.Inf(-1), 0
	for ; j+4 <= n; j += 4 {
		s0, s1, s2, s3 := dot4(r.q, r.keys[j*d:], r.keys[(j+1)*d:], r.keys[(j+2)*d:], r.keys[(j+3)*d:])
		scores[j], scores[j+1], scores[j+2], scores[j+3] = scores[j]+scale*s0, scores[j+1]+scale*s1, scores[j+2]+scale*s2,
			scores[j+3]+scale*s3
	}
	for ; j < n; j++ {
		scores[j] += scale * dot(r.q, r.keys[j*d:])
	}
	for _, s := range scores {
		top = max(top, s)
	}
	o := r.o
	clear(o)
	if math.IsInf(top, -1) { // no key, or a bias that hides all of them
		return top
	}
	sum := 0.0
	for j, s := range scores {
		p := math.Exp(s - top)
		sum += p
		values := r.values[j*d : (j+1)*d]
		for c := range o {
			o[c] += p * values[c]
		}
	}
	for c := range o {
		o[c] /= sum
	}
	return top + math.Log(sum)
}

// MergeAttention implements engine.Ops. With s = exp(lse), s2 = exp(lse2): o = (s o + s2 o2) / (s + s2), lse = log(s +
// s2).
func (*Ops) MergeAttention(o, lse, o2, lse2 engine.Tensor) {
	engine.CheckMergeAttention(o, lse, o2, lse2)
	lq, heads, d := o.Dim(1), o.Dim(2), o.Dim(3)
	spread(o.Dim(0)*heads*lq, d, func(lo, hi int) {
		a, b := make([]float64, d), make([]float64, d)
		var s, s2 [1]float64
		for i := lo; i < hi; i++ {
			item, h, l := i/(heads*lq), i/lq%heads, i%lq
			at := (item*lq+l)*heads + h
			load(s[:], lse, rowStart(lse, item*heads+h)+l)
			load(s2[:], lse2, rowStart(lse2, item*heads+h)+l)
			if math.IsInf(s2[0], -1) { // nothing to fold in, also when both are empty
				continue
			}
			top := max(s[0], s2[0])
			w, w2 := math.Exp(s[0]-top), math.Exp(s2[0]-top)
			load(a, o, rowStart(o, at))
			load(b, o2, rowStart(o2, at))
			for c := range a {
				a[c] = (w*a[c] + w2*b[c]) / (w + w2)
			}
			store(o, rowStart(o, at), a)
			store(lse, rowStart(lse, item*heads+h)+l, []float64{top + math.Log(w+w2)})
		}
	})
}
