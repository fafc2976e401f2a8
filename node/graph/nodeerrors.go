package graph

import (
	"cmp"
	"maps"
	"slices"

	"patchbay/fault"
	"patchbay/node/pyjson"
)

// report builds node_errors: every node with errors of its own that is a bad output or an ancestor of one.
func (v *validation) report(bad []string) map[string]any {
	dependents := map[string][]any{}
	for _, out := range bad {
		seen := map[string]bool{}
		var walk func(id string)
		walk = func(id string) {
			r := v.done[id]
			if r == nil || seen[id] {
				return
			}
			seen[id] = true
			if len(r.errors) > 0 {
				dependents[id] = append(dependents[id], out)
			}
			for _, d := range r.deps {
				walk(d)
			}
		}
		walk(out)
	}
	report := map[string]any{}
	for id, outs := range dependents {
		list := []any{}
		for _, e := range v.done[id].errors {
			list = append(list, pyjson.NewObject("type", e.kind, "message", e.message, "details", e.details,
				"extra_info", e.extra))
		}
		report[id] = pyjson.NewObject("errors", list, "dependent_outputs", outs, "class_type", v.w.Class(id))
	}
	return report
}

// blame points the failure at the first node with errors, for readers that show one line.
func (v *validation) blame(f *fault.Error) {
	ids := slices.Collect(maps.Keys(f.NodeErrors))
	pyjson.SortKeys(ids)
	if len(ids) == 0 {
		return
	}
	f.Node, f.Class = ids[0], v.w.Class(ids[0])
	errs := v.done[ids[0]].errors
	slices.SortStableFunc(errs, func(a, b problem) int { return cmp.Compare(a.details, b.details) })
	f.Field = errs[0].extra.Text("input_name")
}
