package value

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/family"
	"patchbay/models/source"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/files"
	"patchbay/parallel"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// Clip is a CLIP handle: the text encoders of a family, described but not loaded.
type Clip struct {
	Name             string // the files, joined by " + "
	Type             string // the text type that the result is for, a key of models.TextTypes
	parts            []encoder
	TokenizerOptions map[string]int   // T5TokenizerOptions
	Loras            []source.Adapter // adapters, in the order in which they were added
	unused           []string
	seeing
	Layer int // CLIPSetLastLayer: -1 the last, -2 the last but one; 0: the default of the type
}

// encoder is one text encoder in one file.
type encoder struct {
	kind   string // a kind of package text: "clip_l", "t5" ...
	prefix string
	name   string // file name as given in the workflow
	file   source.File
	config []byte // the file's metadata config; nil for encoders inside a full checkpoint
}

// set returns the encoder's weights from its open file.
func (e *encoder) set(file *weights.File, dtype engine.DType) *weights.Set {
	return file.Set().Prefix(e.prefix).For(dtype)
}

func (e *encoder) key() string { return e.file.Key() + " " + e.prefix }

// Add adds the encoders of one file. It returns an error if the file holds none.
func (c *Clip) Add(h files.Header) error {
	found := text.Find(h.Weights.Set())
	if len(found) == 0 {
		return fault.New(fault.WrongFamily, "%s holds no text encoder: it looks like %s", h.Name,
			models.GuessKind(h.Weights.Set()))
	}
	if c.Name != "" {
		c.Name += " + "
	}
	c.Name += h.Name
	for _, p := range found {
		e := encoder{
			kind: p.Kind, prefix: p.Prefix, name: h.Name, file: h.File, config: files.Config(h.Weights, p.Kind),
		}
		c.parts = append(c.parts, e)
		c.unused = append(c.unused, text.Unused(e.kind, h.Weights.Set().Prefix(e.prefix), e.config)...)
	}
	return nil
}

// Unused names the tensors in the files that the encoders do not know.
func (c *Clip) Unused() []string { return c.unused }

// Check returns an error unless the encoders that the type needs are there, once each; field is the input that names
// the type. A single encoder may override the type with that of its own family (family.Encoder.Under).
func (c *Clip) Check(class, field string) error {
	declared := c.Type
	for _, f := range models.Families() {
		if len(c.parts) != 1 {
			break
		}
		if e, ok := f.Text.Encoder(c.parts[0].kind); ok && e.Under != nil && e.Under(declared) {
			c.Type = f.Text.Types[0]
		}
	}
	if len(c.parts) == 1 && writesAlone(c.parts[0].kind) {
		return nil
	}
	wrong := func(format string, args ...any) error {
		return fault.At(fault.WrongFamily, field, class+": "+format, args...)
	}
	var have, must, may []string
	for _, p := range c.parts {
		if slices.Contains(have, p.kind) {
			return wrong("two files are %s encoders (%s)", p.kind, c.Name)
		}
		have = append(have, p.kind)
	}
	for _, e := range models.TextTypes()[c.Type].Encoders {
		may = append(may, e.Kind)
		if !e.Optional {
			must = append(must, e.Kind)
		}
	}
	reader := models.TextTypes()[c.Type]
	if e, ok := reader.Encoder(have[0]); ok && len(have) == 1 && e.Writes {
		return nil
	}
	has := func(kind string) bool {
		instead := func(e family.Encoder) bool { return e.For == kind && slices.Contains(have, e.Kind) }
		return slices.Contains(have, kind) || slices.ContainsFunc(reader.Encoders, instead)
	}
	if slices.ContainsFunc(must, func(kind string) bool { return !has(kind) }) {
		return wrong("type %s needs the encoders %s, the files hold %s", c.Type, strings.Join(must, " and "),
			strings.Join(have, " and "))
	}
	if !slices.ContainsFunc(may, has) {
		return wrong("type %s reads %s, the files hold %s", c.Type, strings.Join(may, ", "), strings.Join(have, " and "))
	}
	return nil
}

