package graph

import (
	"slices"

	"patchbay/node/files"
)

// Needs lists the files that job.Outputs depend on, each once, in the order of the workflow. Files sent with the job
// are left out. Files that the index does not find have neither size nor hash.
func Needs(cat *Catalogue, index *files.Index, job Job) []files.NeededFile {
	reached := newWorklist(job.Workflow, cat, job.Outputs, func(string) bool { return false }, true).waits
	var out []files.NeededFile
	seen := map[files.NeededFile]bool{}
	for _, id := range job.Workflow.IDs() {
		if _, ok := reached[id]; !ok {
			continue
		}
		k := cat.classes[job.Workflow.Class(id)]
		declared := k.Declared(job.Workflow, id)
		for i := range declared {
			f, ok := declared[i].names(job, id)
			if !ok || seen[f] {
				continue
			}
			seen[f] = true
			if had, ok := index.Find(f.Kind, f.Name); ok {
				f = had
			}
			out = append(out, f)
		}
	}
	return out
}

// names returns the file that an input of a node names, if it must exist here.
func (in *Input) names(job Job, id string) (files.NeededFile, bool) {
	v, ok := job.Workflow.Input(id, in.Name)
	name, text := v.(string)
	if in.Files == "" || !ok || !text {
		return files.NeededFile{}, false
	}
	if slices.Contains(in.Choices, name) {
		return files.NeededFile{}, false
	}
	base, _ := files.Annotated(name)
	_, sent := job.Inputs[base]
	return files.NeededFile{Kind: in.Files, Name: name}, !sent
}
