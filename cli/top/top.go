// Package top implements `patchbay top`, a live view of daemons at work.
package top

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
)

// Command returns `patchbay top`.
func Command() *cobra.Command {
	var t settings.Target
	var once, asJSON bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show queue, workers and jobs, live",
		Long: `top shows what all daemons of a NATS server do, or the one of a socket: the queue, the workers with their
jobs, steps per second, bytes that ranks sent each other by axis, and the last jobs. q ends it. Where the output is no
terminal, or with --once, it prints that one time.`,
		Example: `  patchbay top
  patchbay top --once`,
		Args: console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return console.BadInput(fmt.Errorf("--every %s: want 100ms or more", every))
			}
			c, err := t.Dial()
			if err != nil {
				return err
			}
			defer console.CloseQuietly(c)
			ask := func() (snapshot, error) { return look(cmd.Context(), c) }
			if !once && !asJSON && console.IsTerminal(cmd.OutOrStdout()) {
				_, err := tea.NewProgram(topModel{ask: ask, every: every}, tea.WithContext(cmd.Context()),
					tea.WithOutput(cmd.OutOrStdout())).Run()
				return err
			}
			s, err := ask()
			if err != nil {
				return err
			}
			if !asJSON {
				console.Printf(cmd.OutOrStdout(), "%s", s.text(nil, topStyles{}))
				return nil
			}
			b, err := json.Marshal(s)
			if err == nil {
				console.Printf(cmd.OutOrStdout(), "%s\n", b)
			}
			return err
		},
	}
	f := cmd.Flags()
	t.Add(f)
	f.BoolVar(&once, "once", false, "print once and end")
	f.BoolVar(&asJSON, "json", false, "print once, as one JSON object")
	f.DurationVar(&every, "every", time.Second, "time between two looks")
	return cmd
}

// snapshot is what daemons and jobs were at a moment.
type snapshot struct {
	Daemons []message.Stats  `json:"daemons"`
	Jobs    []message.Record `json:"jobs"` // the newest
	at      time.Time
}

// jobsShown is how many jobs top asks for.
const jobsShown = 50

func look(ctx context.Context, c client.Client) (snapshot, error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	s := snapshot{at: time.Now()}
	var err error
	if s.Daemons, err = client.AllStats(ctx, c); err != nil {
		return s, err
	}
	s.Jobs, _, err = client.List(ctx, c, "", jobsShown)
	return s, err
}
