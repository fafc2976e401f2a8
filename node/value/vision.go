package value

import (
	"maps"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/parallel"
)

// picturePad is the placeholder token that a picture's states replace in a language model's prompt, and its ID in the
// vocabulary of Qwen2 and Qwen3.
const (
	picturePad   = "<|image_pad|>"
	picturePadID = 151655
)

// seeing is what the prompts of a handle contain besides words.
type seeing struct {
	template string   // wraps the prompt, instead of the family's template
	before   []string // texts before the prompt, each tokenized by itself; nil: the prompt is one text
	pictures []text.Picture
	leaveOut bool // the states of the pictures' tokens are left out (text.Encoding.WithoutPictures)
}

// Seeing returns a handle whose prompts use another template and refer to pictures, each of which replaces one
// <|image_pad|>. It returns an error if no encoder of the handle can read pictures, even if there are none.
func (c *Clip) Seeing(template string, pictures []text.Picture) (*Clip, error) {
	return c.with(seeing{template: template, pictures: pictures})
}

// After returns a handle whose prompts follow other texts, each tokenized by itself, which refer to pictures like those
// of Seeing.
func (c *Clip) After(texts []string, pictures []text.Picture) (*Clip, error) {
	return c.with(seeing{before: texts, pictures: pictures})
}

func (c *Clip) with(s seeing) (*Clip, error) {
	for i := range c.parts {
		if text.KindOf(c.parts[i].kind).Unit > 0 {
			out := *c
			out.seeing = s
			return &out, nil
		}
	}
	return nil, fault.Family("clip", "%s has no encoder that looks at pictures: load that of Qwen-Image-Edit "+
		"(Qwen2.5-VL), Qwen-Image-2.1, Krea 2 or MiniMax-H3 (Qwen3-VL)", c.Name)
}

// LeavingOut returns a handle without the states of the pictures in its prompts.
func (c *Clip) LeavingOut() *Clip {
	out := *c
	out.leaveOut = true
	return &out
}

// Template returns what wraps the prompts of a handle: that of its first encoder, which refers to no pictures; empty
// for an empty handle.
func (c *Clip) Template() string {
	if c.Empty() {
		return ""
	}
	reader := models.TextTypes()[c.Type]
	as, _ := reader.Encoder(c.parts[0].kind)
	return as.Layout.Template
}

// Unit returns the number of pixels that picture sides must be multiples of, 1 if no encoder reads pictures.
func (c *Clip) Unit() int {
	unit := 1
	for i := range c.parts {
		unit = max(unit, text.KindOf(c.parts[i].kind).Unit)
	}
	return unit
}

// look replaces the picture placeholders of a prompt by the encoder's states for the pictures and adds their sizes to
// form.
func (c *Clip) look(u Use, l *parallel.Workspace, e *encoder, chunks [][]tokenizer.Token, form *text.Form) (
	[][]tokenizer.Token, error,
) {
	if len(c.pictures) == 0 {
		return chunks, nil
	}
	k := keeping{key: "vision " + e.key(), file: e.file, field: "clip"}
	eyes, err := brought(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File, room int64) (text.VisionTower, error) {
		return text.OpenVisionTower(ops, e.set(file, l.DType), e.config, room)
	})
	if err != nil {
		return nil, err
	}
	defer l.Release() // before the language model wants room
	vocab, err := u.Store.tokenizer(e)
	if err != nil {
		return nil, err
	}
	pad, ok := vocab.ID(picturePad)
	if !ok {
		pad = picturePadID
	}
	out, left := make([][]tokenizer.Token, len(chunks)), c.pictures
	for i, chunk := range chunks {
		for _, t := range chunk {
			if t.Vector != nil || t.ID != pad || len(left) == 0 {
				out[i] = append(out[i], t)
				continue
			}
			rows, y, x, err := eyes.See(envOf(l), left[0])
			if err != nil {
				return nil, err
			}
			for _, row := range rows {
				out[i] = append(out[i], tokenizer.Token{Vector: row, Weight: 1})
			}
			form.Pictures, left = append(form.Pictures, [2]int{y, x}), left[1:]
		}
	}
	return out, nil
}

// Ask is a request to a language model to write a text.
type Ask struct {
	Words    string
	System   string // what it is told before; empty: nothing. It is left out if Words are the whole prompt
	Bare     bool   // Words are the whole prompt: no template is put around them
	Thinking bool
	Pictures []text.Picture
}

