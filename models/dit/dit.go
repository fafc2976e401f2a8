// Package dit is the contract between diffusion transformers and the code that runs them.
//
// A Model is a transformer split into stages: Prepare (what depends on an entry alone), Modulate (what depends on entry
// and timestep), Embed, the Blocks in order, Head. It computes exactly the token rows that the caller asks for and
// delegates attention over the whole sequence to the Attend hook, so the caller can split tokens, heads, blocks and
// entries across devices without the model knowing. Families live in the folders beside this one. Package parallel,
// which runs them, imports this package and no family.
//
// Facts that have caused bugs elsewhere: the joint sequence is text first, then image; rows of X are in that order too.
// Token features of latents are ordered (channel, row in token, column in token). From Embed to Head no code looks at
// tensor values.
package dit

import (
	"cmp"
	"slices"
	"sync"

	"patchbay/engine"
)

// Range is a half-open interval [Start, End) of tokens, heads or blocks.
type Range struct{ Start, End int }

// Len returns End - Start.
func (r Range) Len() int { return r.End - r.Start }

func (r Range) Has(i int) bool { return i >= r.Start && i < r.End }

// Rows names the tokens that one call computes, as global positions in the text and in the image sequence. Either may
// be empty.
type Rows struct{ Text, Image Range }

func (r Rows) TextOnly() Rows { return Rows{Text: r.Text} }

func (r Rows) ImageOnly() Rows { return Rows{Image: r.Image} }

func (r Rows) Len() int { return r.Text.Len() + r.Image.Len() }

// Grid is the token grid of one latent, with odd latents already padded to whole tokens. Frames are stacked vertically,
// each padded on its own. Tokens of sound count as image tokens, behind those of the video, ordered (row, column).
type Grid struct {
	Y, X             int // rows and columns of tokens, over all frames
	LatentY, LatentX int // rows and columns of the latent before padding, over all frames
	T                int // frames; 0 means one
	SoundY, SoundX   int // rows and columns of the sound's latent
	Sound            int // tokens of sound
	Pad              int // padding tokens that the network appends to the image tokens (Spec.Multiple)
	Left             int // of Y*X tokens those that keyframes leave out (Keyframes.Every)
}

// Frame returns the grid of one frame.
func (g Grid) Frame() Grid {
	t := max(1, g.T)
	return Grid{Y: g.Y / t, X: g.X, LatentY: g.LatentY / t, LatentX: g.LatentX}
}

// Video returns Y*X - Left, the number of image tokens without sound and padding tokens.
func (g Grid) Video() int { return g.Y*g.X - g.Left }

// Unpadded returns Video + Sound, the number of image tokens without padding tokens.
func (g Grid) Unpadded() int { return g.Video() + g.Sound }

// Tokens returns Unpadded + Pad.
func (g Grid) Tokens() int { return g.Unpadded() + g.Pad }

// Array is host conditioning data: row-major f32 [Rows, Cols]. Read-only once it is inside an Entry.
type Array struct {
	Rows, Cols int
	Data       Floats
}