// writesAlone reports whether encoders of a kind write texts and no family reads their states, so that the type does
// not matter.
func writesAlone(kind string) bool {
	for _, f := range models.Families() {
		if _, ok := f.Text.Encoder(kind); ok {
			return false
		}
	}
	return text.KindOf(kind).Chat != nil
}

// reads returns how the type reads an encoder, or how one is read that writes alone; ok is false if the type does not.
func (c *Clip) reads(e *encoder) (as family.Encoder, ok bool) {
	reader := models.TextTypes()[c.Type]
	if as, ok = reader.Encoder(e.kind); !ok && writesAlone(e.kind) {
		return family.Encoder{Kind: e.kind, Layout: text.KindOf(e.kind).Chat.Layout}, true
	}
	return as, ok
}

// Empty reports whether a handle has no text encoders: that of a checkpoint without them.
func (c *Clip) Empty() bool { return len(c.parts) == 0 }

// OpenCheckpointCLIP opens the text encoders inside a full checkpoint. If there are none, as in those of LTX-2, the
// handle is empty, as in ComfyUI, and encoding is an error.
func OpenCheckpointCLIP(h files.Header, family string) (*Clip, error) {
	reads := func(p text.Part) bool { return text.KindOf(p.Kind).Of == nil }
	if !slices.ContainsFunc(text.Find(h.Weights.Set()), reads) {
		return &Clip{Name: h.Name}, nil
	}
	c := &Clip{}
	if f, ok := models.Named(family); ok {
		c.Type = f.Text.Types[0]
	}
	if err := c.Add(h); err != nil {
		return nil, err
	}
	for i, p := range c.parts { // the "config" of a full checkpoint is the diffusion model's
		if _, hasConfig := h.Weights.Metadata()[p.kind+".config"]; !hasConfig {
			c.parts[i].config = nil
		}
	}
	return c, c.Check("CheckpointLoaderSimple", "")
}

// layout returns the prompt layout l as the encoder's file and the nodes applied to the clip modify it.
func (c *Clip) layout(e *encoder, l tokenizer.Layout) (tokenizer.Layout, error) {
	if len(e.config) > 0 {
		var err error
		if l, err = l.WithConfig(e.config); err != nil {
			return l, fault.New(fault.BadCheckpoint, "%s: %v", e.name, err)
		}
	}
	return l.WithOptions(c.TokenizerOptions), nil
}

// prompts tokenizes the texts, keyed by kind of encoder, and lists the embeddings that were not found. It skips
// encoders that the type does not read.
func (c *Clip) prompts(s *Store, prompt func(key string) (words string, wanted bool)) (out map[string]tokenizer.Prompt,
	missing []string, err error,
) {
	out = map[string]tokenizer.Prompt{}
	empty := map[string]tokenizer.Prompt{}
	reader, chunks := models.TextTypes()[c.Type], 0
	for i := range c.parts {
		e := &c.parts[i]
		as, reads := c.reads(e)
		kind := text.KindOf(e.kind)
		words, wanted := prompt(kind.Prompt)
		if !wanted || !reads || kind.Of != nil {
			continue
		}
		l, err := c.layout(e, as.Layout)
		if err != nil {
			return nil, missing, err
		}
		if c.template != "" {
			l.Template = c.template
		}
		vocab, err := s.tokenizer(e)
		if err != nil {
			return nil, missing, err
		}
		lookup := func(name string) ([][]float32, error) { return s.roots.Embedding(name, l.Key) }
		p, err := l.Prompt(vocab, words, lookup)
		if len(c.before) > 0 {
			p, err = l.Pieces(vocab, append(slices.Clip(c.before), words), lookup)
		}
		if err != nil {
			return nil, missing, fault.Bad("text", "%v", err)
		}
		if err := e.fit(&p, l, vocab); err != nil {
			return nil, missing, err
		}
		missing = append(missing, p.Missing...)
		if out[e.kind] = p; reader.EvenChunks && l.Fill {
			chunks = max(chunks, len(p.Chunks))
			if empty[e.kind], err = l.Prompt(vocab, "", nil); err != nil {
				return nil, missing, err
			}
		}
	}
	for kind, e := range empty {
		p := out[kind]
		for len(p.Chunks) < chunks {
			p.Chunks = append(p.Chunks, e.Chunks...)
		}
		out[kind] = p
	}
	return out, missing, nil
}

