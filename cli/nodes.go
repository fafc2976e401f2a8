package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/node/classes"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

func nodesCmd() *cobra.Command {
	var t settings.Target
	var cfg daemon.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "nodes [CLASS]",
		Short: "List the node classes, or show one",
		Long: "nodes lists the ComfyUI node classes that this program runs, or shows the inputs and outputs of one. " +
			"It needs no daemon; with --nats or --socket it asks one.",
		Example: `  patchbay nodes
  patchbay nodes KSampler
  patchbay nodes KSampler --json`,
		Args: console.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			class := ""
			if len(args) == 1 {
				class = args[0]
			}
			info, err := objectInfo(cmd, &t, &cfg, class)
			if err != nil {
				return err
			}
			if class != "" && info.Len() == 0 {
				return console.BadInput(fmt.Errorf("no node class %q%s; patchbay nodes lists them", class,
					didYouMean(classes.All(), class)))
			}
			if asJSON {
				console.PrintJSON(cmd.OutOrStdout(), info)
				return nil
			}
			if class != "" {
				showClass(cmd, info, class)
				return nil
			}
			var rows [][]string
			for _, name := range info.Keys() {
				o := object(info, name)
				rows = append(rows, []string{name, text(o, "category"), text(o, "display_name")})
			}
			console.PrintColumns(cmd.OutOrStdout(), []string{"CLASS", "CATEGORY", "NAME"}, rows)
			return nil
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = classNames
	settings.Folders(cmd.Flags(), &cfg)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print ComfyUI's object_info as JSON")
	return cmd
}

// didYouMean names the class that is like an unknown one, if there is one.
func didYouMean(catalogue *graph.Catalogue, class string) string {
	if like := catalogue.Similar(class); like != "" {
		return ", did you mean " + like + "?"
	}
	return ""
}

// objectInfo asks a daemon if the command line names one, and otherwise reads the catalogue of this program.
func objectInfo(cmd *cobra.Command, t *settings.Target, cfg *daemon.Config, class string) (*pyjson.Object, error) {
	if t.Given() {
		return ask(cmd, t, func(ctx context.Context, c client.Client) (*pyjson.Object, error) {
			return client.Describe(ctx, c, class)
		})
	}
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	m := classes.All().ObjectInfo(cfg.Roots(), class)
	o := pyjson.NewObject()
	for _, k := range slices.Sorted(maps.Keys(m)) {
		o.Set(k, m[k])
	}
	return o, nil
}

func object(o *pyjson.Object, key string) *pyjson.Object {
	if c, ok := o.At(key).(*pyjson.Object); ok {
		return c
	}
	return pyjson.NewObject()
}

func text(o *pyjson.Object, key string) string {
	s, _ := o.At(key).(string)
	return s
}

func showClass(cmd *cobra.Command, info *pyjson.Object, class string) {
	o := object(info, class)
	out := cmd.OutOrStdout()
	console.Printf(out, "%s (%s)\n", class, text(o, "category"))
	if d := text(o, "description"); d != "" {
		console.Printf(out, "%s\n", d)
	}
	var rows [][]string
	choices := "" // one line per input that takes one of a list
	for _, group := range []string{"required", "optional"} {
		g := object(object(o, "input"), group)
		for _, name := range g.Keys() {
			pair, _ := g.At(name).([]any)
			kind, preset, limits := inputText(pair)
			rows = append(rows, []string{name, group, kind, preset, limits})
			if len(pair) == 0 {
				continue
			}
			if list, ok := pair[0].([]any); ok && len(list) > 0 {
				choices += fmt.Sprintf("%s: %s\n", name, strings.TrimSpace(fmt.Sprintln(list...)))
			}
		}
	}
	console.PrintColumns(out, []string{"INPUT", "NEED", "TYPE", "DEFAULT", "RANGE"}, rows)
	console.Printf(out, "%soutputs: %v\n", choices, o.At("output"))
}

// inputText describes a [type, options] pair.
func inputText(pair []any) (kind, preset, limits string) {
	if len(pair) == 0 {
		return "", "", ""
	}
	kind = fmt.Sprint(pair[0])
	if list, ok := pair[0].([]any); ok {
		kind = fmt.Sprintf("one of %d", len(list))
	}
	if len(pair) < 2 {
		return kind, "", ""
	}
	opts, ok := pair[1].(*pyjson.Object)
	if !ok {
		return kind, "", ""
	}
	if d, ok := opts.Get("default"); ok {
		preset = fmt.Sprint(d)
	}
	low, has := opts.Get("min")
	high, hasHigh := opts.Get("max")
	if has || hasHigh {
		limits = fmt.Sprintf("%v..%v", low, high)
	}
	return kind, preset, limits
}