// Entry is the conditioning of one prediction: what the network receives besides latent and timestep. Context is for
// all families, Pooled for FLUX and SD3, Guidance for FLUX dev, FLUX.2 dev and Chroma, ContextLen for PixArt and
// HunyuanDiT. Context2 (mT5, with BERT in Context) and Context2Len are for HunyuanDiT.
type Entry struct {
	Context     Array
	Pooled      Floats   // [C]; nil means zeros
	Guidance    *float32 // of guidance-distilled models; nil: nothing is embedded (Chroma: 0)
	ContextLen  int      // valid tokens of Context; 0 means all
	Context2    Array
	Context2Len int
	// Size is the image size given to the network: HunyuanDiT image_meta_size [6], PixArt c_size [2] and c_ar [1]. nil:
	// it follows from the grid.
	Size []float32
	// Concat holds the channels that the network reads after those of the latent, at the latent's size (Spec.Concat).
	Concat Reference
	// Vision is a picture encoder's states, for models whose blocks attend to them (Spec.VisionDim); no rows: there is no
	// picture.
	Vision Array
	// Frames is the part of the timestep that each frame of the latent has, 0 for frames that are given, SoundRows the
	// same of each row of the sound; nil: all have the whole.
	Frames, SoundRows []float32
	// FrameRate is how many pictures of the video last a second; 0: the network's default (Spec.FrameRate).
	FrameRate float64
	// Keyframes are the last frames of the latent, in order, which guide the video and are no part of it
	// (Spec.Keyframes).
	Keyframes []Keyframes
	// SoundReference is rows of sound [rows, Sound.Channels*Sound.Patch] that the sound of the latent follows, at time 0,
	// in networks in which that is a stream of its own (Sound.Width).
	SoundReference Array
	// Connected says that Context is not what the text encoder wrote, but what the network has made of it
	// (Spec.Connected).
	Connected bool
	// References are reference latents, for models that take them (Spec.References). The entries of one call have
	// equally many, of equal sizes.
	References []Reference
	// Slots holds, for references in order, the number of text rows before each, ascending; those that it does not name
	// follow the text. For models with a preface (Spec.Preface).
	Slots []int
	// Prefix holds rows [rows, Width] that precede the embedded text as they are, at text positions (Spec.Prefix).
	Prefix Array
	// Method says how references are positioned, in ComfyUI's words ("index", "offset" ...). Empty: the default.
	Method string
	// Pictures are the rows of Context that a picture became, in ascending order without overlap, in networks that
	// modulate them as pictures (MiniMax-H3).
	Pictures []Range
	// SoundRatio is the shift of the sound's schedule over that of the video's, in networks that are told; 0: 1.
	SoundRatio float32
	// Schedule is the timesteps of the run in order, for networks that read where a step leads to (FLUX.3 distilled).
	Schedule Floats
	// Biases are added to attention scores, in models that take them (Spec.Biases), in ascending order without overlap.
	Biases []Bias
	// Hint is the input of a control net or a Patch: [Li, channels*p*p] in token order or, for a control net,
	// [items*Li, channels*p*p] with one hint per batch item. Mode is the control type of a union net, from 1; 0: none.
	// Other models ignore both.
	Hint Array
	Mode int
}

// Bias is added to the attention scores that image tokens, and text tokens before Rows, have with keys in Rows of
// Context.
type Bias struct {
	Rows  Range
	Value float32 // finite
}

// Control is a control net: a model without a head. After block k its state goes through an output layer and is added
// to the image tokens of a base model after some of that model's blocks.
type Control interface {
	Model
	// Feeds lists, for each block of the net, the blocks of the base model after which its output is added.
	Feeds(base *Spec) [][]int
	// Output computes the output of block k times gate [1, E] f32 for the image rows of s: out [B, li, E].
	Output(env Env, k int, s *State, out, gate engine.Tensor)
}

// Follower is a Control that reads the base model while that runs and takes rotation and modulations from it. Its
// blocks run in order, each right before the base block that it feeds. A block that feeds none runs before the base
// block that the next feeding one feeds. They see the image tokens without the base model's padding tokens.
type Follower interface {
	Control
	// Follow sets up the net's state s from the base model's state for the same rows.
	Follow(s, base *State)
	// Join lets block k read the image rows of the base model as they are before that block runs. rows returns them for
	// the rows of s, [B, li, E], in memory that Join releases. Either all ranks of a tensor group call rows or none
	// does.
	Join(env Env, k int, s *State, rows func() engine.Tensor)
}

// Patch is a set of layers that change the image rows of a base model after its blocks, row by row, according to a
// hint. Of the methods of Model it has Spec (whose Blocks are those that it can follow), Prepare, Shards and Close.
type Patch interface {
	Model
	// Apply changes the image rows of s after block k of the base model. hint [1, li, E] of env.DType is these rows of
	// Prepared.Hint, gate [1, E] f32 the strength.
	Apply(env Env, k int, s *State, hint, gate engine.Tensor)
}

