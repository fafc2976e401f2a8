package classes

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"patchbay/node/editor"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// familyFiles matches the file names of supported networks, and otherFiles names that only look like them.
var (
	familyFiles = regexp.MustCompile(`(?i)flux|krea|qwen|z_image|zimage|sd3|pixart|hunyuan_?dit|rebalance|wan2|` +
		`minimax_h3|fasth3|ltx-?2|sd_?xl|sd_?1\.?5|v1-5|dreamshaper|juggernaut|animagine`)
	otherFiles = regexp.MustCompile(`(?i)moss|lotus|vace|animate|s2v|humo|infinitetalk|fun_|camera|ltxv?-?(0|video)`)
)

// template is one of the official workflows, and how often it is used.
type template struct {
	name  string
	kind  string // image, video, audio, 3d and so on
	known bool   // its networks are all of families that are here
	usage int64
	graph *pyjson.Object
	nodes []*pyjson.Object // active ones, subgraphs included
}

// TestTemplatesValidate counts, by number and by use, which official workflows that run locally convert and validate
// and have only networks of families that are here, by kind of media; and which classes the others lack, by the use of
// those that lack nothing else. PATCHBAY_TEMPLATES names their folder (templates/ of the Python package
// comfyui-workflow-templates-json).
func TestTemplatesValidate(t *testing.T) {
	dir := os.Getenv("PATCHBAY_TEMPLATES")
	if dir == "" {
		t.Skip("NOT RUN: PATCHBAY_TEMPLATES names no folder with ComfyUI's workflow templates")
	}
	cat := All()
	describe := cat.WithoutFiles
	type count struct{ all, known, good [2]int64 }
	add := func(n *[2]int64, usage int64) { n[0], n[1] = n[0]+1, n[1]+usage }
	counts := map[string]*count{}
	lacking, alone := map[string]int{}, map[string]int{}
	for _, p := range templatesIn(t, dir) {
		var of []*count
		for _, kind := range []string{"all", p.kind} {
			if counts[kind] == nil {
				counts[kind] = &count{}
			}
			of = append(of, counts[kind])
		}
		text := wrongWith(t, cat, describe, p.graph)
		for _, c := range of {
			add(&c.all, p.usage)
			if p.known {
				add(&c.known, p.usage)
			}
			if p.known && text == "" {
				add(&c.good, p.usage)
			}
		}
		if text == "" && p.known {
			continue
		}
		var missing []string
		for _, n := range p.nodes {
			if class, _ := n.At("type").(string); describe(class) == nil && !isEditorOnly(class, p.graph) {
				missing = append(missing, class)
			}
		}
		sort.Strings(missing)
		missing = slices.Compact(missing)
		for _, m := range missing {
			lacking[m] += int(p.usage)
		}
		if len(missing) == 1 && p.known {
			alone[missing[0]] += int(p.usage)
		}
		if len(missing) > 0 {
			text = "lacks " + strings.Join(missing, ", ")
		}
		if !p.known {
			text = "another network; " + text
		}
		t.Logf("%6d %s (%s): %s", p.usage, p.name, p.kind, text)
	}
	t.Logf("classes that are lacking, by use: %s", frequent(lacking))
	t.Logf("those that are all that is lacking: %s", frequent(alone))
	t.Log("| kind | templates | use | networks that are here | convert and validate |")
	percent := func(n, of [2]int64) string {
		return fmt.Sprintf("%d, %.1f %% of use", n[0], 100*float64(n[1])/float64(max(of[1], 1)))
	}
	for _, kind := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Compare(counts[b].all[1], counts[a].all[1])
	}) {
		c := counts[kind]
		t.Logf("| %s | %d | %d | %s | %s |", kind, c.all[0], c.all[1], percent(c.known, c.all), percent(c.good, c.all))
	}
	if c := counts["all"]; c == nil || c.good[0] == 0 {
		t.Error("no template validates")
	}
}

// wrongWith returns what conversion or validation say of a graph; empty: nothing.
func wrongWith(t *testing.T, cat *graph.Catalogue, describe func(string) *pyjson.Object, g *pyjson.Object) string {
	t.Helper()
	api, failure := editor.Convert(g, describe)
	if failure != nil {
		return failure.Error()
	}
	w, failure := graph.ParseWorkflow(api)
	if failure != nil {
		return failure.Error()
	}
	return complaint(cat, madeFor(t, cat, w), w)
}

// isEditorOnly reports whether a class is a subgraph of the file or a node that never runs.
func isEditorOnly(class string, g *pyjson.Object) bool {
	defs, _ := g.At("definitions").(*pyjson.Object)
	if defs != nil {
		subs, _ := defs.At("subgraphs").([]any)
		for _, s := range subs {
			if s.(*pyjson.Object).At("id") == class {
				return true
			}
		}
	}
	return slices.Contains([]string{"Note", "MarkdownNote", "Reroute", "PrimitiveNode"}, class)
}

// templatesIn reads the templates that run locally, most used first.
func templatesIn(t *testing.T, dir string) (out []template) {
	t.Helper()
	read := func(name string) any {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil
		}
		v, err := pyjson.Decode(data)
		check(t, err)
		return v
	}
	index, _ := read("index.json").([]any)
	for _, c := range index {
		group := c.(*pyjson.Object)
		kind, _ := group.At("type").(string)
		for _, e := range group.At("templates").([]any) {
			entry := e.(*pyjson.Object)
			name, _ := entry.At("name").(string)
			g, _ := read(name + ".json").(*pyjson.Object)
			if g == nil || entry.At("openSource") != true {
				continue
			}
			usage, _ := entry.At("usage").(int64)
			nodes := activeNodes(g)
			ours, others := networks(nodes)
			out = append(out, template{name, kind, others == 0 && ours > 0, usage, g, nodes})
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].usage > out[j].usage })
	return out
}

func activeNodes(g *pyjson.Object) (out []*pyjson.Object) {
	canvases := []any{g}
	if defs, ok := g.At("definitions").(*pyjson.Object); ok {
		subs, _ := defs.At("subgraphs").([]any)
		canvases = append(canvases, subs...)
	}
	for _, c := range canvases {
		nodes, _ := c.(*pyjson.Object).At("nodes").([]any)
		for _, n := range nodes {
			if mode := n.(*pyjson.Object).At("mode"); mode != int64(2) && mode != int64(4) {
				out = append(out, n.(*pyjson.Object))
			}
		}
	}
	return out
}

// networks counts the loaders of supported networks and of others.
func networks(nodes []*pyjson.Object) (ours, others int) {
	for _, n := range nodes {
		if class := n.At("type"); class != "UNETLoader" && class != "CheckpointLoaderSimple" {
			continue
		}
		values, _ := n.At("widgets_values").([]any)
		if len(values) == 0 {
			others++
			continue
		}
		name, _ := values[0].(string)
		if familyFiles.MatchString(filepath.Base(name)) && !otherFiles.MatchString(name) {
			ours++
		} else {
			others++
		}
	}
	return ours, others
}
