package value

import (
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/parallel"
)

// picturePad is the token in whose place a language model sees a picture.
const picturePad = 151655

// seeing is what prompts of a handle have besides words.
type seeing struct {
	template string // around the prompt, instead of that of its family
	pictures []text.Picture
}

// Seeing returns a handle whose prompts stand in another template and are about pictures, each of which takes the place
// of one <|image_pad|>. Handles whose encoder has no eyes are refused, also without a picture.
func (c *Clip) Seeing(template string, pictures []text.Picture) (*Clip, error) {
	for i := range c.parts {
		if text.KindOf(c.parts[i].kind).Unit > 0 {
			out := *c
			out.seeing = seeing{template, pictures}
			return &out, nil
		}
	}
	return nil, fault.At(fault.CodeWrongFamily, "clip", "clip: %s has no encoder that looks at pictures: load that of "+
		"Qwen-Image-Edit (Qwen2.5-VL) or Krea 2 (Qwen3-VL)", c.Name)
}

// Unit is the pixels that the sides of pictures are multiples of; of handles without eyes that of any.
func (c *Clip) Unit() int {
	unit := 1
	for i := range c.parts {
		unit = max(unit, text.KindOf(c.parts[i].kind).Unit)
	}
	return unit
}

// look replaces the places of pictures in a prompt by what the encoder sees in them, and tells form of their sizes.
func (c *Clip) look(u Use, l *parallel.Workspace, env text.Env, e *encoder, chunks [][]tokenizer.Token,
	form *text.Form,
) ([][]tokenizer.Token, error) {
	eyes, err := lent(u, "vision "+e.file.Checkpoint.Key()+" "+e.prefix, func() (eyes text.Eyes, err error) {
		err = e.file.With(func(file *weights.File) error {
			eyes, err = text.OpenEyes(l.Ops, file.Set().Prefix(e.prefix).For(l.DType), e.config)
			return err
		})
		return eyes, err
	})
	if err != nil {
		return nil, &fault.Failure{Code: fault.CodeBadCheckpoint, Message: err.Error(), Field: "clip", Cause: err}
	}
	out, left := make([][]tokenizer.Token, len(chunks)), c.pictures
	for i, chunk := range chunks {
		for _, t := range chunk {
			if t.Vector != nil || t.ID != picturePad || len(left) == 0 {
				out[i] = append(out[i], t)
				continue
			}
			rows, y, x, err := eyes.See(env, left[0])
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