// Task is work outside diffusion that the ranks of a tensor group do together, each with its part of the weights: text
// encoding. Of the methods of Model it has Close.
type Task interface {
	Model
	// Run answers a question that every rank of the group receives. All ranks return the same answer.
	Run(env TaskEnv, question []byte) (answer []byte, err error)
}

// TaskEnv is what a Task, or a small network outside diffusion, receives besides its weights. It belongs to one rank.
type TaskEnv struct {
	Ops engine.Ops
	// Take returns an arena of the given size. The next call may reuse its memory.
	Take func(bytes int) (*engine.Arena, error)
	// Check is called between layers. Its error ends the work and is returned unchanged. nil: nothing to check.
	Check func() error
	// Sum adds up a contiguous tensor over all ranks of the group in place. nil: the rank is alone.
	Sum func(engine.Tensor)
}

// MaskChannels is how many channels of Entry.Concat a mask takes: the 8 x 8 mask pixels of a latent pixel, row by row.
const MaskChannels = 64

// BlockKind says how the streams of a block attend to each other, and so what ranks exchange.
type BlockKind uint8

// Block kinds: a Double block has two streams with weights of their own and joint attention (FLUX double, SD3 joint). A
// Single block runs one stream over text and image together (FLUX single). A Cross block has self-attention over image
// tokens and cross-attention to keys and values that depend on the text only (PixArt, HunyuanDiT), or reads those in
// the same attention (Qwen-Image-2.1, Spec.Preface), or has no cross-attention (the first blocks of Z-Image and
// FLUX.3, which leave text rows unchanged).
const (
	Double BlockKind = iota
	Single
	Cross
)

// Spec is what a caller must know about a model without its weights. It comes from the checkpoint's header and, for
// some Fun nets of Z-Image, from one of its tensors.
type Spec struct {
	Family        string // family.Family.Name: "flux", "sd3" ...
	Width         int    // E
	Heads         int    // H
	HeadDim       int    // D
	KVHeads       int    // heads of keys and values, each read by Heads/KVHeads consecutive query heads; 0: Heads
	PatchSize     int    // latent rows (and columns) per token
	Channels      int    // C of the latent that the model reads and that samplers see
	OutChannels   int    // C of what Head writes (PixArt, HunyuanDiT: 2*Channels, the second half is dropped)
	ContextDim    int    // columns of Entry.Context
	PooledDim     int    // length of Entry.Pooled, 0: none
	Context2Dim   int    // columns of Entry.Context2, 0: none
	ContextTokens int    // rows of Entry.Context where Context2 has those of the same text after them
	VisionDim     int    // columns of Entry.Vision, 0: none
	TakesGuidance bool
	// References: the network takes reference latents. Their tokens follow those of the text, are split and exchanged
	// with them, and are computed with the weights of the image, or of a Single block.
	References bool
	// Frames: the network takes latents of several frames (layers), whose tokens follow one another.
	Frames bool
	Sound  Sound // that the network reads and writes beside a video, in latents that have it
	// FrameRate is what the network takes for Entry.FrameRate 0; 0: it reads none.
	FrameRate float64
	// Keyframes: the network knows frames of the latent that guide a video (Entry.Keyframes).
	Keyframes bool
	// Connected is the number of columns of an entry's Context that is Connected; 0: none is.
	Connected int
	// Prefix: the network takes rows in front of its text that are not embedded (Entry.Prefix).
	Prefix bool
	// Preface: text and references see no image token and do not depend on the timestep. PrepareBlock moves their rows
	// through each block once per request and keeps their keys and values, which the attention of image tokens reads
	// before those of the image (Attention.Preface). All blocks are of kind Cross.
	Preface bool
	// Whole: the model is one block whose inside is its own affair, such as a convolutional network. A call computes all
	// image rows, with all weights, and never attends through Env.Attend.
	Whole bool
	// NeedsMethod: the references of an entry without a Method are ignored.
	NeedsMethod bool
	// Biases: ComfyUI's network takes a bias on attention (Entry.Biases). Its text tokens are the rows of Context.
	Biases bool
	// Concat is how many channels the network reads after those of the latent (Entry.Concat); 0: none.
	Concat int
	// Follows: this is a control net that is a Follower.
	Follows bool
	// WholeHint: the hint of this control net is padded to whole tokens, like that of a Follower.
	WholeHint bool
	// Registers is how many learned tokens the network puts in front of the text.
	Registers int
	// Multiple: the network pads the text tokens and the image tokens, each to a multiple of this number, with tokens
	// of its own. 0: it does not pad.
	Multiple    int
	Blocks      []BlockSpec
	Params      int64 // number of parameters
	EmbedParams int64 // those of ForEmbed weights
	HeadParams  int64 // those of ForHead weights
	Outline     *Outline
}

