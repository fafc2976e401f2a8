// Package dit is the contract between diffusion transformers and whoever runs them.
//
// A Model is a transformer cut at its seams: Prepare (what depends on an entry alone), Modulate (what depends on entry
// and timestep), Embed, the Blocks in order, Head. It computes exactly the rows of tokens it is told to compute and
// leaves attention over the whole sequence to the one hook Attend, so the caller may split tokens, heads, blocks and
// entries over devices without the model knowing. Families live in the folders beside this one; callers (parallel)
// import only this package.
//
// Facts that have caused bugs elsewhere: the joint sequence is text first, then image; rows of X are in that order too.
// Token features of latents are ordered (channel, row in token, column in token). From Embed to Head no code looks at
// tensor values.
package dit

import (
	"cmp"
	"slices"

	"patchbay/engine"
)

// Range is a half-open interval [Start, End) of tokens, heads or blocks.
type Range struct{ Start, End int }

// Len returns End - Start.
func (r Range) Len() int { return r.End - r.Start }

// Rows names the tokens that one call computes, as global positions in the text and in the image sequence. Either may
// be empty.
type Rows struct{ Text, Image Range }

// TextOnly returns the text rows of r.
func (r Rows) TextOnly() Rows { return Rows{Text: r.Text} }

// ImageOnly returns the image rows of r.
func (r Rows) ImageOnly() Rows { return Rows{Image: r.Image} }

// Len returns the number of rows.
func (r Rows) Len() int { return r.Text.Len() + r.Image.Len() }

// Grid is the token grid of one latent: rows and columns of tokens, odd latents already padded to whole tokens. Frames
// are one below the other, each padded by itself.
type Grid struct {
	Y, X             int // tokens, of all frames
	LatentY, LatentX int // rows and columns of the latent before padding, of all frames
	T                int // frames; 0: one
	Pad              int // tokens behind the picture's that the network adds (Spec.Multiple)
}

// Frame is the grid of one frame.
func (g Grid) Frame() Grid {
	t := max(1, g.T)
	return Grid{Y: g.Y / t, X: g.X, LatentY: g.LatentY / t, LatentX: g.LatentX}
}

// Tokens returns Y*X + Pad.
func (g Grid) Tokens() int { return g.Y*g.X + g.Pad }

// Array is host data of a conditioning: row-major f32 [Rows, Cols]. Read-only once it is inside an Entry.
type Array struct {
	Rows, Cols int
	Data       Floats
}

// Entry is the conditioning of one prediction: what the network gets besides latent and timestep. Field use by family:
// FLUX and SD3 Context and Pooled, FLUX dev also Guidance, PixArt Context, HunyuanDiT Context (BERT) with ContextLen
// and Context2 (mT5) with Context2Len.
type Entry struct {
	Context     Array
	Pooled      Floats   // [C]; nil: zeros
	Guidance    *float32 // input of distilled models; nil: the argument is absent and nothing is embedded
	ContextLen  int      // valid tokens of Context; 0: all
	Context2    Array
	Context2Len int
	// Size is the picture size that the network is told: HunyuanDiT image_meta_size [6], PixArt c_size [2] and c_ar [1];
	// nil: from the grid.
	Size []float32
	// Concat are the channels that the network reads behind those of the latent, of the latent's size (Spec.Concat).
	Concat Reference
	// References are latents that the picture refers to, in models that take them (Spec.References); entries of one call
	// have as many, of equal sizes.
	References []Reference
	// Prefix is rows [rows, Width] in front of the embedded text, at its position (Spec.Prefix).
	Prefix Array
	// Method says where references sit, in ComfyUI's words ("index", "offset" ...); empty: the model's own.
	Method string
	// Biases are added to scores of attention, in models that take them (Spec.Biases); in order, none over another.
	Biases []Bias
	// Hint is what a control net or a Patch is shown, [Li, channels*p*p] in the order of tokens, or for a net [items*Li,
	// channels*p*p], one hint for each item of the batch; Mode is its type in a union net, from 1; 0: none. No other model
	// looks at them.
	Hint Array
	Mode int
}

// Bias is what image tokens, and text tokens in front of Rows, add to their scores with the tokens of Rows of Context.
type Bias struct {
	Rows  Range
	Value float32 // finite
}

