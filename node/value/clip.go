package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/parallel"
)

// Clip is a CLIP handle: the text encoders of a family, described but not loaded.
type Clip struct {
	Name             string // the files, joined by " + "
	Type             string // the family that reads the result: "flux", "sd3" ...
	parts            []encoder
	TokenizerOptions map[string]int // T5TokenizerOptions
	loras            []loraUse      // adapters, in the order in which they were added
	Layer            int            // CLIPSetLastLayer: -1 the last, -2 the last but one; 0: what the type reads
}

// encoder is one text encoder in one file.
type encoder struct {
	kind   string // "clip_l", "clip_g", "t5", "mt5", "bert" (package text)
	prefix string
	name   string // file name as the workflow says it
	file   *files.Opener
	config []byte // the file's metadata config; nil for encoders inside a full checkpoint
}

// Add takes the encoders of one file.
func (c *Clip) Add(name string, f files.Checkpoint, open *weights.File, set *weights.Set) error {
	found := text.Find(set)
	if len(found) == 0 {
		family, instead, _ := weights.Looks(set)
		if instead == "" {
			instead = "a diffusion model (" + family + ")"
		}
		return fault.New(fault.CodeWrongFamily, "%s holds no text encoder: it looks like %s", name, instead)
	}
	if c.Name != "" {
		c.Name += " + "
	}
	c.Name += name
	for _, p := range found {
		c.parts = append(c.parts, encoder{
			kind: p.Kind, prefix: p.Prefix, name: name, file: &files.Opener{Checkpoint: f},
			config: files.Config(open, p.Kind),
		})
	}
	return nil
}

// Check makes sure that the encoders that the type needs are there, once each.
func (c *Clip) Check(class string) error {
	want := ClipTypes()[c.Type]
	var have []string
	for _, p := range c.parts {
		if slices.Contains(have, p.kind) {
			return fault.At(fault.CodeWrongFamily, "type", "%s: two files are %s encoders (%s)", class, p.kind, c.Name)
		}
		have = append(have, p.kind)
	}
	for _, k := range want.must {
		if !slices.Contains(have, k) {
			return fault.At(fault.CodeWrongFamily, "type", "%s: type %s needs the encoders %s, the files hold %s", class, c.Type,
				strings.Join(want.must, " and "), strings.Join(have, " and "))
		}
	}
	if len(want.must) == 0 && !slices.ContainsFunc(have, func(k string) bool { return slices.Contains(want.may, k) }) {
		return fault.At(fault.CodeWrongFamily, "type", "%s: type %s reads %s, the files hold %s", class, c.Type,
			strings.Join(want.may, ", "), strings.Join(have, " and "))
	}
	return nil
}

// OpenCheckpointCLIP takes the encoders inside a full checkpoint.
func OpenCheckpointCLIP(name string, f files.Checkpoint, open *weights.File, set *weights.Set,
	family string,
) (*Clip, error) {
	c := &Clip{Type: family}
	if err := c.Add(name, f, open, set); err != nil {
		return nil, err
	}
	for i, p := range c.parts { // "config" of a full checkpoint is the diffusion model's
		if _, own := open.Metadata()[p.kind+".config"]; !own {
			c.parts[i].config = nil
		}
	}
	return c, c.Check("CheckpointLoaderSimple")
}

// layout is how a prompt is laid out for an encoder of this clip.
func (c *Clip) layout(e *encoder) (tokenizer.Layout, error) {
	var l tokenizer.Layout
	switch e.kind {
	case "clip_l":
		l = tokenizer.CLIPL()
	case "clip_g":
		l = tokenizer.CLIPG()
	case "bert":
		l = tokenizer.HunyuanBERT()
	case "mt5":
		l = tokenizer.HunyuanMT5()
	default:
		switch c.Type {
		case "flux":
			l = tokenizer.T5Flux()
		case "sd3":
			l = tokenizer.T5SD3()
		default:
			l = tokenizer.T5PixArt()
		}
	}
	if len(e.config) > 0 {
		var err error
		if l, err = l.WithConfig(e.config); err != nil {
			return l, fault.New(fault.CodeBadCheckpoint, "%s: %v", e.name, err)
		}
	}
	return l.WithOptions(c.TokenizerOptions), nil
}

// promptKey is how CLIPTextEncodeFlux and its kin call the prompt of an encoder.
func (e *encoder) promptKey() string {
	if e.kind == "t5" {
		return "t5xxl"
	}
	return e.kind
}