// Outline is a model without the bytes of its weights, for an engine.Recorder. Copies of a Spec share it.
type Outline struct {
	// Part makes the held part of the model, of whole bytes: Held.Part is ignored. It reads no file and is safe for
	// concurrent use.
	Part func(Held) (Model, error)
	// Recorded keeps what parallel/forecast has recorded.
	Recorded sync.Map
}

// BlockSpec describes one block.
type BlockSpec struct {
	Kind BlockKind
	Skip int // index of the earlier block whose output is this block's skip input; -1: none
	// Attends is how often Block calls Attend (SD3.5 medium's dual-attention blocks: 2, a whole network: 0, others 1).
	Attends int
	Params  int64 // number of parameters
	// Split are those that a tensor group divides, for each number of units: heads and columns of MLPs.
	Split [2]Split
}

// Blocks returns n copies of b, each of which attends once and takes no skip input.
func Blocks(n int, b BlockSpec) []BlockSpec {
	b.Skip, b.Attends = -1, 1
	return slices.Repeat([]BlockSpec{b}, n)
}

// Groups returns the number of key and value heads. Ranks split attention by these, each with its query heads.
func (s *Spec) Groups() int { return cmp.Or(s.KVHeads, s.Heads) }

// Group returns how many query heads share one head of keys and values.
func (s *Spec) Group() int { return s.Heads / s.Groups() }

// JointText reports whether text rows take part in attention with image rows (Double and Single blocks), so that they
// must be split, cached and exchanged like image rows.
func (s *Spec) JointText() bool {
	return len(s.Blocks) > 0 && s.Blocks[len(s.Blocks)-1].Kind != Cross
}

// Tokens returns the grid of a latent of y rows and x columns. Sides are rounded up to whole tokens.
func (s *Spec) Tokens(y, x int) Grid {
	p := s.PatchSize
	g := Grid{Y: (y + p - 1) / p, X: (x + p - 1) / p, LatentY: y, LatentX: x}
	g.Pad = s.pads(g.Tokens())
	return g
}

// FrameTokens returns the grid of t frames of y/t rows each, stacked vertically; t = 0 means one frame.
func (s *Spec) FrameTokens(t, y, x int) Grid {
	n := max(1, t)
	g := s.Tokens(y/n, x)
	g.Y, g.LatentY, g.T = n*g.Y, n*g.LatentY, t
	g.Pad = s.pads(g.Y * g.X)
	return g
}

// HintSize returns the rows and columns of a control net's hint for a latent: whole tokens for a Follower and for a net
// with WholeHint.
func (s *Spec) HintSize(y, x int) (int, int) {
	if g := s.Tokens(y, x); s.Follows || s.WholeHint {
		return g.Y * s.PatchSize, g.X * s.PatchSize
	}
	return y, x
}

