package family

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ReadConfig sets the fields of the Config *to that the JSON under meta["config"] has; without that key it does
// nothing. It returns an error if the JSON does not fit. name is the family's, for errors.
func ReadConfig(name string, meta map[string]string, to any) error {
	text, ok := meta["config"]
	if !ok {
		return nil
	}
	if err := json.Unmarshal([]byte(text), to); err != nil {
		return fmt.Errorf("%s: config in the file's metadata: %w", name, err)
	}
	return nil
}

// Shapes returns the shapes of weights [n, k] and biases [n] of some layers, by tensor name.
func Shapes(of map[string][2]int) map[string][]int {
	out := map[string][]int{}
	for name, size := range of {
		out[name+".weight"], out[name+".bias"] = size[:], size[:1]
	}
	return out
}

// Heads returns the number of heads of width d in a width, and the axes of their rotation. If the file's metadata has
// no axes, the released ones apply if they add up to d. It returns an error if the width is not a multiple of d, or if
// axes are not as many even, positive sizes as the released ones, with the sum d. name is the family's and member the
// JSON name of the axes, for errors.
func Heads(name, member string, axes, released []int, width, d int) (int, []int, error) {
	if d == 0 || width == 0 || width%d != 0 {
		return 0, nil, fmt.Errorf("%s: width %d is not a multiple of the head dim %d", name, width, d)
	}
	sum := func(sizes []int) (n int) {
		for _, a := range sizes {
			n += a
		}
		return n
	}
	if axes == nil && sum(released) == d {
		axes = released
	}
	if slices.ContainsFunc(axes, func(a int) bool { return a <= 0 || a%2 != 0 }) {
		return 0, nil, fmt.Errorf("%s: %s %v: each must be even and positive", name, member, axes)
	}
	if sum(axes) != d || len(axes) != len(released) {
		return 0, nil, fmt.Errorf("%s: %s %v must be %d sizes that add up to the head dim %d; files of other sizes carry "+
			"them in their metadata under config", name, member, axes, len(released), d)
	}
	return width / d, axes, nil
}
