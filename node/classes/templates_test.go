package classes

import (
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
	familyFiles = regexp.MustCompile(`(?i)flux|krea|qwen|z_image|zimage|sd3|pixart|hunyuan_?dit|rebalance`)
	otherFiles  = regexp.MustCompile(`(?i)flux-?3|qwen_image_2\.1|moss|lotus`)
)

// template is one of the official workflows, and how often it is used.
type template struct {
	name  string
	usage int64
	graph *pyjson.Object
	nodes []*pyjson.Object // active ones, subgraphs included
}

// TestTemplatesValidate counts, by number and by use, which official image workflows of supported networks convert and
// validate, and which classes the others lack. PATCHBAY_TEMPLATES names their folder (templates/ of the Python package
// comfyui-workflow-templates-json).
func TestTemplatesValidate(t *testing.T) {
	dir := os.Getenv("PATCHBAY_TEMPLATES")
	if dir == "" {
		t.Skip("NOT RUN: PATCHBAY_TEMPLATES names no folder with ComfyUI's workflow templates")
	}
	cat := All()
	describe := cat.WithoutFiles
	var all, good [2]int64 // by number, by use
	lacking := map[string]int{}
	list := templatesIn(t, dir)
	for _, p := range list {
		all[0], all[1] = all[0]+1, all[1]+p.usage
		api, failure := editor.Convert(p.graph, describe)
		text := ""
		if failure != nil {
			text = failure.Error()
		} else if w, failure := graph.ParseWorkflow(api); failure != nil {
			text = failure.Error()
		} else {
			text = complaint(cat, madeFor(t, cat, w), w)
		}
		if text == "" {
			good[0], good[1] = good[0]+1, good[1]+p.usage
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
		if len(missing) > 0 {
			text = "lacks " + strings.Join(missing, ", ")
		}
		t.Logf("%6d %s: %s", p.usage, p.name, text)
	}
	t.Logf("%d of %d templates validate, %d of %d by use; classes that the others lack, by use: %s", good[0], all[0],
		good[1], all[1], frequent(lacking))
	if good[0] == 0 {
		t.Error("no template validates")
	}
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

// templatesIn reads the open image templates whose networks are supported, most used first.
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
		if kind := group.At("type"); kind != "image" && kind != "llm" {
			continue
		}
		for _, e := range group.At("templates").([]any) {
			entry := e.(*pyjson.Object)
			name, _ := entry.At("name").(string)
			g, _ := read(name + ".json").(*pyjson.Object)
			if g == nil || entry.At("openSource") != true {
				continue
			}
			usage, _ := entry.At("usage").(int64)
			p := template{name, usage, g, activeNodes(g)}
			if ours, others := networks(p.nodes); ours > 0 && others == 0 {
				out = append(out, p)
			}
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