// TextColumns returns how many columns the Context of an entry has.
func (s *Spec) TextColumns(e *Entry) int {
	if e.Connected {
		return s.Connected
	}
	return s.ContextDim
}

// TextTokens returns the number of text tokens that n rows of Entry.Context become in the joint sequence.
func (s *Spec) TextTokens(n int) int { return s.Registers + n + s.pads(n) }

// JointTokens returns the number of tokens in front of the image tokens in the joint sequence of an entry: those of its
// prefix, of its text and of its references.
func (s *Spec) JointTokens(e *Entry) int {
	return e.Prefix.Rows + s.TextTokens(e.Context.Rows) + s.ReferenceTokens(e)
}

// pads returns how many padding tokens the network adds to n tokens.
func (s *Spec) pads(n int) int {
	if s.Multiple == 0 {
		return 0
	}
	return (s.Multiple - n%s.Multiple) % s.Multiple
}

// Env is what every call receives besides weights and state. It belongs to one rank and one stream.
type Env struct {
	Ops    engine.Ops
	Arena  *engine.Arena // activations, in stack order: a call releases what it allocates unless it returns it
	DType  engine.DType  // of activations: f32 (the zero value) or bf16. Modulations and rotations are always f32
	Attend func(Attention)
	// Reduce sums a partial result over the ranks that hold the other slices of the same weights. nil: this rank holds
	// whole weights.
	Reduce func(engine.Tensor)
	// Gather and Scatter replace Reduce where those ranks also split the rows of X (State.Rows) between projections.
	// Gather fills dst [B, L, E], the rows that all of them compute together (State.Wide or one stream of it), from src
	// [B, l, E], those of them that X holds. Scatter sums src [B, L, E] over the ranks and leaves the rows that X holds
	// in dst [B, l, E]. Every rank must call both, with or without rows.
	Gather, Scatter func(dst, src engine.Tensor, of Rows)
	// Sum adds up a contiguous tensor over those ranks in place, in both forms; every rank must call it. nil: this rank
	// holds whole weights.
	Sum func(engine.Tensor)
	// AttendAlike attends with queries that all ranks of the sequence have alike, over the keys and values of all of its
	// rows, of which a.K and a.V are those of a.Rows. All ranks get the same bits. It neither normalizes nor rotates. nil:
	// this rank has all keys.
	AttendAlike func(a Attention)
}

// Attention is one attention over the whole sequence, seen from the rows of this call. The hook normalizes and rotates
// (possibly while it packs an exchange), attends over all tokens of the sequence and writes Out.
type Attention struct {
	Block int // index into Spec.Blocks
	Index int // 0, or 1 for the second attention of a block that has two
	// Q, K, V are [B, L, H, D] views of the local rows, unnormalized, text rows first. K and V may have fewer heads
	// (see Groups). The hook may overwrite them.
	Q, K, V engine.Tensor
	// TextNorm applies to the first Rows.Text.Len() rows except the last References of them, ImageNorm to the others.
	// Single and Cross blocks set both to the same norm.
	TextNorm, ImageNorm engine.QKNorm
	References          int
	RoPE                engine.RoPE // tables of the local rows
	Rows                Rows        // which tokens the rows are; Text is empty in an attention over image tokens only
	// ImageOnly is true when the keys among these rows are image tokens only (self-attention of Cross blocks, second
	// attention of SD3.5 medium).
	ImageOnly bool
	// Preface holds the keys and values of n entries that every query sees besides those of the rows, ready for use:
	// [n, Lt, 2, K, D]. Absent: there are none.
	Preface engine.Tensor
	Scale   float32       // 0: 1/sqrt(D)
	Out     engine.Tensor // [B, L, H, D] view that receives the result for the local rows
}

