package text

import (
	"errors"
	"fmt"

	"patchbay/engine"
	"patchbay/models/tokenizer"
)

// ErrTokenizer is inside the error for a token that an encoder's vocabulary does not have.
var ErrTokenizer = errors.New("the tokenizer does not belong to this file")

// network is one encoder as encode sees it.
type network struct {
	name      string
	special   Special
	width     int  // E
	columns   int  // of a state, where it is not E
	deep      bool // vectors of tokens may be several E long (Eyes.See)
	vocab     int  // rows of the embedding table
	maxLength int  // longest chunk, 0: no limit
	// bytes is the arena that run needs for b chunks of l tokens.
	bytes func(dtype engine.DType, b, l int) int
	// run encodes chunks of equal length: hidden [B, L, E], pooled [B, E] or absent. They lie in the arena until the
	// caller releases it.
	run func(env Env, chunks [][]tokenizer.Token) (hidden, pooled engine.Tensor, err error)
}

// batch is the most chunks that are encoded at once: enough to use the weights well, few enough to bound memory.
const batch = 4

// encode runs a prompt through n. If any weight differs from 1 the empty prompt is encoded too and every weighted state
// z becomes z0 + (z - z0)*weight (ComfyUI comfy/sd1_clip.py, ClipTokenWeightEncoder).
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
		for k := range chunk {
			v := 0
			if k < last {
				v = 1
			}
			out.Valid = append(out.Valid, v)
		}
	}
	return out, nil
}

// interpolate moves the states z [L, E] of weighted tokens away from those of the empty prompt.
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

// check refuses tokens that the network does not have.
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

// runAll encodes all chunks, neighbours of equal length together. It returns the states of each and the pooled state of
// the first.
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

// arena takes memory for one batch; free gives it back.
func (n network) arena(env Env, size int) (arena *engine.Arena, free func(), err error) {
	if env.Take != nil {
		arena, err = env.Take(size)
		return arena, func() {}, err
	}
	buf, err := env.Ops.Alloc(size)
	if err != nil {
		return nil, nil, fmt.Errorf("%d bytes: %w", size, err)
	}
	return engine.NewArena(n.name, buf, size), func() { env.Ops.Free(buf) }, nil
}

// runBatch encodes chunks of equal length and brings the results to the host.
func (n network) runBatch(env Env, chunks [][]tokenizer.Token) (hidden [][]float32, pooled []float32, err error) {
	b, l := len(chunks), len(chunks[0])
	if env.Arena == nil {
		arena, free, err := n.arena(env, n.bytes(env.DType, b, l))
		if err != nil {
			return nil, nil, fmt.Errorf("encode %s: activations: %w", n.name, err)
		}
		defer free()
		env.Arena = arena
	}
	mark := env.Arena.Mark()
	defer env.Arena.Release(mark)
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

// cols is the number of columns of a state.
func (n network) cols() int { return max(n.width, n.columns) }

// step is called before every layer.
func (env Env) step() error {
	if env.Check == nil {
		return nil
	}
	return env.Check()
}

// embed writes the embeddings of chunks to x [B, L, E]: rows of the table, or a token's own vector.
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

// work is the memory of one run, allocated before the first operation.
type work struct {
	x, norm, q, k, v, o engine.Tensor // [B, L, E], q..o [B, L, H*D]
	hidden, gate        engine.Tensor // [B, L, F]
	position            engine.Tensor // [1, L, E] in the dtype of activations
	kept                engine.Tensor // [B, L, E] states of a layer before the last
	pooled, projected   engine.Tensor // [B, E]
	bias, buckets       engine.Tensor // [H, L, L], [L*L, H] f32
}

// measured returns the bytes that f allocates.
func measured(f func(*engine.Arena)) int {
	a := engine.NewMeasuringArena("text")
	f(a)
	return a.Peak()
}

// form says which states an encoder returns.
type form struct {
	layer int // 0: the last; -1: the last, -2: the last but one, and so on; beyond the layers: the last
	count int // layers
}

// index returns the layer whose output is wanted, and whether it is that of a finished run (layer 0).
func (f form) index() (layer int, finished bool) {
	if f.layer == 0 || f.layer < -f.count || f.layer > f.count {
		return f.count - 1, true
	}
	if f.layer > 0 {
		return min(f.layer, f.count-1), false
	}
	return f.count + f.layer, false
}
