package text

import "math"

// buckets returns the relative-position bucket of every pair (query, key) of l tokens, row-major (arXiv:1910.10683,
// sec. 2.1; the rule is that of Mesh TensorFlow's bidirectional form): half of the buckets are for keys behind the
// query; of each half the first half are exact distances, the others grow logarithmically up to maxDistance. float32 as
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
