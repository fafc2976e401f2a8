package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/node/classes"
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
				return console.BadInput(fmt.Errorf("no node class %q; patchbay nodes lists them", class))
			}
			if asJSON {
				console.NewProgress(cmd.OutOrStdout(), true).PrintJSON(info)
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
			console.PrintTable(cmd.OutOrStdout(), []string{"class", "category", "name"}, rows)
			return nil
		},
	}
	t.Add(cmd.Flags())
	cmd.ValidArgsFunction = classNames
	settings.Folders(cmd.Flags(), &cfg)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print ComfyUI's object_info as JSON")
	return cmd
}

// objectInfo asks a daemon if one is named, or else the catalogue of this program.
func objectInfo(cmd *cobra.Command, t *settings.Target, cfg *daemon.Config, class string) (*pyjson.Object, error) {
	if t.Given() {
		c, err := t.Dial()
		if err != nil {
			return nil, err
		}
		defer console.CloseQuietly(c)
		ctx, stop := asking(cmd.Context())
		defer stop()
		return client.Describe(ctx, c, class)
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
	v, _ := o.Get(key)
	if c, ok := v.(*pyjson.Object); ok {
		return c
	}
	return pyjson.NewObject()
}

func text(o *pyjson.Object, key string) string {
	v, _ := o.Get(key)
	s, _ := v.(string)
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
	for _, group := range []string{"required", "optional"} {
		g := object(object(o, "input"), group)
		for _, name := range g.Keys() {
			v, _ := g.Get(name)
			pair, _ := v.([]any)
			rows = append(rows, append([]string{name, group}, inputText(pair)...))
		}
	}
	console.PrintTable(out, []string{"input", "", "type", "default", "range"}, rows)
	showChoices(out, object(o, "input"))
	v, _ := o.Get("output")
	console.Printf(out, "outputs: %v\n", v)
}

// showChoices lists the values of inputs that take one of a list, a line each.
func showChoices(out io.Writer, input *pyjson.Object) {
	for _, group := range []string{"required", "optional"} {
		g := object(input, group)
		for _, name := range g.Keys() {
			v, _ := g.Get(name)
			pair, _ := v.([]any)
			if len(pair) == 0 {
				continue
			}
			if list, ok := pair[0].([]any); ok && len(list) > 0 {
				console.Printf(out, "%s: %s\n", name, strings.TrimSpace(fmt.Sprintln(list...)))
			}
		}
	}
}

// inputText describes a [type, options] pair: type, default, range.
func inputText(pair []any) []string {
	out := []string{"", "", ""}
	if len(pair) == 0 {
		return out
	}
	if list, ok := pair[0].([]any); ok {
		out[0] = fmt.Sprintf("one of %d", len(list))
	} else {
		out[0] = fmt.Sprint(pair[0])
	}
	if len(pair) < 2 {
		return out
	}
	opts, ok := pair[1].(*pyjson.Object)
	if !ok {
		return out
	}
	if d, ok := opts.Get("default"); ok {
		out[1] = fmt.Sprint(d)
	}
	low, has := opts.Get("min")
	high, hasHigh := opts.Get("max")
	if has || hasHigh {
		out[2] = fmt.Sprintf("%v..%v", low, high)
	}
	return out
}