// fit leaves out of a prompt the embeddings that are not for the encoder, and names them.
func (e *encoder) fit(p *tokenizer.Prompt, l tokenizer.Layout, vocab *tokenizer.Tokenizer) error {
	if !slices.ContainsFunc(slices.Concat(p.Chunks...), func(t tokenizer.Token) bool { return t.Vector != nil }) {
		return nil
	}
	pad := l.Pad
	switch {
	case e.kind == "mistral3":
		pad = 0 // the network's, not the tokenizer's
	case pad == tokenizer.FromVocabulary:
		pad = vocab.End
	}
	return files.With(e.file, func(file *weights.File) error {
		width := text.Width(file.Set().Prefix(e.prefix))
		if other := p.Fit(width, pad); other > 0 {
			p.Missing = append(p.Missing, fmt.Sprintf("of width %d (%s has %d)", other, e.name, width))
		}
		return nil
	})
}

// Encode runs prompts through the encoders. prompt returns the text for an encoder by its key, or wanted false to skip
// it. missing names the embeddings that were not found, even if an error is returned.
func (c *Clip) Encode(u Use, prompt func(key string) (words string, wanted bool)) (out Cond,
	missing []string, err error,
) {
	if c.Empty() {
		return out, nil, fault.Family("clip", "%s holds no text encoder: load that of its network with another loader",
			c.Name)
	}
	if len(c.parts) == 1 && writesAlone(c.parts[0].kind) {
		return out, nil, fault.Family("clip", "%s writes texts (TextGenerate), and no network here reads its states: "+
			"load the encoder of the network", c.Name)
	}
	prompts, missing, err := c.prompts(u.Store, prompt)
	if err != nil {
		return out, missing, err
	}
	done := map[string]*text.Encoding{}
	for _, e := range c.inOrder() {
		p, wanted := prompts[e.kind]
		var states *text.Encoding
		for _, of := range text.KindOf(e.kind).Of {
			states = cmp.Or(done[of], states)
		}
		if states != nil {
			p, wanted = tokenizer.Prompt{Chunks: [][]tokenizer.Token{states.Tokens()}}, true
		}
		if !wanted {
			continue
		}
		enc, err := c.runEncoder(u, e, p, states)
		if errors.Is(err, text.ErrTokenizer) {
			err = &fault.Error{Code: fault.TokenizerMissing, Text: e.name + ": " + err.Error(), Field: "clip", Cause: err}
		}
		if err != nil {
			return out, missing, err
		}
		done[e.kind] = &enc
	}
	reader := models.TextTypes()[c.Type]
	entry, err := reader.Entry(done)
	if err != nil {
		return out, missing, fault.New(fault.WrongFamily, "%v", err)
	}
	return Cond{Entry: entry, MaskStrength: 1}, missing, nil
}

// inOrder returns the encoders, those that read the states of others last.
func (c *Clip) inOrder() (out []*encoder) {
	for i := range c.parts {
		out = append(out, &c.parts[i])
	}
	slices.SortStableFunc(out, func(a, b *encoder) int {
		return cmp.Compare(len(text.KindOf(a.kind).Of), len(text.KindOf(b.kind).Of))
	})
	return out
}

