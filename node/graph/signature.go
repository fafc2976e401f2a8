package graph

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"

	"patchbay/node/pyjson"
	"patchbay/parallel/plan"
)

// signature returns the cache signature of a node. Nodes with the same signature give the same results; "" means that
// the node must run in any case. ComfyUI's rules (comfy_execution/caching.py): class, change value, all inputs given
// (undeclared ones too), and the same for all ancestors. Node ids count only for classes that are told theirs. 1, 1.0
// and true are equal.
func (x *execution) signature(id string) string {
	if sig, ok := x.signed[id]; ok {
		return sig
	}
	x.signed[id] = "" // a cycle ends here
	x.signed[id] = x.sign(id)
	return x.signed[id]
}

func (x *execution) sign(id string) string {
	w, k := x.job.Workflow, x.class(id)
	inputs := w.inputs(id)
	if k == nil || k.Fresh || inputs == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "class %q\n", k.Name)
	change, err := x.change(id, k, inputs)
	if err != nil {
		return ""
	}
	fmt.Fprintf(&b, "change %q\n", change)
	if k.Phase == PhaseDenoise || k.Phase == PhaseText {
		plan, err := plan.Parse(x.job.Plan)
		if err != nil {
			return ""
		}
		if k.Phase == PhaseText { // only tensor parallelism changes how its sums round
			fmt.Fprintf(&b, "tensor %d\n", plan.Tensor)
		} else { // stale keys and values change the picture, and a plan that cannot run must be reported
			fmt.Fprintf(&b, "plan %s\n", plan)
		}
	}
	for _, h := range k.Hidden {
		if h.Kind == "UNIQUE_ID" {
			fmt.Fprintf(&b, "id %q\n", id)
		}
	}
	if k.Output && x.job.NoMetadata {
		b.WriteString("no metadata\n")
	}
	for _, name := range slices.Sorted(slices.Values(inputs.Keys())) {
		v := inputs.At(name)
		if l, ok := asLink(v); ok && w.root.Has(l.id) {
			up := x.signature(l.id)
			if up == "" {
				return ""
			}
			fmt.Fprintf(&b, "link %q %s %d\n", name, up, l.slot)
			continue
		}
		fmt.Fprintf(&b, "input %q %s\n", name, canonical(v))
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// change returns the change value of a node: the one stored in the graph, or what the class computes from its literal
// inputs. On an error the node must run.
func (x *execution) change(id string, k *Class, inputs *pyjson.Object) (string, error) {
	if stored, ok := x.job.Workflow.root.In(id).Get("is_changed"); ok {
		return canonical(stored), nil
	}
	if k.Change == nil {
		return "", nil
	}
	in := map[string]any{}
	for _, name := range inputs.Keys() {
		if v := inputs.At(name); !IsLink(v) {
			in[name] = v
		}
	}
	return k.Change(x.newCall(id, k, in))
}

// canonical renders a literal so that values that are equal in Python look equal.
func canonical(v any) string {
	switch x := v.(type) {
	case bool:
		if x {
			return "1"
		}
		return "0"
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return fmt.Sprint(int64(x))
		}
		return pyjson.FormatFloat(x)
	case []any:
		parts := make([]string, len(x))
		for i := range x {
			parts[i] = canonical(x[i])
		}
		return "[" + strings.Join(parts, ",") + "]"
	case *pyjson.Object:
		var parts []string
		for _, k := range slices.Sorted(slices.Values(x.Keys())) {
			parts = append(parts, pyjson.Quote(k)+":"+canonical(x.At(k)))
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	return pyjson.Repr(v)
}
