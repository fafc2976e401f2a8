package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// need is a file that a node of a workflow names.
type need struct{ id, class, input, kind, name string }

// picture reports whether the file belongs into the input folder.
func (n *need) picture() bool {
	return files.IsInput(n.kind)
}

// needs returns the files that the nodes of a workflow name. Nodes of unknown classes have none, and where an editor
// graph lacks a name, any file will do.
func needs(w *graph.Workflow, catalogue *graph.Catalogue) (out []need) {
	for _, id := range w.IDs() {
		k := catalogue.Class(w.Class(id))
		if k == nil {
			continue
		}
		for _, in := range k.Declared(w, id) {
			v, _ := w.Input(id, in.Name)
			name, ok := v.(string)
			if ok && in.Files != "" && name != graph.FirstFile && !slices.Contains(in.Choices, name) {
				out = append(out, need{id, k.Name, in.Name, in.Files, name})
			}
		}
	}
	return out
}

// stock is where the files that workflows name are looked for: a daemon, or folders of this machine.
type stock struct {
	daemon string // what to call it; "": folders of this machine
	roots  files.Roots
	models map[string][]string // of the daemon, by kind
	inputs []string            // pictures and latents that the daemon has
}

// findStock returns the folders that the command line names, or else what a daemon that answers has, or else the
// folders of the environment.
func findStock(cmd *cobra.Command, t *settings.Target, cfg *daemon.Config) (*stock, error) {
	if !foldersGiven(cmd) {
		s, err := ask(cmd, t, stockOf)
		if err == nil || t.Given() {
			return s, err
		}
	}
	return &stock{roots: cfg.Roots()}, nil
}

// foldersGiven reports whether the command line names folders of models.
func foldersGiven(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("models") || cmd.Flags().Changed("comfyui")
}

// stockOf asks a daemon which files it has.
func stockOf(ctx context.Context, c client.Client) (*stock, error) {
	s := &stock{daemon: "the daemon"}
	var err error
	if s.models, err = client.Models(ctx, c); err != nil {
		return nil, err
	}
	for _, class := range []string{"LoadImage", "LoadLatent", "LoadVideo", "LoadAudio"} {
		info, err := client.Describe(ctx, c, class)
		if err != nil {
			return nil, err
		}
		required := object(object(object(info, class), "input"), "required")
		for _, name := range required.Keys() {
			pair, _ := required.At(name).([]any)
			if len(pair) == 0 {
				continue
			}
			choices, old := pair[0].([]any)
			if !old && len(pair) > 1 {
				options, _ := pair[1].(*pyjson.Object)
				choices, _ = options.At("options").([]any)
			}
			for _, v := range choices {
				if text, ok := v.(string); ok {
					s.inputs = append(s.inputs, text)
				}
			}
		}
	}
	s.roots.Also = s.list
	return s, nil
}

// list returns the names of files of a kind that the daemon has.
func (s *stock) list(kind string) (names []string) {
	switch kind {
	case files.KindInputImage, files.KindInputLatent, files.KindInputVideo, files.KindInputAudio:
		return s.inputs
	case files.KindGGUF:
		for _, name := range s.models[files.KindDiffusion] {
			if strings.HasSuffix(strings.ToLower(name), ".gguf") {
				names = append(names, name)
			}
		}
		return names
	}
	return s.models[kind]
}

// has reports whether the stock has a file.
func (s *stock) has(n *need) bool {
	base, folder := files.Annotated(n.name)
	switch {
	case s.daemon != "" && n.picture(): // it says what is in the input folder only
		return folder != "input" || slices.Contains(s.inputs, base)
	case s.daemon != "":
		return slices.Contains(s.list(n.kind), n.name)
	case n.picture():
		_, err := s.roots.Picture(n.input, n.name)
		return err == nil
	}
	_, err := s.roots.Resolve(n.kind, n.input, n.name)
	return err == nil
}