// Prepared is what depends on the entries alone, computed once per request for n entries of equal shapes that will be
// evaluated together. Its tensors live in the arena that Prepare was given, until the caller releases it.
type Prepared struct {
	N  int // entries
	Lt int // text tokens of each entry, prefix and references included
	// [n, Lt, E] of env.DType, text rows as the first block sees them; of a preface, as the next block does that
	// PrepareBlock is called for. Absent for other Cross models
	Text engine.Tensor
	// [n, E] f32, the part of the conditioning vector that does not depend on the timestep; may be absent
	Vector engine.Tensor
	Source engine.Tensor // f32, what PrepareBlock reads, or Block where that depends on the timestep; absent: nothing
	// per block [n, Lt, 2, H, D] of env.DType, keys (normalized where the family does) and values of the text or the
	// preface; only set for blocks that were asked for
	CrossKV []engine.Tensor
	KeyLen  []int // valid text tokens per entry for cross-attention; nil: all
	// [Lt+Li, D/2] tables of the whole sequence, text first, [Li, D/2] for Cross models without a preface; absent: no
	// rotation
	RoPE engine.RoPE
	// SoundRoPE is the tables of the sound that every rank computes, of the shapes that the family says.
	SoundRoPE engine.RoPE
	Sound     engine.Tensor // [n, rows, C*p] of env.DType, Entry.SoundReference; absent: there is none
	Concat    engine.Tensor // [n, Li, C*p*p] f32, appended by Embed to the features of image tokens; absent: nothing
	Pos       engine.Tensor // [1, Li, E] of env.DType, positions added by Embed; absent: none
	// [n, Li, E] of env.DType: the embedded hint of a control net, added by Embed, or of a Patch; absent: none.
	// [n*items, Li, E] for a control net with one hint per batch item
	Hint    engine.Tensor
	Grid    Grid
	Entries []Entry // the inputs, for what later calls need of them (guidance, references)
}

// Modulation is what depends on entry and timestep: shifts, scales and gates for S timesteps at once.
type Modulation struct {
	// per block [S, n, k*E] f32, in the order that the family documents; absent for blocks not asked for
	Image []engine.Tensor
	// the same for the text stream of Double blocks, for the text and the references of Single blocks that modulate these
	// by themselves, [S, n, 2*k*E], and for sound that is a stream of its own
	Text []engine.Tensor
	Head engine.Tensor // [S, n, k*E] f32
	// Vector is what ModulateBlock reads: [S, n, E] f32, or another width where the family says so.
	Vector engine.Tensor
}

// Rows returns the modulations of timestep step, [n, k*E] each, in the order that OfRows expects.
func (m *Modulation) Rows(step int) (rows []engine.Tensor) {
	for _, t := range slices.Concat(m.Image, m.Text, []engine.Tensor{m.Head}) {
		if !t.IsZero() {
			rows = append(rows, t.Index(0, step))
		}
	}
	return rows
}

// OfRows returns the modulation of one timestep made of rows, which are laid out like a result of m.Rows but may live
// elsewhere. It has no Vector.
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

// NewModulation returns a Modulation with room for every block of a model.
func NewModulation(spec *Spec) *Modulation {
	return &Modulation{Image: make([]engine.Tensor, len(spec.Blocks)), Text: make([]engine.Tensor, len(spec.Blocks))}
}

// State is one evaluation of some rows. B = n * latent batch; the items of an entry are consecutive (item b belongs to
// entry b/(B/n)).
type State struct {
	B    int
	Rows Rows
	Wide Rows          // what projections and attention of a block see: Rows, or more where Env.Gather adds the rest
	X    engine.Tensor // [B, L, E] of Rows, text rows first, then image rows; blocks update it in place
	P    *Prepared
	M    *Modulation
	Step int         // index of the timestep in M
	RoPE engine.RoPE // tables of Wide, set by NewState
	// Sound [B, Ls, Sound.Width] is the rows of sound that every rank computes, after those of a reference
	// (Prepared.Sound); absent: there are none.
	Sound engine.Tensor
	// First holds the image rows that a control net starts with, where all its blocks start from them.
	First engine.Tensor
}