// Control is a control net: a model without head whose state after block k, put through a layer, is added to the image
// tokens of a base model behind some of its blocks.
type Control interface {
	Model
	// Feeds lists for each block of the net the blocks of a base model behind which its output is added.
	Feeds(base *Spec) [][]int
	// Output computes that of block k: out [B, li, E] for the image rows of s, times gate [1, E] f32.
	Output(env Env, k int, s *State, out, gate engine.Tensor)
}

// Follower is a Control that reads the base model as it goes and has rotation and modulations from it. Its blocks run
// in order, each right before the block of the base that it feeds; one that feeds none runs before the block that the
// next feeding one does. They see the tokens of the picture alone, without those that fill a base up.
type Follower interface {
	Control
	// Follow sets the state of the net up beside that of the base for the same rows.
	Follow(s, base *State)
	// Join lets block k take in the image rows of the base as they are before it runs. rows, which every rank of a tensor
	// group calls or none, gives those of s, [B, li, E], in memory that Join releases.
	Join(env Env, k int, s *State, rows func() engine.Tensor)
}

// Patch is layers that change the image rows of a base model behind its blocks, each row by itself, as a hint says. Of
// Model it has Spec, whose blocks are those that it can stand behind, Prepare, Shards and Close.
type Patch interface {
	Model
	// Apply changes the image rows of s behind block k of the base model. hint [1, li, E] of env.DType is these rows of
	// Prepared.Hint, gate [1, E] f32 the strength.
	Apply(env Env, k int, s *State, hint, gate engine.Tensor)
}

// Task is work beside diffusion that the ranks of a tensor group do together, each with its part of the weights: a text
// encoder. Of Model it has Close.
type Task interface {
	Model
	// Run answers a question, which every rank of the group is asked; all of them find the same answer.
	Run(env TaskEnv, question []byte) (answer []byte, err error)
}

// TaskEnv is what a Task, or a small network beside diffusion, gets besides its weights. It belongs to one rank.
type TaskEnv struct {
	Ops engine.Ops
	// Take gives an arena of so many bytes, which the next call may give away again.
	Take func(bytes int) (*engine.Arena, error)
	// Check is called between layers; an error ends the work and is returned as it is. nil: nobody asks.
	Check func() error
	// Sum adds a contiguous tensor over all ranks of the group in place; nil: the rank is alone.
	Sum func(engine.Tensor)
}

// MaskChannels is how many channels of Entry.Concat a mask takes: the 8 x 8 pixels of a latent's, row by row.
const MaskChannels = 64

// Reference is a latent [C, Y, X] in model space. Read-only.
type Reference struct {
	Y, X int
	Data Floats
}

// BlockKind tells what a block exchanges.
type BlockKind uint8

// Block kinds: Double has two streams with weights of their own and joint attention (FLUX double, SD3 joint); Single
// runs one stream over text and image together (FLUX single); Cross has self-attention over image tokens and
// cross-attention to K/V that depend on the text only (PixArt, HunyuanDiT), or none (the first blocks of Z-Image, which
// leave text rows as they are).
const (
	Double BlockKind = iota
	Single
	Cross
)

