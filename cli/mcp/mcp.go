// Package mcp implements `patchbay mcp`: a server of the Model Context Protocol with which language models draw by the
// templates of a folder. It is itself a client of a daemon.
//
// Reading order: mcp (the command, the server), tools, generate (a job that is waited for), shown (pictures of bounded
// size).
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/daemon"
	"patchbay/fault"
	"patchbay/ipc/client"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
	"patchbay/node/template"
)

// Command returns `patchbay mcp`.
func Command(version string) *cobra.Command {
	var t settings.Target
	var s server
	var most string
	var log daemon.Config
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve templates to language models (Model Context Protocol on stdio)",
		Long: `mcp is started by an application with a language model (Claude Desktop, an editor, an agent) and speaks the
Model Context Protocol with it over stdin and stdout. Its tools are list_templates, generate, submit, status, cancel and
view; what they do runs on the daemon, as with run and submit. The templates are those of --templates, workflows with
named parameters as serve --templates has them. Log lines go to stderr.

When the application cancels a call of generate, or goes away, the job that it waits for is cancelled; jobs of submit
go on.`,
		Example: `  patchbay mcp --templates examples/templates
  patchbay mcp --templates /srv/templates --nats tls://queue.example --creds alice.creds`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if info, err := os.Stat(s.folder); err != nil || !info.IsDir() {
				return console.BadInput(fmt.Errorf("--templates %s: want a folder of workflows with parameters, NAME.json",
					s.folder))
			}
			bytes, err := daemon.ParseBytes(most)
			if err != nil || bytes < leastShown {
				return console.BadInput(fmt.Errorf("--image-bytes %s: want %dK or more, as in 700K", most, leastShown>>10))
			}
			if _, err := zerolog.ParseLevel(log.Log); err != nil {
				return console.BadInput(fmt.Errorf("--log %s: want debug, info, warn or error", log.Log))
			}
			s.most, s.version, s.log = int(bytes), version, console.Logger(cmd.ErrOrStderr(), log.Log)
			s.dial = func() (client.Client, error) {
				c, err := t.DialLasting()
				if err != nil {
					return nil, err
				}
				c.Say = func(format string, args ...any) { s.log.Warn().Msgf(format, args...) }
				return c, nil
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return s.serve(ctx, &sdk.IOTransport{
				Reader: io.NopCloser(cmd.InOrStdin()), Writer: writer{cmd.OutOrStdout()},
			})
		},
	}
	f := cmd.Flags()
	t.Add(f)
	t.Reconnect(f)
	f.StringVar(&s.folder, "templates", "", "folder of workflows with named parameters, NAME.json (required)")
	f.StringVar(&most, "image-bytes", "700K", "most bytes of the pictures in one answer; larger ones are made smaller")
	settings.Log(f, &log)
	return cmd
}

// writer is a stream that stays open.
type writer struct{ io.Writer }

// Close does nothing.
func (writer) Close() error { return nil }

// server answers the calls of one application.
type server struct {
	dial    func() (client.Client, error) // opens a connection to the daemon, for one call
	folder  string                        // of the templates
	most    int                           // bytes of all pictures in an answer
	version string
	log     zerolog.Logger
}

// serve answers calls until the application hangs up or ctx ends.
func (s *server) serve(ctx context.Context, t sdk.Transport) error {
	srv := sdk.NewServer(&sdk.Implementation{Name: "patchbay", Title: "Patchbay", Version: s.version}, &sdk.ServerOptions{
		Instructions: "Draws pictures by templates, which are workflows with named parameters. Call list_templates first; " +
			"generate draws and shows the pictures. The same values give the same picture: change seed for another one.",
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		Logger:       slog.New(zerolog.NewSlogHandler(s.log.Level(max(s.log.GetLevel(), zerolog.WarnLevel)))),
	})
	for _, tl := range tools() {
		no := false
		srv.AddTool(&sdk.Tool{
			Name: tl.name, Description: tl.about, InputSchema: tl.schema(), Annotations: &sdk.ToolAnnotations{
				ReadOnlyHint: tl.reads, DestructiveHint: &tl.ends, IdempotentHint: tl.reads || tl.ends, OpenWorldHint: &no,
			},
		}, func(call context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			call, stop := context.WithCancel(call) // which ends with the connection, for which Run waits
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			return s.answer(call, &tl, req), nil
		})
	}
	err := srv.Run(ctx, t)
	if ctx.Err() != nil {
		return nil // a signal, which is how applications end their servers
	}
	return err
}