// Model is a diffusion transformer, or the blocks of one that a rank holds. It holds weights only and may be shared by
// ranks that use the same kind of Ops. Calls with impossible shapes panic with *engine.ShapeError.
type Model interface {
	// Spec describes the whole model, even if only some blocks are held.
	Spec() *Spec
	// Prepare computes what depends on the entries alone and on no block. All entries must have equal shapes. It
	// returns an error that names the field if an entry does not fit the model.
	Prepare(env Env, entries []Entry, grid Grid) (*Prepared, error)
	// PrepareBlock adds to p what depends on block i, its cross K/V. It does nothing for blocks that this value does not
	// hold. With a preface it is called for the blocks in order, p.Text comes from where the block before is held, and the
	// result goes where Prepare has taken memory for it, so that the arena of env is for scratch alone. Env.Reduce
	// applies, Gather and Scatter do not.
	PrepareBlock(env Env, p *Prepared, i int)
	// Modulate starts the modulations, with the head's, for S timesteps of each entry. timesteps [S*n] are ordered
	// [S][n] and in the network's range: 0..1000 for SD3, PixArt and HunyuanDiT, 0..1 for the others.
	Modulate(env Env, p *Prepared, timesteps []float32) *Modulation
	// ModulateBlock adds to m the modulations of block i for the same timesteps. It does nothing for blocks that this
	// value does not hold.
	ModulateBlock(env Env, m *Modulation, i int)
	// Embed fills s.X: image rows from x [B, li, FeaturesIn] of env.DType, text rows from s.P.Text. Rows of sound that
	// every rank computes follow the image rows in x and fill s.Sound.
	Embed(env Env, s *State, x engine.Tensor)
	// Block runs block i on s.X in place. skip is the output rows of block Spec.Blocks[i].Skip, absent if that is -1.
	Block(env Env, i int, s *State, skip engine.Tensor)
	// Head turns the image rows of s.X, and s.Sound, into the network's prediction out [B, li, FeaturesOut] of env.DType,
	// with rows and features ordered like x.
	Head(env Env, s *State, out engine.Tensor)
	// Shards says how weights that were loaded in parts are gathered. nil: all held bytes are here.
	Shards() *Shards
	// Close frees the memory of the weights. Nothing else may be called afterwards.
	Close()
}

// NewState allocates the state of one evaluation of rows, of which projections and attention see wide: X of env.DType
// from the arena, and the rotation tables of wide.
func NewState(env Env, spec *Spec, p *Prepared, m *Modulation, step, b int, rows, wide Rows) *State {
	s := &State{B: b, Rows: rows, Wide: wide, P: p, M: m, Step: step}
	s.X = env.Arena.Alloc(env.DType, b, rows.Len(), spec.Width)
	if n := spec.AlikeOf(p.Grid, p.Entries); n > 0 {
		s.Sound = env.Arena.Alloc(env.DType, b, n, spec.Sound.Width)
	}
	s.RoPE = p.Tables(env, wide)
	return s
}

// TextRows returns the text rows of X, a view [B, lt, E].
func (s *State) TextRows() engine.Tensor { return s.X.Slice(1, 0, s.Rows.Text.Len()) }

// ImageRows returns the image rows of X, a view [B, li, E].
func (s *State) ImageRows() engine.Tensor {
	return s.X.Slice(1, s.Rows.Text.Len(), s.Rows.Len())
}

// Tables returns the rotation tables of rows: a view where they are contiguous in the whole sequence, else a copy in
// the arena.
func (p *Prepared) Tables(env Env, rows Rows) engine.RoPE {
	if p.RoPE.Cos.IsZero() {
		return engine.RoPE{}
	}
	lt := max(0, p.RoPE.Cos.Dim(0)-p.Grid.Tokens()) // text rows of the table
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
