package text

import "math"

// buckets returns the relative-position bucket of every (query, key) pair of l tokens, row-major (arXiv:1910.10683,
// sec. 2.1, in Mesh TensorFlow's bidirectional form). Half of the n buckets are for keys after the query. The first
// half of each half holds exact distances, the rest grow logarithmically up to maxDistance. Computed in float32 like
// the original.
func buckets(l, n, maxDistance int) []int32 {
	half := n / 2
	exact := half / 2
	of := func(distance int) int32 { // key position minus query position
		base := 0
		if distance > 0 {
			base = half
		} else {
			distance = -distance
		}
		if distance < exact {
			return int32(base + distance)
		}
		ratio := float32(math.Log(float64(float32(distance)/float32(exact)))) /
			float32(math.Log(float64(maxDistance)/float64(exact)))
		return int32(base + min(exact+int(ratio*float32(half-exact)), half-1))
	}
	out := make([]int32, 0, l*l)
	for q := range l {
		for k := range l {
			out = append(out, of(k-q))
		}
	}
	return out
}