// answer calls a tool. Errors become results, because those are what a model gets to see.
func (s *server) answer(ctx context.Context, tl *tool, req *sdk.CallToolRequest) *sdk.CallToolResult {
	began := time.Now()
	out, err := s.call(ctx, tl, req)
	line := s.log.Info().Str("tool", tl.name).Dur("took", time.Since(began))
	if err != nil {
		e := published(err)
		line.Str("error", e.Line()).Msg("call failed")
		out = &sdk.CallToolResult{IsError: true, Content: []sdk.Content{text(wire.BodyOf(e))}}
		return out
	}
	line.Msg("call answered")
	return out
}

func (s *server) call(ctx context.Context, tl *tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	c := &call{server: s, tell: teller(ctx, req)}
	if err := tl.bind(req.Params.Arguments, &c.args); err != nil {
		return nil, err
	}
	var err error
	if c.daemon, err = s.dial(); err != nil {
		return nil, err
	}
	defer console.CloseQuietly(c.daemon)
	return tl.run(ctx, c)
}

// published is an error with a code of docs/protocol.md.
func published(err error) *fault.Error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e != nil {
		return e
	}
	if input, ok := errors.AsType[*wire.InputError](err); ok {
		return fault.At(fault.BadRequest, "job", "%v", input.Err)
	}
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.Cancelled, "the call was cancelled")
	}
	return fault.New(fault.NoCapacity, "the daemon does not answer: %v", err) // nothing else fails without a code
}

// text is a value as JSON, which is what models read.
func text(v any) *sdk.TextContent {
	b, err := json.Marshal(v)
	if err != nil { // our own structs, and what was decoded from JSON
		panic("mcp: " + err.Error())
	}
	return &sdk.TextContent{Text: string(b)}
}

// teller returns a function that reports progress to the application, if it has asked for that. Reports that are not
// ahead of the last one are left out, as the protocol demands.
func teller(ctx context.Context, req *sdk.CallToolRequest) func(done, total float64, message string) {
	token := req.Params.GetProgressToken()
	last := -1.0
	return func(done, total float64, message string) {
		if token == nil || done <= last {
			return
		}
		last = done
		_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ // the answer itself says if it is gone
			ProgressToken: token, Progress: done, Total: total, Message: message,
		})
	}
}

// templates returns the templates of the folder, with classes and files as the daemon has them. The error is why the
// daemon could not be asked; then what a template says of itself is worth nothing.
func (c *call) templates(ctx context.Context) (template.Folder, *error) {
	var failed error
	known := map[string]map[string]any{}
	return template.Folder{Dir: c.folder, Describe: func(class string) map[string]any {
		if entry, ok := known[class]; ok || failed != nil {
			return entry
		}
		ask, stop := context.WithTimeout(ctx, questionTime)
		defer stop()
		info, err := client.Describe(ask, c.daemon, class)
		if err != nil && !fault.Is(err, fault.NoNodeType) {
			failed = err
			return nil
		}
		known[class] = map[string]any{}
		for _, k := range info.Keys() {
			known[class][k] = info.At(k)
		}
		return known[class]
	}}, &failed
}

// open returns one template.
func (c *call) open(ctx context.Context, name string) (*template.Template, error) {
	folder, failed := c.templates(ctx)
	t, err := folder.Open(name)
	if *failed != nil {
		return nil, *failed
	}
	return t, err
}

// questionTime bounds the wait for an answer that a daemon gives at once.
const questionTime = 15 * time.Second

// bind reads the arguments of a call.
func (t *tool) bind(data json.RawMessage, out *arguments) error {
	if len(data) == 0 || string(data) == "null" {
		data = json.RawMessage("{}")
	}
	o, err := wire.Decode(data, wire.JSON, wire.DefaultLimits())
	if err != nil {
		return wire.BadRequest(err)
	}
	for _, name := range o.Keys() {
		if !slices.Contains(t.takes, name) {
			e := fault.At(fault.BadRequest, name, "%s has no argument %s; it has %s", t.name, wire.Shown(name),
				fault.List(t.takes))
			e.Extra = map[string]any{"allowed": append([]string{}, t.takes...)}
			return e
		}
	}
	for _, name := range t.needs {
		if o.At(name) == nil {
			return fault.At(fault.InputMissing, name, "argument %s of %s is missing", name, t.name)
		}
	}
	if err := wire.Bind(o, out); err != nil {
		return wire.BadRequest(err)
	}
	if out.Values == nil {
		out.Values = pyjson.NewObject()
	}
	return nil
}
