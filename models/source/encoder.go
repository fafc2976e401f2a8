package source

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Encoder makes a Model a text encoder in its file, which ranks run as a dit.Task, each with its part. Prompt encodes
// the question and Encoding decodes the answer.
type Encoder struct {
	Kind   string // text.Kind.Name
	Prefix string // of its tensor names in the file
	Config []byte // the file's metadata config; nil: none
	DType  engine.DType
}

// key distinguishes the encoders of one file.
func (e *Encoder) key() string { return fmt.Sprintf("%s at %q in %v of ", e.Kind, e.Prefix, e.DType) }

// open loads part i of n of the encoder.
func (e *Encoder) open(ops engine.Ops, f File, i, n int) (text.Net, error) {
	var net text.Net
	err := f.With(func(file *weights.File) (err error) {
		net, err = text.OpenPart(ops, e.Kind, file.Set().Prefix(e.Prefix).For(e.DType), e.Config, i, n, 0)
		return err
	})
	return net, err
}

// encoder loads the held part of a text encoder.
func (l *Loader) encoder(ops engine.Ops, m Model, held dit.Held) (dit.Model, error) {
	e, bare := m.Encoder, m
	bare.Adapters = nil
	base, release, err := Take(&l.Shared, fmt.Sprintf("%s %s %+v", bare.Key(), location(ops), held),
		func() (text.Net, error) { return e.open(ops, m.File, held.Rank, max(1, held.Ranks)) })
	if err != nil {
		return nil, err
	}
	if len(m.Adapters) == 0 {
		return &encoder{net: base, dtype: e.DType, free: release}, nil
	}
	var net text.Net
	err = WithLowRank(e.Kind, m.Adapters, func(list []weights.LowRank) (err error) {
		net, err = base.Adapt(ops, list)
		return err
	})
	if err != nil {
		release()
		return nil, err
	}
	return &encoder{net: net, dtype: e.DType, free: func() { net.Close(); release() }}, nil
}

// encoder is a text encoder, or a part of one, as a dit.Task.
type encoder struct {
	dit.Model // nil: of its methods, only Close is called on a Task
	net       text.Net
	dtype     engine.DType
	free      func()
}

// Close frees what the encoder alone holds, and its base if that has no other users.
func (e *encoder) Close() { e.free() }

// Bytes returns the memory of the part, if the backend reports it.
func (e *encoder) Bytes() int64 { return e.net.Bytes() }

func (e *encoder) Run(env dit.TaskEnv, question []byte) ([]byte, error) {
	var decoded prompt
	if err := msgpack.Unmarshal(question, &decoded); err != nil {
		return nil, fmt.Errorf("a prompt: %w", err)
	}
	chunks := make([][]tokenizer.Token, len(decoded.Chunks))
	for i, c := range decoded.Chunks {
		for _, t := range c {
			chunks[i] = append(chunks[i], tokenizer.Token{ID: t.ID, Weight: t.Weight, Vector: t.Vector})
		}
	}
	out, err := e.net.Encode(text.Env{
		Ops: env.Ops, Take: env.Take, DType: e.dtype, Check: env.Check, Sum: env.Sum,
	}, chunks, decoded.Form)
	if err != nil {
		return nil, err
	}
	return msgpack.Marshal(&encoding{
		out.Context.Rows, out.Context.Cols, out.Context.Data, out.Pooled, out.Valid, out.States,
	})
}

// Prompt encodes the question for an Encoder.
func Prompt(chunks [][]tokenizer.Token, form text.Form) ([]byte, error) {
	question := prompt{make([][]token, len(chunks)), form}
	for i, c := range chunks {
		for _, t := range c {
			question.Chunks[i] = append(question.Chunks[i], token{t.ID, t.Weight, t.Vector})
		}
	}
	return msgpack.Marshal(&question)
}

// Encoding decodes the answer of an Encoder. It returns an error if the answer is malformed.
func Encoding(answer []byte) (out text.Encoding, err error) {
	var states encoding
	if err = msgpack.Unmarshal(answer, &states); err == nil && len(states.Data) != states.Rows*states.Cols {
		err = fmt.Errorf("%d values of %d x %d", len(states.Data), states.Rows, states.Cols)
	}
	if err != nil {
		return out, fmt.Errorf("the states of a text encoder: %w", err)
	}
	out.Context = dit.Array{Rows: states.Rows, Cols: states.Cols, Data: states.Data}
	out.Pooled, out.Valid, out.States = states.Pooled, states.Valid, states.States
	return out, nil
}

type prompt struct {
	Chunks [][]token
	Form   text.Form
}

type token struct {
	ID     int
	Weight float32
	Vector dit.Floats
}

type encoding struct {
	Rows, Cols   int
	Data, Pooled dit.Floats
	Valid        []int
	States       int
}
