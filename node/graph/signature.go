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

// signer computes cache signatures: what decides whether a node gives the same as another one did before. ComfyUI's
// rules (comfy_execution/caching.py): class, change value, all inputs given (undeclared ones too), the same for all
// ancestors; node ids do not count but for classes that are told theirs; 1, 1.0 and true are equal.
type signer struct {
	run  *Runner
	job  *Job
	cat  *Catalogue
	done map[string]string // "" while a node is being looked at
}

// of returns the signature of a node, "" if it must run in any case.
func (s *signer) of(id string) string {
	if sig, ok := s.done[id]; ok {
		return sig
	}
	s.done[id] = "" // a cycle ends here
	sig := s.compute(id)
	s.done[id] = sig
	return sig
}

func (s *signer) compute(id string) string {
	w := s.job.Workflow
	k := s.cat.classes[w.Class(id)]
	inputs := w.inputs(id)
	if k == nil || k.Fresh || inputs == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "class %q\n", k.Name)
	change, ok := s.change(id, k, inputs)
	if !ok {
		return ""
	}
	fmt.Fprintf(&b, "change %q\n", change)
	if k.Heavy == StageDenoise || k.Heavy == StageText {
		plan, err := plan.Parse(s.job.Plan)
		if err != nil {
			return ""
		}
		if k.Heavy == StageText { // its sums are those of one rank, or not
			fmt.Fprintf(&b, "tensor %d\n", plan.Tensor)
		} else { // stale keys and values make other pictures, and who asks for a plan that cannot run must hear so
			fmt.Fprintf(&b, "plan %s\n", plan)
		}
	}
	for _, h := range k.Hidden {
		if h.Kind == "UNIQUE_ID" {
			fmt.Fprintf(&b, "id %q\n", id)
		}
	}
	if k.Output && s.job.NoMetadata {
		b.WriteString("no metadata\n")
	}
	keys := slices.Sorted(slices.Values(inputs.Keys()))
	for _, name := range keys {
		v := inputs.At(name)
		if l, ok := asLink(v); ok {
			if _, there := w.node(l.id); there {
				up := s.of(l.id)
				if up == "" {
					return ""
				}
				fmt.Fprintf(&b, "link %q %s %d\n", name, up, l.slot)
				continue
			}
		}
		fmt.Fprintf(&b, "input %q %s\n", name, canonical(v))
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// change is the change value of a node: the one stored in the graph, or what the class computes from its literal
// inputs. An error means: run.
func (s *signer) change(id string, k *Class, inputs *pyjson.Object) (string, bool) {
	node, _ := s.job.Workflow.node(id)
	if stored, ok := node.Get("is_changed"); ok {
		return canonical(stored), true
	}
	if k.Change == nil {
		return "", true
	}
	in := map[string]any{}
	for _, name := range inputs.Keys() {
		v := inputs.At(name)
		if _, linked := asLink(v); !linked {
			in[name] = v
		}
	}
	text, err := k.Change(&Call{Job: s.job, ID: id, Class: k, in: in, run: s.run})
	return text, err == nil
}

// canonical renders a literal so that values which Python calls equal look equal.
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
