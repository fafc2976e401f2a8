// Package family is what a family of diffusion models says about itself: how its files are recognized, what its tensors
// are called elsewhere, what its network expects as inputs, how prompts become entries, and which releases there are.
// It knows no family; package models has the table of all of them.
package family

import (
	"errors"
	"slices"
	"strings"

	"patchbay/models/dit"
	"patchbay/models/latent"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
)

// Family describes one family. Everything that node, parallel, lora and the loaders know about it is here.
type Family struct {
	Name  string // in dit.Spec.Family
	Forms []Form // the layouts of its files
	// Detect infers the sizes of a model from names and shapes of a set with original names and no prefix. Only what
	// shapes cannot tell comes from the JSON under meta["config"]. Errors name the tensor or field and what is allowed.
	Detect func(set *weights.Set, meta map[string]string) (Config, error)
	// Markers are tensors that Detect reads and that full checkpoints have without the prefix of the model's.
	Markers []string
	Text    Text
	Names   weights.Names // what adapters and other layouts call its tensors
	Control *Control      // nil: no control nets of the family are known
	Patch   *Patch        // nil: no model patches of the family are known
	Video   Video         // what latents its videos have
	// Releases are the published models, for plans made before any weight is on disk.
	Releases []Release
	Tiny     Config // a small model with every optional part, for tests
}

// Config holds the sizes of one model. Its JSON is what a file's metadata may carry under "config".
type Config interface {
	// Describe describes the model whose weights are in set under their original names; nil: a model without a file.
	Describe(set *weights.Set) (*Diffusion, error)
}

// Form is one layout of a family's files.
type Form struct {
	Has   string   // a tensor name that only these files and their relatives have
	Lacks []string // names that only the relatives have
	// Aliases is true for files with the names of Names.Diffusers.
	Aliases bool
	// Meta translates the file's metadata into that of the original form; nil: it is the same.
	Meta func(meta map[string]string) (map[string]string, error)
}

// Release is one published model.
type Release struct {
	Name string
	// Billions is the number of parameters of the released files in billions, which tests compare with the config.
	Billions float64
	Steps    int // in the release's own example
	// Text is the number of text tokens that go with an image: in the joint sequence, or as keys of the
	// cross-attention.
	Text int
	// Entries is how many conditioning entries an evaluation has: 2 with classifier-free guidance, 1 for distilled
	// models.
	Entries int
	// Clip is a usual video: presets of ComfyUI's nodes, or of its template. Zero for models of pictures.
	Clip   Clip
	Config Config
}

// Text says how prompts become entries.
type Text struct {
	Types    []string // values of the input "type" of ComfyUI's loaders
	Encoders []Encoder
	// EvenChunks: prompts of CLIP encoders that are used together get the same number of chunks. The shorter ones are
	// filled up with empty prompts.
	EvenChunks bool
	// Join makes an entry of the encodings, by kind of encoder; nil: there is one. Those of optional encoders may be
	// absent.
	Join func(done map[string]*text.Encoding) (dit.Entry, error)
}

// Entry makes an entry of the encodings, by kind of encoder.
func (t *Text) Entry(done map[string]*text.Encoding) (dit.Entry, error) {
	if t.Join != nil {
		return t.Join(done)
	}
	for _, e := range done {
		return dit.Entry{Context: e.Context, Pooled: e.Pooled, Slots: e.Slots, Pictures: zeros(e.Tags)}, nil
	}
	return dit.Entry{}, errors.New("no text encoder was run")
}

// zeros returns the runs of zeros in a list.
func zeros(list []int) (out []dit.Range) {
	for i, v := range list {
		switch n := len(out); {
		case v != 0:
		case n > 0 && out[n-1].End == i:
			out[n-1].End++
		default:
			out = append(out, dit.Range{Start: i, End: i + 1})
		}
	}
	return out
}

// Encoder is one text encoder of a family.
type Encoder struct {
	Kind     string // text.Kind.Name
	Optional bool   // if all encoders are optional, at least one is required
	// Under reports whether ComfyUI reads this encoder, used alone, in this family's way even if the loader's type typ
	// is another family's; nil: never.
	Under func(typ string) bool
	// For is the kind in whose place it may be; empty: none.
	For string
	// Writes says that it may be loaded alone though the family needs others beside it: it writes texts, and encodes none.
	Writes bool
	Layout tokenizer.Layout
	Form   text.Form
}

// Encoder returns the family's settings for an encoder of that kind.
func (t *Text) Encoder(kind string) (Encoder, bool) {
	for _, e := range t.Encoders {
		if e.Kind == kind {
			return e, true
		}
	}
	return Encoder{}, false
}

// Control describes the control nets of a family. They have the tensors of the beginning of a model.
type Control struct {
	Kinds string // of nets that are supported, for messages
	Forms []Form // the layouts of their files; Meta is not used
	// Refused maps tensor names that only unsupported nets have to what such a net is, for messages.
	Refused map[string]string
	// Rest returns the shapes of what a net, in the original names, lacks compared with a model: the head, and trailing
	// blocks, which have no outputs. None of it is loaded.
	Rest func(net *weights.Set) map[string][]int
	// Hint is the name prefix of the model's layer that reads hints too; empty: nets have a layer of their own for
	// them.
	Hint string
	// Repeat returns the number of consecutive model blocks after which each of the n outputs of a kind of blocks is
	// added.
	Repeat   func(net *dit.Spec, kind dit.BlockKind, n int) int
	First    bool // only after the first of them
	Short    int  // the last output is added after this many blocks fewer
	NoShift  bool // the latent format's shift is not applied to the hint
	NoPooled bool // the net gets a pooled vector of zeros
	// Names translates a tensor name of a file to that of the family's other nets; nil: it is the same.
	Names func(key string) string
	// Borrows are name prefixes of tensors that a file lacks and that come from the model beside which the net runs, in
	// the original names. Rest has their shapes too.
	Borrows []string
	// Zeros is how many channels of zeros the net reads after those of its hint. If it is not 0, hints of odd sides are
	// padded with zeros, too.
	Zeros int
	Root  bool // the strength that applies is the square root of the one that is set
	// Detect replaces the family's where a net is not the beginning of a model; nil: it is.
	Detect func(set *weights.Set, meta map[string]string) (Config, error)
	// Shown says what is encoded in place of a hint's pixels v, factor*v + offset, by the file's control_type; nil: v.
	Shown func(kind int) (factor, offset float32)
	// More are nets of other kinds.
	More []Control
}

// Takes reports whether a net borrows a tensor or module of that name.
func (c *Control) Takes(name string) bool {
	return slices.ContainsFunc(c.Borrows, func(begin string) bool { return strings.HasPrefix(name+".", begin) })
}

// Patch describes the files of layers that follow the blocks of a family (dit.Patch).
type Patch struct {
	Kinds string // of patches that are supported, for messages; empty: none
	Form  Form   // the layout of the files; Meta and Aliases are not used
	// Refused maps tensor names that only unsupported patches have to what such a patch is, for messages.
	Refused map[string]string
	// Latent is the format of their hints, PatchSize the side of a hint's token in it.
	Latent    latent.Format
	PatchSize int
	// Describe describes a file that holds a dit.Follower instead, and returns the channels of its hint; nil: none
	// does.
	Describe func(set *weights.Set) (d *Diffusion, hint int, err error)
}