// prompt returns the whole text for a model that is asked like that; base is the family's template, for prompts without
// pictures.
func (a Ask) prompt(base string, as *text.Chat) string {
	switch {
	case a.Bare && !as.Always || strings.HasPrefix(a.Words, as.Turn):
		return a.Words
	case len(a.Pictures) > 0:
		base = strings.Replace(as.Pictures, "[]", strings.Repeat(text.PictureInText, len(a.Pictures)), 1)
	case as.Template != "":
		base = as.Template
	}
	out := strings.Replace(base, "{}", a.Words, 1)
	if a.System != "" && !a.Bare {
		out = strings.Replace(as.System, "[]", a.System, 1) + out
	}
	if !a.Thinking {
		return out + as.Quiet
	}
	return as.Thinking + out
}

// Writer returns the kind of the encoder that writes texts, the zero Kind if no encoder of the handle does.
func (c *Clip) Writer() text.Kind {
	if e := c.writer(); e != nil {
		return text.KindOf(e.kind)
	}
	return text.Kind{}
}

func (c *Clip) writer() (e *encoder) {
	for i := range c.parts {
		if text.KindOf(c.parts[i].kind).Chat != nil {
			e = &c.parts[i]
		}
	}
	return e
}

// Write lets the encoder of a handle generate a text. It returns an error if no encoder of the handle can.
func (c *Clip) Write(u Use, a Ask, d text.Sampling) (string, error) {
	e := c.writer()
	if e == nil {
		return "", fault.Family("clip", "%s has no encoder that writes texts: load Qwen3.5, or that of Krea 2 (Qwen3-VL-4B) "+
			"or LTX-2 (Gemma 3 12B, Gemma 4)", c.Name)
	}
	kind := text.KindOf(e.kind)
	if a.System != "" && kind.Chat.System == "" {
		return "", fault.Bad("system_prompt", "%s has no place for it in its template: leave it unconnected, or load "+
			"Qwen3.5", e.name)
	}
	if len(a.Pictures) > 0 && kind.Unit == 0 {
		return "", fault.Bad("image", "%s writes about words alone, not about pictures: leave image unconnected", e.name)
	}
	as, _ := c.reads(e)
	words := a.prompt(as.Layout.Template, kind.Chat)
	asked := *c
	asked.seeing = seeing{template: "{}", pictures: a.Pictures}
	prompts, _, err := asked.prompts(u.Store, func(string) (string, bool) { return words, true })
	if err != nil {
		return "", err
	}
	vocab, err := u.Store.tokenizer(e)
	if err != nil {
		return "", err
	}
	d.Stop = append(d.Stop, kind.Chat.StopIDs...)
	for _, stop := range kind.Chat.Stop {
		id, ok := as.Layout.Marks[stop]
		if !ok {
			id, ok = vocab.ID(stop)
		}
		if ok {
			d.Stop = append(d.Stop, id)
		}
	}
	chunks := prompts[e.kind].Chunks
	// with a projection, ComfyUI's model attends to the pads in front here
	if len(chunks) == 1 && len(chunks[0]) < as.Form.Behind && len(c.parts) > 1 {
		pads := slices.Repeat([]tokenizer.Token{{ID: as.Layout.Pad, Weight: 1}}, as.Form.Behind-len(chunks[0]))
		chunks = [][]tokenizer.Token{append(pads, chunks[0]...)}
	}
	var ids []int
	err = u.do("text by "+e.name, func(l *parallel.Workspace) error {
		ids, err = asked.write(u, l, e, chunks, d)
		return err
	})
	marks := slices.Collect(maps.Values(as.Layout.Marks))
	out := vocab.Decode(slices.DeleteFunc(ids, func(id int) bool { return slices.Contains(marks, id) }))
	if kind.Chat.Clean != nil {
		out = kind.Chat.Clean(out)
	}
	return out, err
}

// write runs the language model on the device.
func (c *Clip) write(u Use, l *parallel.Workspace, e *encoder, chunks [][]tokenizer.Token, d text.Sampling,
) ([]int, error) {
	form := text.Form{}
	chunks, err := c.look(u, l, e, chunks, &form)
	if err != nil {
		return nil, err
	}
	k := keeping{key: "head " + e.key(), file: e.file, field: "clip"}
	head, err := cached(u, l, l.Ops, k, func(ops engine.Ops, file *weights.File) (*text.Head, error) {
		return text.OpenHead(ops, e.set(file, l.DType))
	})
	if err != nil {
		return nil, err
	}
	parts, err := cachedEncoder(u, l, []engine.Ops{l.Ops}, c, e) // on a single rank, in what the head leaves
	if err != nil {
		return nil, err
	}
	lm, ok := parts[0].(*text.LM)
	if !ok || len(chunks) != 1 {
		return nil, fault.New(fault.Internal, "%s is no language model, or its prompt is in %d chunks", e.name,
			len(chunks))
	}
	return lm.Generate(envOf(l), head, chunks[0], form, d)
}