// prompts turns the texts into tokens, by kind of encoder, and names the embeddings that are not there. SD3's two CLIPs
// get the same number of chunks: the shorter one is followed by empty prompts.
func (c *Clip) prompts(s *Store, prompt func(key string) (words string, wanted bool)) (out map[string]tokenizer.Prompt,
	missing []string, err error,
) {
	out = map[string]tokenizer.Prompt{}
	empty := map[string]tokenizer.Prompt{}
	for i := range c.parts {
		e := &c.parts[i]
		words, wanted := prompt(e.promptKey())
		if !wanted {
			continue
		}
		l, err := c.layout(e)
		if err != nil {
			return nil, missing, err
		}
		vocab, err := s.tokenizer(e)
		if err != nil {
			return nil, missing, err
		}
		p, err := l.Prompt(vocab, words, nil)
		if err != nil {
			return nil, missing, fault.At(fault.CodeBadInput, "text", "text: %v", err)
		}
		missing = append(missing, p.Missing...)
		if out[e.kind] = p; c.Type == "sd3" && e.kind != "t5" {
			if empty[e.kind], err = l.Prompt(vocab, "", nil); err != nil {
				return nil, missing, err
			}
		}
	}
	chunks := max(len(out["clip_l"].Chunks), len(out["clip_g"].Chunks))
	for kind, e := range empty {
		p := out[kind]
		for len(p.Chunks) < chunks {
			p.Chunks = append(p.Chunks, e.Chunks...)
		}
		out[kind] = p
	}
	return out, missing, nil
}

// Encode runs prompts through the encoders; prompt gives the text for an encoder by its key, and leaves out those that
// are not wanted. missing names the embeddings that are not there, also where an error ends the work.
func (c *Clip) Encode(u Use, prompt func(key string) (words string, wanted bool)) (out Cond,
	missing []string, err error,
) {
	prompts, missing, err := c.prompts(u.Store, prompt)
	if err != nil {
		return out, missing, err
	}
	done := map[string]*text.Encoding{}
	for i := range c.parts {
		e := &c.parts[i]
		p, wanted := prompts[e.kind]
		if !wanted {
			continue
		}
		enc, err := c.runEncoder(u, e, p)
		if errors.Is(err, text.ErrTokenizer) {
			err = &fault.Failure{Code: fault.CodeTokenizer, Message: e.name + ": " + err.Error(), Field: "clip", Cause: err}
		}
		if err != nil {
			return out, missing, err
		}
		done[e.kind] = &enc
	}
	entry, err := c.join(done)
	if err != nil {
		return out, missing, err
	}
	return condOf(entry), missing, nil
}

// condOf starts a conditioning from what a family reads.
func condOf(e dit.Entry) Cond {
	return Cond{
		Context: e.Context, Pooled: e.Pooled, ContextLen: e.ContextLen, Context2: e.Context2,
		Context2Len: e.Context2Len, Size: e.Size, MaskStrength: 1,
	}
}

// join makes of the encodings what the family reads.
func (c *Clip) join(done map[string]*text.Encoding) (dit.Entry, error) {
	switch c.Type {
	case "flux":
		return text.FLUX(*done["clip_l"], *done["t5"]), nil
	case "sd3":
		e, err := text.SD3(done["clip_l"], done["clip_g"], done["t5"])
		if err != nil {
			return e, fault.New(fault.CodeWrongFamily, "%v", err)
		}
		return e, nil
	case "pixart", "chroma":
		return text.PixArt(*done["t5"]), nil
	case "hunyuandit":
		return text.HunyuanDiT(*done["bert"], *done["mt5"]), nil
	}
	return dit.Entry{Context: done["clip_l"].Context, Pooled: done["clip_l"].Pooled}, nil
}

// runEncoder encodes one prompt on the device.
func (c *Clip) runEncoder(u Use, e *encoder, p tokenizer.Prompt) (out text.Encoding, err error) {
	err = u.do("text encoder "+e.name, func(l *parallel.Local) error {
		env := text.Env{Ops: l.Ops, Check: l.Check, Take: l.Arena}
		switch e.kind {
		case "clip_l", "clip_g":
			net, err := c.clipNet(u, l, e)
			if err != nil {
				return err
			}
			out, err = net.Encode(env, p.Chunks, c.form(e))
			return err
		case "bert":
			net, err := c.bertNet(u, l, e)
			if err != nil {
				return err
			}
			out, err = net.Encode(env, p.Chunks, c.Layer)
			return err
		}
		net, err := c.t5Net(u, l, e)
		if err != nil {
			return err
		}
		out, err = net.Encode(env, p.Chunks, text.T5Form{
			Layer: c.Layer, Masked: e.kind == "mt5",
			PadReference: c.Type == "pixart" || c.Type == "chroma",
		})
		return err
	})
	return out, err
}

// form is which states of CLIP the family reads.
func (c *Clip) form(e *encoder) text.CLIPForm {
	f := text.CLIPFormFLUX()
	switch {
	case e.kind == "clip_g":
		f = text.CLIPFormSD3G()
	case c.Type == "sd3":
		f = text.CLIPFormSD3L()
	case c.Type == "stable_diffusion":
		f = text.CLIPForm{Norm: true, Project: true}
	}
	if c.Layer != 0 {
		f.Layer = c.Layer
	}
	return f
}

