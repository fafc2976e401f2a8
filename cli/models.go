package cli

import (
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/node/files"
)

func modelsCmd() *cobra.Command {
	var t settings.Target
	var cfg daemon.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the model files that workflows can name",
		Long: `models lists the model files that a daemon has, if one answers, or else those below the folders of
PATCHBAY_MODELS. With --models or --comfyui it lists those below these folders and asks nobody.`,
		Example: "  patchbay models --comfyui ~/ComfyUI",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			files, err := modelFiles(cmd, &t, &cfg)
			if err != nil {
				return err
			}
			if asJSON {
				console.PrintJSON(cmd.OutOrStdout(), files)
				return nil
			}
			var rows [][]string
			for _, kind := range slices.Sorted(maps.Keys(files)) {
				for _, f := range files[kind] {
					rows = append(rows, []string{kind, f})
				}
			}
			if len(rows) == 0 {
				console.Printf(cmd.ErrOrStderr(),
					"no model files; name the folders with --models or --comfyui, or a daemon with --nats or --socket\n")
			}
			console.PrintTable(cmd.OutOrStdout(), []string{"folder", "file"}, rows)
			return nil
		},
	}
	t.Add(cmd.Flags())
	settings.Folders(cmd.Flags(), &cfg)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func modelFiles(cmd *cobra.Command, t *settings.Target, cfg *daemon.Config) (map[string][]string, error) {
	if t.Given() {
		return ask(cmd, t, client.Models)
	}
	if err := cfg.CompleteModels(); err != nil {
		return nil, err
	}
	s, err := findStock(cmd, t, cfg)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, kind := range files.Kinds() {
		out[kind] = s.roots.List(kind)
	}
	return out, nil
}