// runEncoder encodes one prompt, or the states of another encoder, on the device or on the devices of the plan's tensor
// group.
func (c *Clip) runEncoder(u Use, e *encoder, prompt tokenizer.Prompt, states *text.Encoding) (out text.Encoding,
	err error,
) {
	reader := models.TextTypes()[c.Type]
	as, _ := reader.Encoder(e.kind)
	if states != nil {
		as.Form.States = states.States
	}
	if c.Layer != 0 {
		as.Form.Layer = c.Layer
	}
	var seen [][]tokenizer.Token // the prompt with what is seen of pictures
	p, err := plan.Parse(u.Plan)
	if err != nil {
		return out, err
	}
	defer func() {
		switch {
		case err != nil || len(as.Form.Pictures) == 0:
		case c.leaveOut:
			out = out.WithoutPictures(seen[0], as.Form.Pictures)
		default:
			out = out.Tagged(seen[0], as.Form.Pictures)
		}
	}()
	err = u.do("text encoder "+e.name, func(l *parallel.Workspace) error {
		chunks, err := c.look(u, l, e, prompt.Chunks, &as.Form)
		if err != nil {
			return err
		}
		seen = chunks
		if ranks := l.RemoteTaskRanks(p); ranks > 1 {
			var done bool
			if out, done, err = c.encodeApart(u, l, p, ranks, e, chunks, as.Form); done || err != nil {
				return err
			}
		}
		ops, err := l.Loaders(p)
		if err != nil {
			return err
		}
		parts, err := cachedEncoder(u, l, ops, c, e)
		if err != nil {
			return err
		}
		if len(parts) == 1 {
			out, err = parts[0].Encode(envOf(l), chunks, as.Form)
			return err
		}
		return l.Shared("text encoder "+e.name, len(parts), func(s parallel.Share) error {
			env := text.Env{Ops: s.Ops, DType: l.DType, Check: s.Check, Sum: s.Sum, Bring: l.Bring(s.Ops)}
			same, err := parts[s.Rank].Encode(env, chunks, as.Form)
			if s.Rank == 0 {
				out = same
			}
			return err
		})
	})
	return out, err
}

// encodeApart encodes one prompt on up to ranks ranks in other processes, which read the file themselves. done is false
// if the encoder cannot be split or those processes cannot run it.
func (c *Clip) encodeApart(u Use, l *parallel.Workspace, p plan.Plan, ranks int, e *encoder,
	chunks [][]tokenizer.Token, form text.Form,
) (out text.Encoding, done bool, err error) {
	w := source.Weights{Loader: u.Store.loader, Model: source.Model{
		File: e.file, Adapters: source.ForPart(e.kind, c.Loras),
		Encoder: &source.Encoder{Kind: e.kind, Prefix: e.prefix, Config: e.config, DType: l.DType},
	}}
	m := request.Model{Key: w.Key(), Weights: w}
	ranks, err = read(e.file, "clip", func(file *weights.File) (int, error) {
		set := e.set(file, l.DType)
		wide := set.Unrounded() // as the loader reads it
		m.WeightBytes, m.WideBytes = wide.Bytes(), wide.WideBytes()
		return text.Parts(e.kind, set, e.config, ranks)
	})
	if err != nil || ranks < 2 {
		return out, false, err
	}
	question, err := source.Prompt(chunks, form)
	if err != nil {
		return out, false, err
	}
	answer, done, err := l.Task(p, ranks, m, question)
	if !done || err != nil {
		return out, done, err
	}
	out, err = source.Encoding(answer)
	return out, true, err
}