// Spec is what a caller must know of a model without its weights. It is computed from the checkpoint's header alone.
type Spec struct {
	Family        string // "flux", "sd3", "pixart", "hunyuandit"
	Width         int    // E
	Heads         int    // H
	HeadDim       int    // D
	KVHeads       int    // heads of keys and values, each read by Heads/KVHeads neighbours of the queries; 0: Heads
	PatchSize     int    // latent rows (and columns) per token
	Channels      int    // C of the latent that the model reads and that samplers see
	OutChannels   int    // C of what Head writes (PixArt, HunyuanDiT: twice Channels, the second half is dropped)
	ContextDim    int    // columns of Entry.Context
	PooledDim     int    // length of Entry.Pooled, 0: none
	Context2Dim   int    // columns of Entry.Context2, 0: none
	TakesGuidance bool
	Rotates       bool // queries and keys are rotated by position; else positions are added to image tokens, or neither
	// References: the network takes latents that the picture refers to. Their tokens follow those of the text, are split
	// and exchanged with them, and are computed with the weights of the image.
	References bool
	// Frames: the network takes latents of several frames (layers), whose tokens follow one another.
	Frames bool
	// Prefix: the network takes rows in front of its text that it does not embed (Entry.Prefix).
	Prefix bool
	// NeedsMethod: references of an entry that says no method are left out.
	NeedsMethod bool
	// Biases: ComfyUI's network takes a bias on attention (Entry.Biases); its text tokens are the rows of Context.
	Biases bool
	// Taps: the context is the states of so many layers of its encoder side by side, which blocks of the network's own
	// bring together, with MLPs of TapsMLP columns; 0: it is the states of one layer.
	Taps, TapsMLP int
	// Tables: the modulations of a block are a vector that all blocks share plus a table of the block's.
	Tables bool
	// Concat is how many channels the network reads behind those of the latent (Entry.Concat); 0: none.
	Concat int
	// Follows: of a control net that is a Follower.
	Follows bool
	// WholeHint: a control net is shown whole tokens, as a Follower.
	WholeHint bool
	// HintZeros is how many channels of zeros a control net reads behind those of its hint, HintTwice that what it reads
	// goes through a second product.
	HintZeros int
	HintTwice bool
	// OneModulation: Modulate makes the modulations of all blocks, one for all double blocks and one for all single ones.
	OneModulation bool
	// VectorDim is the columns of the vector that modulations of sandwich blocks are made of; others have E.
	VectorDim int
	// Distilled: one network of so many columns makes the modulations of all blocks and of the head; 0: each has products
	// of its own.
	Distilled int
	// Registers is how many tokens the network puts in front of the text.
	Registers int
	// Multiple is what the numbers of text and of image tokens are each filled up to a multiple of, with tokens that the
	// network makes; 0: they are as they are.
	Multiple    int
	MLPRatio    float64
	Blocks      []BlockSpec
	Params      int64 // number of parameters
	EmbedParams int64 // of them those that ForEmbed weights have
	HeadParams  int64 // and ForHead weights
}

// BlockSpec describes one block.
type BlockSpec struct {
	Kind BlockKind
	Skip int // index of the earlier block whose output this block takes as its skip input, -1: none
	// LastText marks a Double block whose text rows are not needed after it (SD3's last): they still give K and V.
	LastText bool
	// Sandwich marks a Single or Cross block of one attention, then one MLP, each between two norms, with four modulations
	// a channel and no cross-attention (Z-Image's).
	Sandwich bool
	// Apart: what the attention gives goes to the MLP alone, whose result is what the stream gets.
	Apart bool
	// Gated: the MLP has two first products, of which one gates the other (SwiGLU).
	Gated bool
	// GatedAttention: what the attention gives is multiplied by a product of its input, as wide as the queries.
	GatedAttention bool
	// Attends is how often Block calls Attend (SD3.5 medium's dual-attention blocks: 2, others 1).
	Attends int
	// Cuts is true where Block takes Env.Half: the attention, or what follows it, alone.
	Cuts   bool
	Params int64
	// AttentionParams and MLPParams are those of its ForAttention and ForMLP weights; a half needs its own and what has
	// neither use. 0 where Cuts is false.
	AttentionParams, MLPParams int64
}

// Blocks are n blocks alike, each of which attends once and takes no skip input.
func Blocks(n int, b BlockSpec) []BlockSpec {
	b.Skip, b.Attends = -1, 1
	return slices.Repeat([]BlockSpec{b}, n)
}

// Serial reports whether a block of one stream has its MLP behind its attention; those of FLUX have them side by side.
func (b *BlockSpec) Serial() bool { return b.Kind == Single && b.Cuts }

// HalfParams is the number of parameters that a half of the block needs. What both halves read counts for each.
func (b *BlockSpec) HalfParams(half Half) int64 {
	switch half {
	case AttentionHalf:
		return b.Params - b.MLPParams
	case MLPHalf:
		return b.Params - b.AttentionParams
	}
	return b.Params
}

// Half is a part of a block: what comes up to the residual of its attention, or the MLP behind it. Between the two
// there is nothing but X.
type Half uint8

// The halves. Blocks whose BlockSpec.Cuts is false are computed whole always.
const (
	WholeBlock Half = iota
	AttentionHalf
	MLPHalf
)

// Groups is the number of heads that a rank can hold without the others: those of keys and values.
func (s *Spec) Groups() int { return cmp.Or(s.KVHeads, s.Heads) }

// Group is how many heads of queries read one of keys and values.
func (s *Spec) Group() int { return s.Heads / s.Groups() }

// Modulations is how many vectors of the width E modulate the blocks and the head where one network makes all of them
// (Distilled): shift, scale and gate for single blocks, twice three for each stream of double ones, shift and scale for
// the head.
func (s *Spec) Modulations() int {
	n := 2
	for i := range s.Blocks {
		n += 3
		if s.Blocks[i].Kind == Double {
			n += 9
		}
	}
	return n
}

