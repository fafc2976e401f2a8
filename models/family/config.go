package family

import (
	"encoding/json"
	"fmt"
)

// ReadConfig fills in the members of a Config that the JSON under meta["config"] has; without it nothing changes. to is
// a pointer to it, name the family's. Errors: text that is no such JSON.
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

// CheckAxes refuses axes of a rotation that are not n even, positive sizes whose sum is the head dim d. name is the
// family's, member what their JSON is called.
func CheckAxes(name, member string, axes []int, n, d int) error {
	sum := 0
	for _, a := range axes {
		if sum += a; a <= 0 || a%2 != 0 {
			return fmt.Errorf("%s: %s %v: each must be even and positive", name, member, axes)
		}
	}
	if sum != d || len(axes) != n {
		return fmt.Errorf("%s: %s %v must be %d sizes that add up to the head dim %d; files of other sizes carry them in "+
			"their metadata under config", name, member, axes, n, d)
	}
	return nil
}
