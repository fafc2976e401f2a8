package node

import (
	"strings"

	"patchbay/models/lora"
	"patchbay/models/weights"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/value"
)

// loraClasses are the rows that add low-rank adapters to handles. Nothing is merged: handles with different adapters share the packed weights.
func loraClasses() []Class {
	strength := func(name, tip string) Input {
		return number(name, "FLOAT", tip, "default", 1.0, "min", -100.0, "max", 100.0, "step", 0.01)
	}
	return []Class{
		{
			Name: "LoraLoader", Display: "Load LoRA", Module: "nodes", Category: "loaders", Heavy: stageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model and to the text encoders. Several can follow each other.",
			Inputs: []Input{
				linkIn("model", "MODEL", "the diffusion model that is adapted"), linkIn("clip", "CLIP", "the text encoders that are adapted"),
				fileIn("lora_name", files.KindLora).with(), strength("strength_model", "how much of it the diffusion model gets; may be negative"),
				strength("strength_clip", "how much of it the text encoders get; may be negative"),
			},
			Outputs: slots("MODEL", "CLIP"), Change: modelChange(files.KindLora, "lora_name"), Run: func(c *Call) ([]any, error) {
				m, clip, err := withLora(c, arg[*value.Model](c, "model"), arg[*value.Clip](c, "clip"), c.float("strength_model"), c.float("strength_clip"))
				return []any{m, clip}, err
			},
		},
		{
			Name: "LoraLoaderModelOnly", Module: "nodes", Category: "loaders", Heavy: stageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model.",
			Inputs:      []Input{bareIn("model", "MODEL"), fileIn("lora_name", files.KindLora), strength("strength_model", "")},
			Outputs:     slots("MODEL"), Change: modelChange(files.KindLora, "lora_name"), Run: func(c *Call) ([]any, error) {
				m, _, err := withLora(c, arg[*value.Model](c, "model"), nil, c.float("strength_model"), 0)
				return []any{m}, err
			},
		},
	}
}

// withLora returns copies of the handles with the adapters of the file that the input lora_name names. A strength of 0 leaves a handle as it is, both 0 do not
// even open the file (ComfyUI nodes.py, LoraLoader). clip may be nil.
func withLora(c *Call, m *value.Model, clip *value.Clip, onModel, onClip float64) (*value.Model, *value.Clip, error) {
	if onModel == 0 && onClip == 0 {
		return m, clip, nil
	}
	keys, err := value.LoraKeys(m, clip)
	if err != nil {
		return nil, nil, err
	}
	err = fromFile(c, files.KindLora, "lora_name", func(f files.Checkpoint, _ *weights.File, set *weights.Set) error {
		found, err := lora.Match(set, keys)
		if err != nil {
			return err
		}
		warnUnused(c, found.Unused, clip == nil)
		m, clip = m.WithLora(c.str("lora_name"), f, onModel, found), clip.WithLora(c.str("lora_name"), f, onClip, found)
		return nil
	})
	return m, clip, err
}

// warnUnused tells of tensors that fit nothing. Those of text encoders are left out where the node adapts the model only.
func warnUnused(c *Call, names []string, modelOnly bool) {
	var odd []string
	for _, n := range names {
		if !modelOnly || !strings.HasPrefix(n, "lora_te") && !strings.HasPrefix(n, "text_encoder") {
			odd = append(odd, n)
		}
	}
	if len(odd) > 0 {
		c.warn("node %s: %d tensors of %s fit nothing here and are not used: %s", c.ID, len(odd), c.str("lora_name"), fault.List(odd))
	}
}
