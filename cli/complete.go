package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"patchbay/cli/settings"
	"patchbay/ipc/client"
	"patchbay/ipc/message"
	"patchbay/node/classes"
)

// flowFiles completes the names of workflow files and of pictures that contain one.
func flowFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"json", "png"}, cobra.ShellCompDirectiveFilterFileExt
}

// classNames completes node classes.
func classNames(_ *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return beginning(classes.All().Classes(), start), cobra.ShellCompDirectiveNoFileComp
}

// complete registers a completion function for a flag of cmd. In a completion, text after a tab is its description.
func complete(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic("cli: " + err.Error()) // cmd has no such flag
	}
}

// jobIDs completes the ids of jobs in the given states (none: all) if the daemon answers within half a second.
func jobIDs(t *settings.Target, states ...message.State) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		c, err := t.Dial()
		if err != nil {
			return nil, none
		}
		defer func() { go func() { _ = c.Close() }() }()
		ctx, stop := context.WithTimeout(context.WithoutCancel(cmd.Context()), 500*time.Millisecond)
		defer stop()
		list, _, err := client.List(ctx, c, "", 100)
		if err != nil {
			return nil, none
		}
		var out []string
		for _, r := range list {
			if (len(states) == 0 || slices.Contains(states, r.State)) && !slices.Contains(args, r.Job) {
				out = append(out, r.Job+"\t"+strings.TrimSpace(string(r.State)+" "+r.About))
			}
		}
		return beginning(out, start), none | cobra.ShellCompDirectiveKeepOrder
	}
}

// plans completes the key after the last comma of a plan.
func plans(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	done := start[:strings.LastIndexByte(start, ',')+1]
	var out []string
	for _, key := range []string{
		"ranks=\thow many at most; the plan is chosen", "ulysses=\ttokens, heads exchanged", "ring=\ttokens, keys go round",
		"gather=\ttokens, keys gathered",
		"cfg=2\tpositive and negative", "tensor=\theads and MLP columns", "pipe=\tblocks over stages",
		"patches=\tof a pipeline", "warmup=\tsynchronous evaluations of a pipeline", "data=\tpictures of a batch",
		"shard=on\tbytes of the weights", "deterministic=on\tbits of one rank", "stale=on\twith ranks: pipelines too",
		"form=scatter\twith tensor: tokens, too",
		"sync=spread\twith pipe: warmup over all stages", "kv=fp8\twith pipe: keys and values in 8 bits",
		"stream=on\tblocks from host memory", "speeds=\tof the ranks, as in 100:23",
		"overlap=off\tno transfers beside computation, for measuring",
	} {
		name, _, _ := strings.Cut(key, "=")
		if !strings.Contains(","+done, ","+name+"=") {
			out = append(out, done+key)
		}
	}
	return beginning(out, start), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// beginning returns the elements of list that begin with start; it reuses the memory of list.
func beginning(list []string, start string) []string {
	return slices.DeleteFunc(list, func(s string) bool { return !strings.HasPrefix(s, start) })
}
