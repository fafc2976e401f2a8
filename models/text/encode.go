package text

import (
	"errors"
	"fmt"
	"slices"

	"patchbay/engine"
	"patchbay/models/tokenizer"
)

// ErrTokenizer is wrapped by the error for a token id that an encoder's vocabulary does not have.
var ErrTokenizer = errors.New("the tokenizer does not belong to this file")

// network describes one encoder to encode.
type network struct {
	name      string
	special   Special
	width     int  // E
	columns   int  // of a state if wider than E; else 0
	deep      bool // a token's Vector may be a multiple of E long (VisionTower.See)
	vocab     int  // rows of the embedding table
	maxLength int  // longest chunk; 0: no limit
	// memory allocates from a what run needs for b chunks of l tokens.
	memory func(a *engine.Arena, dtype engine.DType, b, l int)
	// run encodes chunks of equal length: hidden [B, L, E], pooled [B, E] or absent. Both live in the arena until the
	// caller releases it.
	run func(env Env, chunks [][]tokenizer.Token) (hidden, pooled engine.Tensor, err error)
}

// batch is the maximum number of chunks encoded at once: enough to amortize reading the weights, few enough for memory.
const batch = 4

// encode runs a prompt through n. If any weight differs from 1, the empty prompt is encoded too, and every weighted
// state z becomes z0 + (z - z0)*weight (ComfyUI comfy/sd1_clip.py, ClipTokenWeightEncoder).
func encode(env Env, n network, chunks [][]tokenizer.Token) (Encoding, error) {
	if len(chunks) == 0 {
		return Encoding{}, fmt.Errorf("encode %s: a prompt without chunks", n.name)
	}
	longest := 0
	for i, chunk := range chunks {
		if err := n.check(i, chunk); err != nil {
			return Encoding{}, err
		}
		longest = max(longest, len(chunk))
	}
	all := chunks
	weighted := tokenizer.Prompt{Chunks: chunks}.Weighted()
	if weighted {
		all = append(append([][]tokenizer.Token(nil), chunks...), n.special.empty(longest))
	}
	hidden, pooled, err := n.runAll(env, all)
	if err != nil {
		return Encoding{}, err
	}
	out := Encoding{Pooled: pooled}
	out.Context.Cols = n.cols()
	for i, chunk := range chunks {
		z := hidden[i]
		if weighted {
			interpolate(z, hidden[len(chunks)], chunk, n.cols())
		}
		out.Context.Data = append(out.Context.Data, z...)
		out.Context.Rows += len(chunk)
		last := n.special.valid(chunk)
		out.Valid = append(append(out.Valid, slices.Repeat([]int{1}, last)...), make([]int, len(chunk)-last)...)
	}
	return out, nil
}

// interpolate scales the distance of the weighted tokens' states z [L, E] from those of the empty prompt, in place.
func interpolate(z, empty []float32, chunk []tokenizer.Token, width int) {
	for j, t := range chunk {
		if t.Weight == 1 {
			continue
		}
		for k := j * width; k < (j+1)*width; k++ {
			z[k] = (z[k]-empty[k])*t.Weight + empty[k]
		}
	}
}

// check returns an error if chunk i is too long or has tokens that the network cannot embed.
func (n network) check(i int, chunk []tokenizer.Token) error {
	if len(chunk) == 0 || n.maxLength > 0 && len(chunk) > n.maxLength {
		return fmt.Errorf("encode %s: chunk %d has %d tokens, allowed are 1..%d", n.name, i, len(chunk), n.maxLength)
	}
	for k, t := range chunk {
		switch {
		case t.Vector != nil && len(t.Vector) != n.width && (!n.deep || len(t.Vector) == 0 || len(t.Vector)%n.width != 0):
			return fmt.Errorf("encode %s: the embedding at token %d of chunk %d has %d values, this encoder has %d", n.name, k,
				i, len(t.Vector), n.width)
		case t.Vector == nil && (t.ID < 0 || t.ID >= n.vocab):
			return fmt.Errorf("encode %s: token %d of chunk %d has id %d, the vocabulary has 0..%d: %w", n.name, k, i,
				t.ID, n.vocab-1, ErrTokenizer)
		}
	}
	return nil
}

// runAll encodes all chunks, batching consecutive ones of equal length. It returns the states of each chunk and the
// pooled state of the first.
func (n network) runAll(env Env, chunks [][]tokenizer.Token) (hidden [][]float32, pooled []float32, err error) {
	for len(chunks) > 0 {
		b := 1
		for b < min(batch, len(chunks)) && len(chunks[b]) == len(chunks[0]) {
			b++
		}
		h, p, err := n.runBatch(env, chunks[:b])
		if err != nil {
			return nil, nil, err
		}
		if hidden == nil {
			pooled = p
		}
		hidden = append(hidden, h...)
		chunks = chunks[b:]
	}
	return hidden, pooled, nil
}

