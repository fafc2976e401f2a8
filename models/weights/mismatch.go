package weights

import (
	"fmt"
	"strings"
)

// MismatchError lists all differences between a file and what a model needs.
type MismatchError struct {
	Model      string   // what should be loaded, e.g. "flux"
	Missing    []string // names that the model needs
	Unexpected []string // names that the model does not know
	Shapes     []string // "name: stored [..], expected [..]" and wrong element types
}

// listed is the maximum number of names of each kind in the error text.
const listed = 12

// Error counts and lists the differences.
func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "file does not fit %s:", e.Model)
	for _, part := range []struct {
		what  string
		names []string
	}{{"missing", e.Missing}, {"unexpected", e.Unexpected}, {"wrong", e.Shapes}} {
		if len(part.names) == 0 {
			continue
		}
		shown := part.names[:min(len(part.names), listed)]
		fmt.Fprintf(&b, " %d %s (%s", len(part.names), part.what, strings.Join(shown, "; "))
		if more := len(part.names) - len(shown); more > 0 {
			fmt.Fprintf(&b, "; and %d more", more)
		}
		b.WriteString(")")
	}
	return b.String()
}

func (e *MismatchError) empty() bool {
	return len(e.Missing)+len(e.Unexpected)+len(e.Shapes) == 0
}