// JointText reports whether text rows take part in attention with image rows (Double and Single blocks), so that they
// must be split, cached and exchanged like image rows.
func (s *Spec) JointText() bool {
	return len(s.Blocks) > 0 && s.Blocks[len(s.Blocks)-1].Kind != Cross
}

// Tokens returns the grid of a latent of y rows and x columns: sides are rounded up to whole tokens.
func (s *Spec) Tokens(y, x int) Grid {
	p := s.PatchSize
	g := Grid{Y: (y + p - 1) / p, X: (x + p - 1) / p, LatentY: y, LatentX: x}
	g.Pad = s.pads(g.Tokens())
	return g
}

// FrameTokens returns the grid of t frames of y/t rows each, one below the other; t = 0: one.
func (s *Spec) FrameTokens(t, y, x int) Grid {
	n := max(1, t)
	g := s.Tokens(y/n, x)
	g.Y, g.LatentY, g.T = n*g.Y, n*g.LatentY, t
	g.Pad = s.pads(g.Y * g.X)
	return g
}

// HintSize returns rows and columns of what a control net is shown for a latent: those of a Follower, and of a net that
// says so, are whole tokens.
func (s *Spec) HintSize(y, x int) (int, int) {
	if g := s.Tokens(y, x); s.Follows || s.WholeHint {
		return g.Y * s.PatchSize, g.X * s.PatchSize
	}
	return y, x
}

// TextTokens returns the number of text tokens that n rows of Entry.Context are in the joint sequence.
func (s *Spec) TextTokens(n int) int { return s.Registers + n + s.pads(n) }

// JointTokens returns the number of tokens in front of the picture's in the joint sequence of an entry: those of its
// prefix, of its text and of its references.
func (s *Spec) JointTokens(e *Entry) int {
	return e.Prefix.Rows + s.TextTokens(e.Context.Rows) + s.ReferenceTokens(e)
}

// TappedTokens is how many tokens are brought together from their taps at once: each is a sequence of its own, so that
// the memory of a long prompt is that of a short one.
const TappedTokens = 64

// ReferenceTokens returns the number of tokens of an entry's references.
func (s *Spec) ReferenceTokens(e *Entry) (n int) {
	if s.NeedsMethod && e.Method == "" {
		return 0
	}
	for _, r := range e.References {
		n += s.Tokens(r.Y, r.X).Tokens()
	}
	return n
}

// pads is how many tokens fill n up.
func (s *Spec) pads(n int) int {
	if s.Multiple == 0 {
		return 0
	}
	return (s.Multiple - n%s.Multiple) % s.Multiple
}

// Env is what every call gets besides weights and state. It belongs to one rank and one stream.
type Env struct {
	Ops    engine.Ops
	Arena  *engine.Arena // activations, in stack order: a call releases what it allocates unless it returns it
	DType  engine.DType  // of activations: f32 (the zero value) or bf16. Modulations and rotations are f32 always
	Attend func(Attention)
	Half   Half // what Block computes of a block that can be cut
	// Reduce sums a partial result over the ranks that hold the other slices of the same weights; nil: this rank holds
	// whole weights.
	Reduce func(engine.Tensor)
	// Gather and Scatter take the place of Reduce where those ranks also share the rows of X (State.Rows) between
	// products. Gather fills dst [B, L, E], rows of the sequence that all of them compute together (State.Wide or one
	// stream of it), with src [B, l, E], the rows that X holds of it. Scatter sums src [B, L, E] and leaves the rows that
	// X holds in dst [B, l, E]. Every one of the ranks calls, with rows or without.
	Gather, Scatter func(dst, src engine.Tensor, of Rows)
}

// Attention is one attention over the whole sequence, seen from the rows of this call. The hook normalises and rotates
// (it may do so while it packs an exchange), attends over all tokens of the sequence and writes Out.
type Attention struct {
	Block int // index into Spec.Blocks
	Index int // 0, or 1 for the second attention of a block that has two
	// Q, K, V are [B, L, H, D] views of the local rows, unnormalised, text rows first; K and V may have fewer heads (see
	// Groups). The hook may overwrite them.
	Q, K, V engine.Tensor
	// TextNorm applies to the first Rows.Text.Len() rows but for the last References of them, ImageNorm to the others.
	// Single and Cross blocks set both alike.
	TextNorm, ImageNorm engine.QKNorm
	References          int
	RoPE                engine.RoPE // tables of the local rows
	Rows                Rows        // which tokens the rows are; an attention over image tokens only has an empty Text
	// ImageOnly is true when keys are image tokens only (self-attention of Cross blocks, second attention of SD3.5
	// medium).
	ImageOnly bool
	Scale     float32       // 0: 1/sqrt(D)
	Out       engine.Tensor // [B, L, H, D] view that receives the result of the local rows
}

