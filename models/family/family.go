// Package family is what a family of diffusion models says about itself: how its files are recognised, what they are
// called elsewhere, what its network wants of those who prepare its inputs, how prompts become entries, and which
// releases there are. It knows no family; the table of all of them is in package models.
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

// Family describes one family. Everything that node, parallel, lora and the loaders know of it is here.
type Family struct {
	Name  string // of dit.Spec.Family
	Forms []Form // the layouts of its files
	// Detect infers the sizes of a model from names and shapes of a set in the original names, without prefix; only what
	// shapes cannot tell comes from the JSON under meta["config"]. Errors name the tensor or field and what is allowed.
	Detect  func(set *weights.Set, meta map[string]string) (Config, error)
	Text    Text
	Names   weights.Names // what adapters and other layouts call its tensors
	Control *Control      // nil: no control nets of the family are known
	Patch   *Patch        // nil: no layers behind its blocks are known
	// Releases are the published models, for plans made before any weight is on disk.
	Releases []Release
	Tiny     Config // a small model with every optional part, for tests
}

// Config holds the sizes of one model. As JSON it is what a file's metadata may carry under "config".
type Config interface {
	// Describe describes the model whose weights, in the original names, set has; nil: those of no file.
	Describe(set *weights.Set) (*Diffusion, error)
}

// Form is one layout of a family's files.
type Form struct {
	Has   string   // a tensor name that only these files have, but for relatives
	Lacks []string // names that relatives have beside it
	// Aliases is true for files in the names of Names.Diffusers.
	Aliases bool
	// Meta translates the file's metadata into that of the original form; nil: it is the same.
	Meta func(meta map[string]string) (map[string]string, error)
}

// Release is one published model.
type Release struct {
	Name  string
	Steps int // of the release's own example
	// Text is the number of text tokens that go with a picture: inside the joint sequence, or as keys of the
	// cross-attention.
	Text int
	// Entries is how many conditioning entries an evaluation has: 2 with classifier-free guidance, 1 for distilled
	// models.
	Entries int
	Config  Config
}

// Text says how prompts become entries.
type Text struct {
	Types    []string // values of the input "type" of ComfyUI's loaders
	Encoders []Encoder
	// EvenChunks: prompts of CLIP encoders that are used together get the same number of chunks, the shorter ones empty
	// prompts at the end.
	EvenChunks bool
	// Join makes an entry of the encodings by kind; nil: there is one. Those of optional encoders may be absent.
	Join func(done map[string]*text.Encoding) (dit.Entry, error)
}

// Entry makes an entry of the encodings by kind.
func (t *Text) Entry(done map[string]*text.Encoding) (dit.Entry, error) {
	if t.Join != nil {
		return t.Join(done)
	}
	for _, e := range done {
		return dit.Entry{Context: e.Context, Pooled: e.Pooled}, nil
	}
	return dit.Entry{}, errors.New("no text encoder was run")
}

// Encoder is one text encoder of a family.
type Encoder struct {
	Kind     string // of package text
	Optional bool   // where all are, one must be there
	// Under reports whether ComfyUI reads the encoder alone in this family's way though a loader is told a type that is
	// another's; nil: never.
	Under  func(typ string) bool
	Layout tokenizer.Layout
	Form   text.Form
}

// Encoder returns what the family wants of an encoder of that kind.
func (t *Text) Encoder(kind string) (Encoder, bool) {
	for _, e := range t.Encoders {
		if e.Kind == kind {
			return e, true
		}
	}
	return Encoder{}, false
}

// Control says what the control nets of a family are. They have the tensors of the beginning of a model.
type Control struct {
	Kinds string // of nets that run here, for people
	Forms []Form // the layouts of their files; Meta is not used
	// Refused are tensor names that only nets have that do not run here, with what such a net is, for people.
	Refused map[string]string
	// Rest gives the shapes of what a net, in the original names, lacks of a model: the head, and blocks at the end,
	// which have no outputs. Nothing of it is loaded.
	Rest func(net *weights.Set) map[string][]int
	// Hint is the beginning of the names of the model's layer that reads hints too; empty: they have one of their own.
	Hint string
	// Repeat is how many blocks of a model in a row each of the n outputs of a kind of blocks is added behind.
	Repeat   func(net *dit.Spec, kind dit.BlockKind, n int) int
	First    bool // behind the first of them alone
	Short    int  // so many blocks fewer for the last output
	NoShift  bool // the hint goes through the latent format without its shift
	NoPooled bool // the net gets a pooled vector of zeros
	// Names gives a tensor of a file the name that it has in those of the other nets of the family; nil: it has it.
	Names func(key string) string
	// Borrows are the beginnings of the names of tensors that a file lacks and the model beside which the net runs has,
	// in the original names. Rest has their shapes too.
	Borrows []string
	// Zeros is how many channels of zeros the net reads behind those of its hint, and that it reads hints of odd sides
	// with zeros beside them.
	Zeros int
	Root  bool // its strength is the root of what is set
	// Detect takes the place of the family's where a net is no beginning of a model; nil: it is.
	Detect func(set *weights.Set, meta map[string]string) (Config, error)
	// Shown says what of a hint's pixels v is encoded, factor*v + offset, of a net of that control_type; nil: v.
	Shown func(kind int) (factor, offset float32)
	// More are nets of other kinds.
	More []Control
}

// Takes reports whether a net borrows a tensor, which may be named without its part.
func (c *Control) Takes(name string) bool {
	return slices.ContainsFunc(c.Borrows, func(begin string) bool { return strings.HasPrefix(name+".", begin) })
}

// Patch says what files of layers behind every block of a family are (dit.Patch).
type Patch struct {
	Kinds string // for people; empty: none run here
	Form  Form   // the layout of the files; Meta and Aliases are not used
	// Refused are tensor names that only patches have that do not run here, with what such a patch is, for people.
	Refused map[string]string
	// Latent is the format of their hints, PatchSize what a token of one covers.
	Latent    latent.Format
	PatchSize int
	// Describe describes a file that holds a dit.Follower instead, with the channels of its hint; nil: none does.
	Describe func(set *weights.Set) (d *Diffusion, hint int, err error)
}
