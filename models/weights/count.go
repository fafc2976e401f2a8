package weights

import (
	"strconv"
	"strings"

	"patchbay/models/dit"
)

// Total returns the number of parameters of all declared tensors.
func Total(declared []Declared) int64 {
	n := int64(0)
	for _, d := range declared {
		n += d.Params()
	}
	return n
}

// PerElement returns the number of parameters of each element of a list ("double_blocks") of n elements.
func PerElement(declared []Declared, list string, n int) []int64 {
	out := make([]int64, n)
	for _, d := range declared {
		rest, ok := strings.CutPrefix(d.Name, list+".")
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, ".")
		if i, err := strconv.Atoi(digits); err == nil && i < n {
			out[i] += d.Params()
		}
	}
	return out
}

// For returns the declared tensors of one use.
func For(declared []Declared, u dit.Use) []Declared {
	var out []Declared
	for _, d := range declared {
		if d.Use == u {
			out = append(out, d)
		}
	}
	return out
}