// Prepared is what depends on the entries alone, computed once per request for n entries of equal shapes that will be
// evaluated together. Its tensors live in the arena that Prepare was given, until the caller releases it.
type Prepared struct {
	N    int           // entries
	Lt   int           // text tokens of each entry
	Text engine.Tensor // [n, Lt, E] of env.DType, text rows as the first block sees them; absent for Cross models
	// [n, E] f32 part of the conditioning vector that does not depend on the timestep; may be absent
	Vector engine.Tensor
	Source engine.Tensor // f32, what PrepareBlock reads; absent where blocks need nothing
	// per block [n, Lt, 2, H, D] of env.DType, keys and values of the text, normalised; only blocks that were asked for
	// are set
	CrossKV []engine.Tensor
	KeyLen  []int // valid text tokens per entry for cross-attention; nil: all
	// [Lt+Li, D/2] tables of the whole sequence, text first, [Li, D/2] for Cross models; absent: no rotation
	RoPE   engine.RoPE
	Concat engine.Tensor // [n, Li, C*p*p] f32, what Embed puts behind the features of image tokens; absent: nothing
	Pos    engine.Tensor // [1, Li, E] of env.DType, positions added by Embed; absent: none
	// [n, Li, E] of env.DType, of a control net, added by Embed, or a Patch; absent: none. [n*items, Li, E] of a net whose
	// items have hints of their own
	Hint    engine.Tensor
	Grid    Grid
	Entries []Entry // the inputs, for what Modulate needs of them (guidance, sizes)
}

// Modulation is what depends on entry and timestep: shifts, scales and gates for S timesteps at once.
type Modulation struct {
	// per block [S, n, k*E] f32, in the order the family documents; nil entries for blocks not asked for
	Image []engine.Tensor
	Text  []engine.Tensor // the same for the text stream of Double blocks
	Head  engine.Tensor   // [S, n, k*E] f32
	// Vector is what ModulateBlock reads: [S, n, E] f32, or more where a family shares a product.
	Vector engine.Tensor
}

// Rows are the modulations of timestep step, [n, k*E] each, in an order that OfRows knows.
func (m *Modulation) Rows(step int) (rows []engine.Tensor) {
	for _, t := range slices.Concat(m.Image, m.Text, []engine.Tensor{m.Head}) {
		if !t.IsZero() {
			rows = append(rows, t.Index(0, step))
		}
	}
	return rows
}

// OfRows is the modulation of one timestep, whose Rows have the values of a row of m elsewhere. It has no Vector.
func (m *Modulation) OfRows(rows []engine.Tensor) *Modulation {
	next := func(t engine.Tensor) (row engine.Tensor) {
		if !t.IsZero() {
			row, rows = rows[0].Unsqueeze(0), rows[1:]
		}
		return row
	}
	out := &Modulation{Image: make([]engine.Tensor, len(m.Image)), Text: make([]engine.Tensor, len(m.Text))}
	for i, t := range m.Image {
		out.Image[i] = next(t)
	}
	for i, t := range m.Text {
		out.Text[i] = next(t)
	}
	out.Head = next(m.Head)
	return out
}

// NewModulation has room for the modulations of every block of a model.
func NewModulation(spec *Spec) *Modulation {
	return &Modulation{Image: make([]engine.Tensor, len(spec.Blocks)), Text: make([]engine.Tensor, len(spec.Blocks))}
}

// State is one evaluation of some rows: B = n * latent batch, items of one entry are neighbours (item b belongs to
// entry b/(B/n)).
type State struct {
	B    int
	Rows Rows
	Wide Rows          // what products and attention of a block see: Rows, or more where Env.Gather brings the rest
	X    engine.Tensor // [B, L, E] of Rows, text rows first, then image rows; blocks update it in place
	P    *Prepared
	M    *Modulation
	Step int         // row of M
	RoPE engine.RoPE // tables of Wide, made by NewState
	// First is for the image rows that a net begins with, where its blocks all start with them.
	First engine.Tensor
}

