package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/download"
	"patchbay/cli/settings"
	"patchbay/cli/workflow"
	"patchbay/daemon"
	"patchbay/ipc/client"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/pyjson"
)

type pullFlags struct {
	settings.Target
	cfg       daemon.Config
	tokens    []string
	list, yes bool
}

func pullCmd() *cobra.Command {
	var f pullFlags
	cmd := &cobra.Command{
		Use:   "pull FILE|PICTURE|-",
		Short: "Fetch the model files that a workflow lacks",
		Long: `pull fetches the model files that a workflow names and that are missing, from where the workflow itself has
them (properties.models of its nodes, as in ComfyUI's templates; http and https only), into the first folder of
--models, --comfyui or PATCHBAY_MODELS. Before that it shows name, size, SHA256 and URL of each file, and asks. Trust a
URL as much as the author of the workflow.

Files that the folders have, or a daemon if none are named on the command line, are not fetched. A file that was cut off
goes on where it ended when pull is run again. Its SHA256 is checked if the workflow or Hugging Face gives it.

HF_TOKEN is sent to huggingface.co, a --token to its host, and neither to hosts that these refer to.
Exit codes: 0 nothing is missing any more (--list: all can be fetched), 1 something is, 2 the workflow was refused.`,
		Example: `  patchbay pull flow.json --models ~/ComfyUI/models
  patchbay pull picture.png --list
  HF_TOKEN=$(cat ~/token) patchbay pull flow.json --yes
  patchbay pull flow.json --token models.example.org=@token.txt`,
		Args: console.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runPull(cmd, &f, args[0]) },
	}
	fl := cmd.Flags()
	f.Add(fl)
	settings.Folders(fl, &f.cfg)
	fl.BoolVar(&f.list, "list", false, "show what would be fetched, and end")
	fl.BoolVarP(&f.yes, "yes", "y", false, "fetch without asking")
	fl.StringArrayVar(&f.tokens, "token", nil, "HOST=TOKEN, or HOST=@FILE with the token in a file, which other users "+
		"cannot see as they can a command line; may be given several times")
	cmd.ValidArgsFunction = flowFiles
	return cmd
}

// wanted is a missing file of a workflow.
type wanted struct {
	need
	download.File
	offer  download.Offer
	refuse error // why it cannot be fetched
}

func runPull(cmd *cobra.Command, f *pullFlags, path string) error {
	req, w, err := workflow.ReadWhole(path, cmd.InOrStdin())
	if err != nil {
		return err
	}
	tokens, err := readTokens(f.tokens)
	if err != nil {
		return console.BadInput(err)
	}
	if err := f.cfg.CompleteModels(); err != nil {
		return err
	}
	s, err := findStock(cmd, &f.Target, &f.cfg)
	if err != nil {
		return err
	}
	c := download.New(tokens)
	var list []*wanted
	for _, n := range needs(w, classes.All()) {
		same := func(o *wanted) bool { return o.kind == n.kind && o.need.name == n.name }
		if n.picture() || s.has(&n) || slices.ContainsFunc(list, same) {
			continue
		}
		o := &wanted{need: n, offer: download.Offer{Size: -1}}
		if o.File, o.refuse = fileOf(&n, workflow.Sources(req), f.cfg.Models[0]); o.refuse == nil {
			o.offer, o.refuse = c.Probe(cmd.Context(), &o.File)
		}
		list = append(list, o)
	}
	if len(list) == 0 {
		console.Printf(cmd.OutOrStdout(), "no model file is missing\n")
		return nil
	}
	fetchable := showWanted(cmd, list)
	if !f.list && len(fetchable) > 0 {
		if err := f.agree(cmd, fetchable, path == "-"); err != nil {
			return err
		}
		for _, o := range fetchable {
			o.refuse = fetch(cmd, c, o)
		}
		if s.daemon != "" {
			noteUnseen(cmd, &f.Target, fetchable)
		}
	}
	return lacking(list)
}

// fileOf returns what to fetch for a need, and where to. It refuses what the workflow has no URL for, and folders and
// names that the node would not look into.
func fileOf(n *need, sources []workflow.Source, root string) (download.File, error) {
	folders := files.Folders(n.kind)
	source, ok := workflow.SourceOf(sources, n.name, folders)
	if !ok {
		return download.File{}, errors.New("the workflow does not say where it is from")
	}
	f := download.File{Name: n.name, URL: source.URL, Root: root, Folder: source.Directory}
	if strings.EqualFold(source.HashType, "sha256") {
		f.SHA256 = strings.ToLower(source.Hash)
	}
	if err := f.Check(); err != nil {
		return f, err
	}
	switch {
	case !slices.Contains(folders, f.Folder):
		return f, fmt.Errorf("the workflow wants it in %s, and %s of %s looks into %s", f.Folder, n.input, n.class,
			strings.Join(folders, ", "))
	case !files.HasKindExtension(n.kind, n.name):
		return f, fmt.Errorf("a file of this name is not looked for in %s", f.Folder)
	}
	return f, nil
}