// holding returns env with an arena that has room for what memory allocates, and a function that releases it. An arena
// that the caller has set is used as it is.
func (env Env) holding(name string, memory func(*engine.Arena)) (_ Env, free func(), err error) {
	if env.Arena != nil {
		mark := env.Arena.Mark()
		return env, func() { env.Arena.Release(mark) }, nil
	}
	measure := engine.NewMeasuringArena(name)
	memory(measure)
	size := measure.Peak()
	if env.Take != nil {
		if env.Arena, err = env.Take(size); err != nil {
			return env, nil, fmt.Errorf("%s: activations: %w", name, err)
		}
		return env, func() {}, nil
	}
	buf, err := env.Ops.Alloc(size)
	if err != nil {
		return env, nil, fmt.Errorf("%s: activations: %d bytes: %w", name, size, err)
	}
	env.Arena = engine.NewArena(name, buf, size)
	return env, func() { env.Ops.Free(buf) }, nil
}

// runBatch encodes chunks of equal length and downloads the results to the host.
func (n network) runBatch(env Env, chunks [][]tokenizer.Token) (hidden [][]float32, pooled []float32, err error) {
	b, l := len(chunks), len(chunks[0])
	env, free, err := env.holding("encode "+n.name, func(a *engine.Arena) { n.memory(a, env.DType, b, l) })
	if err != nil {
		return nil, nil, err
	}
	defer free()
	h, p, err := n.run(env, chunks)
	if err != nil {
		return nil, nil, err
	}
	if !p.IsZero() {
		pooled = make([]float32, n.width)
		if err := env.Ops.Download(pooled, p.Slice(0, 0, 1)).Wait(); err != nil {
			return nil, nil, err
		}
	}
	size := l * n.cols()
	flat := make([]float32, b*size)
	if err := env.Ops.Download(flat, h).Wait(); err != nil {
		return nil, nil, err
	}
	for i := range b {
		hidden = append(hidden, flat[i*size:(i+1)*size])
	}
	return hidden, pooled, nil
}

// cols returns the number of columns of a state.
func (n network) cols() int { return max(n.width, n.columns) }

// step must be called before every layer.
func (env Env) step(layer int) error {
	if env.Check != nil {
		if err := env.Check(); err != nil {
			return err
		}
	}
	if env.use == nil {
		return nil
	}
	return env.use(layer)
}

// embed writes the embeddings of chunks to x [B, L, E]: rows of the table, or the first E values of a token's Vector.
func (env Env) embed(x, table engine.Tensor, chunks [][]tokenizer.Token) {
	ids := make([]int32, 0, x.Dim(0)*x.Dim(1))
	for _, chunk := range chunks {
		for _, t := range chunk {
			id := int32(0)
			if t.Vector == nil {
				id = int32(t.ID)
			}
			ids = append(ids, id)
		}
	}
	env.Ops.Gather(x.Merge(0), table, ids)
	for b, chunk := range chunks {
		for i, t := range chunk {
			if t.Vector != nil {
				env.Ops.Upload(x.Index(0, b).Index(0, i), t.Vector[:x.Dim(2)])
			}
		}
	}
}

// heads views [B, L, H*D] as [B, L, H, D].
func heads(t engine.Tensor, h int) engine.Tensor { return t.Split(2, h, t.Dim(2)/h) }

// work holds the activations of one run, all allocated before the first operation.
type work struct {
	x, norm, q, k, v, o engine.Tensor // x and norm [B, L, E], q..o [B, L, H*D]
	hidden, gate        engine.Tensor // [B, L, F]
	position            engine.Tensor // [1, L, E] in the dtype of the activations
	inner               engine.Tensor // [B, L, E] states of an inner layer, saved
	pooled, projected   engine.Tensor // [B, E]
	bias, buckets       engine.Tensor // [H, L, L], [L*L, H] f32
}

// attend writes the attention over x with h heads to w.o.
func (w work) attend(ops engine.Ops, x engine.Tensor, q, k, v *engine.Weight, h int, args engine.AttentionArgs) {
	ops.Linear(w.q, x, q, engine.Epilogue{})
	ops.Linear(w.k, x, k, engine.Epilogue{})
	ops.Linear(w.v, x, v, engine.Epilogue{})
	ops.Attention(heads(w.o, h), heads(w.q, h), heads(w.k, h), heads(w.v, h), args)
}

// read returns the index of the layer whose states f selects, and whether the states are those of a finished run
// instead: for Layer 0 and for layers that do not exist.
func (f Form) read(layers int) (layer int, finished bool) {
	if f.Layer >= 0 || f.Layer < -layers {
		return layers - 1, true
	}
	return layers + f.Layer, false
}