// Model is a diffusion transformer, or the blocks of one that a rank holds. A value holds weights only and may be
// shared by ranks that use the same kind of Ops. Calls with impossible shapes panic with *engine.ShapeError.
type Model interface {
	// Spec describes the whole model, also if only some blocks are held.
	Spec() *Spec
	// Prepare computes what depends on the entries alone and on no block. All entries have equal shapes. It refuses
	// (error) entries whose shapes do not fit the model, naming the field.
	Prepare(env Env, entries []Entry, grid Grid) (*Prepared, error)
	// PrepareBlock adds to p what depends on block i, cross K/V, for the half of it that env.Half names. Nothing for
	// blocks that this value does not hold.
	PrepareBlock(env Env, p *Prepared, i int)
	// Modulate starts modulations for S timesteps of each entry, timesteps [S*n] ordered [S][n] as the network takes them
	// (FLUX 0..1, the others 0..1000), with the head's.
	Modulate(env Env, p *Prepared, timesteps []float32) *Modulation
	// ModulateBlock adds to m the modulations of block i for the same timesteps. Nothing for blocks that this value does
	// not hold.
	ModulateBlock(env Env, m *Modulation, i int)
	// Embed fills s.X: image rows from x [B, li, C*p*p] of env.DType, text rows from s.P.Text.
	Embed(env Env, s *State, x engine.Tensor)
	// Block runs block i on s.X in place. skip is the output rows of Spec.Blocks[i].Skip, absent if that is -1.
	Block(env Env, i int, s *State, skip engine.Tensor)
	// Head turns the image rows of s.X into the network's prediction out [B, li, OutChannels*p*p] of env.DType, features
	// ordered like x.
	Head(env Env, s *State, out engine.Tensor)
	// Shards tells how weights are brought together that were loaded in parts; nil: all that is held is here.
	Shards() *Shards
	// Close gives the memory of the weights back. Nothing else may be called afterwards.
	Close()
}

// NewState allocates the state of one evaluation of rows, of which products and attention see wide: X of env.DType from
// the arena, and views of the prepared tables.
func NewState(env Env, spec *Spec, p *Prepared, m *Modulation, step, b int, rows, wide Rows) *State {
	s := &State{B: b, Rows: rows, Wide: wide, P: p, M: m, Step: step}
	s.X = env.Arena.Alloc(env.DType, b, rows.Len(), spec.Width)
	s.RoPE = p.Tables(env, wide)
	return s
}

// TextRows is the view of the text rows of X: [B, lt, E].
func (s *State) TextRows() engine.Tensor { return s.X.Slice(1, 0, s.Rows.Text.Len()) }

// ImageRows is the view of the image rows of X: [B, li, E].
func (s *State) ImageRows() engine.Tensor {
	return s.X.Slice(1, s.Rows.Text.Len(), s.Rows.Len())
}

// Tables returns the rotation tables of rows: a view where they are neighbours in the whole sequence, else a copy in
// the arena.
func (p *Prepared) Tables(env Env, rows Rows) engine.RoPE {
	if p.RoPE.Cos.IsZero() {
		return engine.RoPE{}
	}
	lt := p.RoPE.Cos.Dim(0) - p.Grid.Tokens() // text rows of the table
	return engine.RoPE{Cos: pickRows(env, p.RoPE.Cos, lt, rows), Sin: pickRows(env, p.RoPE.Sin, lt, rows)}
}

// pickRows selects rows of a table [Lt+Li, ...] whose image part starts at row lt.
func pickRows(env Env, table engine.Tensor, lt int, rows Rows) engine.Tensor {
	t, i := rows.Text, rows.Image
	switch {
	case i.Len() == 0:
		return table.Slice(0, t.Start, t.End)
	case t.Len() == 0:
		return table.Slice(0, lt+i.Start, lt+i.End)
	case t.End == lt && i.Start == 0:
		return table.Slice(0, t.Start, lt+i.End)
	}
	out := env.Arena.Alloc(engine.F32, rows.Len(), table.Dim(1))
	env.Ops.Copy(out.Slice(0, 0, t.Len()), table.Slice(0, t.Start, t.End))
	env.Ops.Copy(out.Slice(0, t.Len(), rows.Len()), table.Slice(0, lt+i.Start, lt+i.End))
	return out
}