// tokenizer returns the vocabulary of an encoder, from its file or else from the first of vocabularyPlaces that has it.
func (s *Store) tokenizer(e *encoder) (*tokenizer.Tokenizer, error) {
	key := e.kind + " " + e.file.Key()
	if t, ok := s.vocabularies.Get(key); ok {
		return t, nil
	}
	var t *tokenizer.Tokenizer
	err := files.With(e.file, func(file *weights.File) (err error) {
		t, err = vocabularyInside(e, file)
		return err
	})
	if err == nil && t == nil {
		t, _, err = tokenizer.Find(fmt.Sprintf("the %s encoder %s", e.kind, e.name), s.vocabularyPlaces(e)...)
	}
	if err != nil {
		return nil, fault.Wrap(fault.TokenizerMissing, "clip", err)
	}
	s.vocabularies.Put(key, t, 1)
	return t, nil
}

// Vocabularies looks for the vocabulary of every encoder of a handle and returns an error for each that is missing or
// unreadable, naming all the places that were searched. No weights are loaded.
func (s *Store) Vocabularies(c *Clip) []error {
	var out []error
	for i := range c.parts {
		if text.KindOf(c.parts[i].kind).Of != nil {
			continue
		}
		if _, err := s.tokenizer(&c.parts[i]); err != nil {
			out = append(out, err)
		}
	}
	return out
}

// vocabularyInside reads a vocabulary embedded in the checkpoint: metadata "tokenizer.json" or "tokenizer", a tensor
// with a SentencePiece model, a tokenizer.json or Mistral's tekken.json, or the tokens and scores of a GGUF file. It
// returns nil if there is none.
func vocabularyInside(e *encoder, file *weights.File) (*tokenizer.Tokenizer, error) {
	for _, key := range []string{e.kind + ".tokenizer.json", "tokenizer.json", "tokenizer"} {
		if text, ok := file.Metadata()[key]; ok && json.Valid([]byte(text)) {
			return tokenizer.FromBytes("tokenizer.json", []byte(text))
		}
	}
	// the tensor is stored next to the network, or next to all encoders if only one of them has such a vocabulary
	encoderPrefix := strings.TrimSuffix(e.prefix, "transformer.")
	all := encoderPrefix[:strings.LastIndexByte(strings.TrimSuffix(encoderPrefix, "."), '.')+1]
	for _, at := range []string{e.prefix, encoderPrefix, all} {
		if stored, ok := file.Set().Get(at + "spiece_model"); ok {
			return tokenizer.FromBytes("spiece.model", stored.Elements(0, stored.Len()))
		}
		if stored, ok := file.Set().Get(at + "tokenizer_json"); ok {
			return tokenizer.FromBytes("tokenizer.json", stored.Elements(0, stored.Len()))
		}
		if stored, ok := file.Set().Get(at + "tekken_model"); ok {
			return tokenizer.FromTekken(stored.Elements(0, stored.Len()))
		}
	}
	return tokenizer.FromGGUF(file.Words())
}

// vocabularyPlaces lists where a vocabulary may be, in order of preference: in the tokenizers folder of every models
// folder under the encoder's own file name, there under the names of its kind, in the diffusers folder that the file is
// part of, in an installed ComfyUI.
func (s *Store) vocabularyPlaces(e *encoder) []string {
	var out []string
	kind := text.KindOf(e.kind)
	inTokenizers := func(names ...string) {
		for _, root := range s.roots.Models {
			for _, name := range names {
				at := filepath.Join(root, "tokenizers", name)
				out = append(out, at+".tokenizer.json", at)
			}
		}
	}
	inTokenizers(strings.TrimSuffix(filepath.Base(e.file.Path), filepath.Ext(e.file.Path)))
	inTokenizers(kind.Vocabularies...)
	folder := files.FolderOf(e.file.Path)
	if rest, ok := strings.CutPrefix(filepath.Base(folder), "text_encoder"); ok && !strings.HasPrefix(rest, "s") {
		out = append(out, filepath.Join(filepath.Dir(folder), "tokenizer"+rest))
	}
	if s.roots.ComfyUI != "" && kind.ComfyUI != "" {
		out = append(out, filepath.Join(s.roots.ComfyUI, "comfy", filepath.FromSlash(kind.ComfyUI)))
	}
	return out
}