// showWanted prints what is missing, and returns what can be fetched.
func showWanted(cmd *cobra.Command, list []*wanted) (fetchable []*wanted) {
	for _, o := range list {
		if o.refuse == nil {
			console.Printf(cmd.OutOrStdout(), "%s/%s\n", o.Folder, o.Name)
		} else {
			console.Printf(cmd.OutOrStdout(), "%s/%q\n", o.kind, pyjson.Excerpt(o.need.name))
		}
		if u, err := url.Parse(o.URL); err == nil && o.URL != "" {
			size, unchecked := "not known", "not known"
			if o.offer.Size >= 0 {
				size = fmt.Sprintf("%s (%d bytes)", console.Size(float64(o.offer.Size)), o.offer.Size)
				unchecked = "not known; only the size is checked"
			}
			console.Printf(cmd.OutOrStdout(), "  from    %s\n  size    %s\n  sha256  %s\n", u.Redacted(), size,
				cmp.Or(o.offer.SHA256, unchecked))
		}
		if o.refuse != nil {
			console.Printf(cmd.OutOrStdout(), "  cannot be fetched: %v\n", o.refuse)
			continue
		}
		fetchable = append(fetchable, o)
	}
	return fetchable
}

// agree asks whether to fetch, unless the command line has agreed.
func (f *pullFlags) agree(cmd *cobra.Command, list []*wanted, usesInput bool) error {
	if f.yes {
		return nil
	}
	if usesInput {
		return console.BadInput(errors.New("standard input is the workflow: agree with --yes, or look with --list"))
	}
	sum, open := int64(0), ""
	for _, o := range list {
		sum += max(0, o.offer.Size)
		if o.offer.Size < 0 {
			open = " or more"
		}
	}
	console.Printf(cmd.OutOrStdout(), "fetch %s%s into %s (files: %d)? [y/N] ", console.Size(float64(sum)), open,
		list[0].Root, len(list))
	answer, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // no answer is no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was fetched")
}

// fetch fetches one file and shows how far it is.
func fetch(cmd *cobra.Command, c *download.Fetcher, o *wanted) error {
	place := filepath.Join(o.Root, o.Folder)
	if err := os.MkdirAll(o.Root, 0o755); err != nil {
		return err
	}
	grown, end := console.Bar(cmd.OutOrStdout(), o.Name, o.offer.Size)
	err := c.Fetch(cmd.Context(), &o.File, o.offer, grown)
	if end(); err != nil {
		return err
	}
	console.Printf(cmd.OutOrStdout(), "%s\n", filepath.Join(place, o.Name))
	return nil
}

// noteUnseen says which of the files that were fetched a daemon does not see: it may have other folders.
func noteUnseen(cmd *cobra.Command, t *settings.Target, list []*wanted) {
	now, err := ask(cmd, t, func(ctx context.Context, c client.Client) (*stock, error) { return stockOf(ctx, c) })
	if err != nil {
		return
	}
	for _, o := range list {
		if o.refuse == nil && !now.has(&o.need) {
			console.Printf(cmd.ErrOrStderr(), "patchbay: the daemon has no %s: its models folders are others than %s; name "+
				"one of them with --models\n", o.Name, o.Root)
		}
	}
}

// lacking returns an error that names the files that are still missing and cannot be fetched.
func lacking(list []*wanted) error {
	var lines []string
	for _, o := range list {
		if o.refuse != nil {
			lines = append(lines, fmt.Sprintf("%q: %v", pyjson.Excerpt(o.need.name), o.refuse))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return console.Exit(console.ExitFailed, fmt.Errorf("%d of %d files cannot be fetched\n  %s", len(lines), len(list),
		strings.Join(lines, "\n  ")))
}

// readTokens returns tokens by host. Errors do not show them.
func readTokens(list []string) (map[string]string, error) {
	out := map[string]string{"huggingface.co": os.Getenv("HF_TOKEN")}
	for _, text := range list {
		host, token, ok := strings.Cut(text, "=")
		if !ok || host == "" || token == "" || strings.ContainsAny(host, "/@") {
			return nil, errors.New("--token: want HOST=TOKEN or HOST=@FILE")
		}
		if name, ok := strings.CutPrefix(token, "@"); ok {
			b, err := os.ReadFile(name)
			if err != nil {
				return nil, fmt.Errorf("--token: %w", err)
			}
			token = strings.TrimSpace(string(b))
		}
		out[strings.ToLower(host)] = token
	}
	for host, token := range out {
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("the token for %s has characters that no token has", host)
		}
	}
	return out, nil
}
