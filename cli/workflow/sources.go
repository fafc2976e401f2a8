package workflow

import (
	"cmp"
	"slices"

	"patchbay/ipc/message"
	"patchbay/node/pyjson"
)

// Source is what a workflow says of a model file that it names: properties.models of a node, as official templates of
// ComfyUI have it.
type Source struct {
	Name      string
	URL       string
	Directory string // below a models folder
	Hash      string // "" if it is not known
	HashType  string
}

// Sources returns what a workflow says of its model files. A graph in API format says it only if the graph in the
// editor's format is beside it, as in pictures.
func Sources(req *message.RunRequest) []Source {
	var out []Source
	for n := range drawnNodes(req.ExtraPNG.In("workflow")) {
		list, _ := n.In("properties").At("models").([]any)
		for _, v := range list {
			o, _ := v.(*pyjson.Object)
			s := Source{
				Name: o.Text("name"), URL: o.Text("url"), Directory: o.Text("directory"), Hash: o.Text("hash"),
				HashType: o.Text("hash_type"),
			}
			if s.Name != "" && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// SourceOf returns the source of a file that is looked for in folders of these names: one that names such a folder, or
// else any. ok is false if there is none.
func SourceOf(list []Source, name string, folders []string) (s Source, ok bool) {
	rank := func(s Source) int { return slices.Index(folders, s.Directory) }
	for _, one := range list {
		if one.Name == name && (!ok || rank(s) < 0 && rank(one) >= 0) {
			s, ok = one, true
		}
	}
	s.HashType = cmp.Or(s.HashType, "SHA256")
	return s, ok
}
