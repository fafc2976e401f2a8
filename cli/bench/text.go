package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"patchbay/cli/console"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/parallel"
)

type textFlags struct {
	timing
	tokens int
	device
}

func textCmd() *cobra.Command {
	var f textFlags
	cmd := f.command(&cobra.Command{
		Use:     "text",
		Short:   "Measure a T5 encoder on this machine",
		Long:    `text encodes a prompt of made-up tokens by a T5 encoder. Without --encoder it takes that of the demo.`,
		Example: "  patchbay bench text --encoder models/text_encoders/t5xxl_fp16.safetensors --tokens 512",
	}, 1, 5, f.measure)
	f.device.add(cmd.Flags(), "T5 XXL")
	cmd.Flags().StringVar(&f.file, "encoder", "", "file of a T5 encoder (default: the demo's)")
	cmd.Flags().IntVar(&f.tokens, "tokens", 512, "tokens of the prompt")
	return cmd
}

func (f *textFlags) measure(ctx context.Context) (*report, error) {
	if err := f.CheckDevices(); err != nil {
		return nil, err
	}
	if f.tokens < 1 || f.tokens > 4096 {
		return nil, console.BadInput(errors.New("want --tokens 1 to 4096"))
	}
	r := &report{
		Benchmark: "text", Warmup: f.warmup,
		Inside:  "upload of the tokens, the encoder's layers, download of its states",
		Outside: "reading and packing weights, splitting prompts into tokens",
		Extra:   map[string]any{"tokens": f.tokens},
	}
	return r, f.run(ctx, r, "text_encoders", "demo_t5.safetensors", t5XXL, func(l *parallel.Workspace, set *weights.Set,
		config []byte,
	) error {
		r.Extra["encoder"] = f.file
		net, err := text.OpenT5(l.Ops, set, config)
		if err != nil {
			return err
		}
		defer net.Close()
		chunk := make([]tokenizer.Token, f.tokens)
		for i := range chunk {
			chunk[i] = tokenizer.Token{ID: i % min(net.Config.Vocab, 1000), Weight: 1}
		}
		env := text.Env{Ops: l.Ops, Take: l.Arena, DType: l.DType, Check: l.Check}
		s, err := f.clocked(fmt.Sprintf("encode %d tokens", f.tokens), func() error {
			_, err := net.Encode(env, [][]tokenizer.Token{chunk}, text.Form{})
			return err
		})
		r.Samples = append(r.Samples, s)
		return err
	})
}
