package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/cli/workflow"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/parallel"
)

// textFlags are the flags of bench text.
type textFlags struct {
	timing
	file   string
	tokens int
	device
}

func textCmd() *cobra.Command {
	var f textFlags
	cmd := &cobra.Command{
		Use:     "text",
		Short:   "Measure a T5 encoder on this machine",
		Long:    `text encodes a prompt of made-up tokens by a T5 encoder. Without --encoder it takes that of the demo.`,
		Example: "  patchbay bench text --encoder models/text_encoders/t5xxl_fp16.safetensors --tokens 512",
		Args:    console.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(f.check(), f.device.CheckDevices()); err != nil {
				return err
			}
			if f.tokens < 1 || f.tokens > 4096 {
				return console.BadInput(errors.New("want --tokens 1 to 4096"))
			}
			r, err := f.measure(cmd.Context())
			if err != nil {
				return err
			}
			return r.print(cmd.OutOrStdout(), f.json)
		},
	}
	f.timing.add(cmd.Flags(), 1, 5)
	f.device.add(cmd.Flags(), "T5 XXL")
	cmd.Flags().StringVar(&f.file, "encoder", "", "file of a T5 encoder (default: the demo's)")
	cmd.Flags().IntVar(&f.tokens, "tokens", 512, "tokens of the prompt")
	return cmd
}

func (f *textFlags) measure(ctx context.Context) (_ *report, err error) {
	path := f.file
	if path == "" {
		examples, err := workflow.Examples()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(examples, "demo", "text_encoders", "demo_t5.safetensors")
	}
	set, config, done, err := f.open(path, t5XXL)
	if err != nil {
		return nil, console.BadInput(err)
	}
	defer done()
	eng, release, err := f.engine()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	r := &report{
		Benchmark: "text", Warmup: f.warmup,
		Inside:  "upload of the tokens, the encoder's layers, download of its states",
		Outside: "reading and packing weights, splitting prompts into tokens",
		Extra: map[string]any{
			"encoder": path, "random": f.random, "tokens": f.tokens, "processors": runtime.GOMAXPROCS(0), "engine": eng.Name(),
		},
	}
	return r, eng.Do(ctx, "text", func(l *parallel.Workspace) error {
		net, err := text.OpenT5(l.Ops, l.Fitting(set), config)
		if err != nil {
			return err
		}
		defer net.Close()
		chunk := make([]tokenizer.Token, f.tokens)
		for i := range chunk {
			chunk[i] = tokenizer.Token{ID: i % min(net.Config.Vocab, 1000), Weight: 1}
		}
		env := text.Env{Ops: l.Ops, Take: l.Arena, DType: l.DType, Check: l.Check}
		times, err := f.clocked(func() error {
			_, err := net.Encode(env, [][]tokenizer.Token{chunk}, text.Form{})
			return err
		})
		r.Samples = append(r.Samples, summarise(fmt.Sprintf("encode %d tokens", f.tokens), times))
		return err
	})
}