// loadEncoder opens the file of an encoder and loads it.
func loadEncoder[T any](l *parallel.Local, e *encoder,
	open func(ops engine.Ops, set *weights.Set, config []byte) (T, error),
) (net T, err error) {
	err = e.file.With(func(file *weights.File) error {
		net, err = open(l.Ops, file.Set().Prefix(e.prefix), e.config)
		return err
	})
	if err != nil {
		return net, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Field: "clip", Cause: err}
	}
	return net, nil
}

// tokenizer finds the vocabulary of an encoder: in its file, else in one of the places of vocabularyPlaces.
func (s *Store) tokenizer(e *encoder) (*tokenizer.Tokenizer, error) {
	key := e.kind + " " + e.file.Checkpoint.Key()
	if t, ok := s.vocabularies.Get(key); ok {
		return t, nil
	}
	var t *tokenizer.Tokenizer
	err := e.file.With(func(file *weights.File) (err error) {
		t, err = vocabularyInside(e, file)
		return err
	})
	if err == nil && t == nil {
		t, _, err = tokenizer.Find(fmt.Sprintf("the %s encoder %s", e.kind, e.name), s.vocabularyPlaces(e)...)
	}
	if err != nil {
		return nil, &fault.Failure{Code: fault.CodeTokenizer, Message: err.Error(), Field: "clip", Cause: err}
	}
	s.vocabularies.Put(key, t, 1)
	return t, nil
}

// vocabularyInside reads a vocabulary that the checkpoint carries: metadata "tokenizer.json" or "tokenizer", a tensor
// with a SentencePiece model, or the pieces and scores of a GGUF file.
func vocabularyInside(e *encoder, file *weights.File) (*tokenizer.Tokenizer, error) {
	for _, key := range []string{e.kind + ".tokenizer.json", "tokenizer.json", "tokenizer"} {
		if text, ok := file.Metadata()[key]; ok && json.Valid([]byte(text)) {
			return tokenizer.FromBytes("tokenizer.json", []byte(text))
		}
	}
	if stored, ok := file.Set().Get(e.prefix + "spiece_model"); ok {
		return tokenizer.FromBytes("spiece.model", slices.Clone(stored.Data))
	}
	return tokenizer.FromGGUF(file.Words())
}

// vocabularyPlaces lists where a vocabulary may be, best first: beside the models under the encoder's own name, in every
// folder, before that of its kind, in the diffusers folder that the file is part of, in an installed ComfyUI.
func (s *Store) vocabularyPlaces(e *encoder) []string {
	var out []string
	stem := strings.TrimSuffix(filepath.Base(e.file.Checkpoint.Path), filepath.Ext(e.file.Checkpoint.Path))
	kinds := map[string][]string{
		"clip_l": {"clip_l", "clip"}, "clip_g": {"clip_g", "clip_l", "clip"}, "t5": {"t5xxl", "t5"},
		"mt5": {"mt5"}, "bert": {"bert"},
	}[e.kind]
	for _, root := range s.roots.Models {
		dir := filepath.Join(root, "tokenizers")
		out = append(out, filepath.Join(dir, stem+".tokenizer.json"), filepath.Join(dir, stem))
	}
	for _, root := range s.roots.Models {
		dir := filepath.Join(root, "tokenizers")
		for _, k := range kinds {
			out = append(out, filepath.Join(dir, k+".tokenizer.json"), filepath.Join(dir, k))
		}
	}
	folder := files.FolderOf(e.file.Checkpoint.Path)
	if base := filepath.Base(folder); strings.HasPrefix(base, "text_encoder") &&
		!strings.HasPrefix(base, "text_encoders") {
		out = append(out, filepath.Join(filepath.Dir(folder), "tokenizer"+strings.TrimPrefix(base, "text_encoder")))
	}
	if s.roots.ComfyUI != "" {
		comfy := filepath.Join(s.roots.ComfyUI, "comfy")
		if p, ok := map[string]string{
			"clip_l": "sd1_tokenizer", "clip_g": "sd1_tokenizer",
			"t5": "text_encoders/t5_tokenizer", "bert": "text_encoders/hydit_clip_tokenizer",
		}[e.kind]; ok {
			out = append(out, filepath.Join(comfy, filepath.FromSlash(p)))
		}
	}
	return out
}

// ClipTypes are the types that can be encoded, with the encoders that must and may be there.
func ClipTypes() map[string]struct{ must, may []string } {
	return map[string]struct{ must, may []string }{
		"flux":             {must: []string{"clip_l", "t5"}},
		"sd3":              {may: []string{"clip_l", "clip_g", "t5"}},
		"pixart":           {must: []string{"t5"}},
		"chroma":           {must: []string{"t5"}},
		"stable_diffusion": {must: []string{"clip_l"}},
		"hunyuandit":       {must: []string{"bert", "mt5"}},
	}
}
