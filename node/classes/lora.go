package classes

import (
	"strings"

	"patchbay/models/lora"
	"patchbay/node/fault"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// loraClasses are the rows that add low-rank adapters to handles. Nothing is merged: handles with different adapters
// share the packed weights.
func loraClasses() []graph.Class {
	strength := func(name, tip string) graph.Input {
		return graph.Float(name, tip, 1, -100, 100, 0.01)
	}
	return []graph.Class{
		{
			Name: "LoraLoader", Display: "Load LoRA (Model and CLIP)", Module: "nodes", Category: "model/loaders",
			Aliases: "lora, load lora, apply lora, lora loader, lora model", Essential: "Image Generation",
			Heavy: graph.StageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model and to the text encoders. " +
				"Several can follow each other.",
			Inputs: []graph.Input{
				graph.Link("model", "MODEL", "the diffusion model that is adapted"),
				graph.Link("clip", "CLIP", "the text encoders that are adapted"),
				graph.File("lora_name", files.KindLora).With(),
				strength("strength_model", "how much of it the diffusion model gets; may be negative"),
				strength("strength_clip", "how much of it the text encoders get; may be negative"),
			},
			Outputs: graph.Slots("MODEL", "CLIP"), Change: modelChange(files.KindLora, "lora_name"),
			Run: func(c *graph.Call) ([]any, error) {
				m, clip, err := withLora(c, graph.Arg[*value.Model](c, "model"), graph.Arg[*value.Clip](c, "clip"),
					c.Float("strength_model"), c.Float("strength_clip"))
				return []any{m, clip}, err
			},
		},
		{
			Name: "LoraLoaderModelOnly", Display: "Load LoRA", Module: "nodes", Category: "model/loaders",
			Aliases: "lora, load lora, apply lora, lora loader, lora model", Essential: "Image Generation",
			Heavy:       graph.StageLoad,
			Description: "Adds the low-rank adapters of a LoRA file to the diffusion model.",
			Inputs: []graph.Input{
				graph.Bare("model", "MODEL"), graph.File("lora_name", files.KindLora),
				strength("strength_model", ""),
			},
			Outputs: graph.Slots("MODEL"), Change: modelChange(files.KindLora, "lora_name"),
			Run: func(c *graph.Call) ([]any, error) {
				m, _, err := withLora(c, graph.Arg[*value.Model](c, "model"), nil, c.Float("strength_model"), 0)
				return []any{m}, err
			},
		},
	}
}

// withLora returns copies of the handles with the adapters of the file that the input lora_name names. A strength of 0
// leaves a handle as it is, both 0 do not even open the file (ComfyUI nodes.py, LoraLoader). clip may be nil.
func withLora(c *graph.Call, m *value.Model, clip *value.Clip, onModel, onClip float64) (*value.Model,
	*value.Clip, error,
) {
	if onModel == 0 && onClip == 0 {
		return m, clip, nil
	}
	keys, err := value.LoraKeys(m, clip)
	if err != nil {
		return nil, nil, err
	}
	err = fromFile(c, files.KindLora, "lora_name", func(h files.Header) error {
		found, err := lora.Match(h.Weights.Set(), keys)
		if err != nil {
			return err
		}
		warnUnused(c, found.Unused, clip == nil)
		clip = clip.WithLora(h, onClip, found)
		m, err = m.WithLora(h, onModel, found)
		return err
	})
	return m, clip, err
}

// warnUnused tells of tensors that fit nothing. Those of text encoders are left out where the node adapts the model
// only.
func warnUnused(c *graph.Call, names []string, modelOnly bool) {
	var odd []string
	for _, n := range names {
		if !modelOnly || !strings.HasPrefix(n, "lora_te") && !strings.HasPrefix(n, "text_encoder") {
			odd = append(odd, n)
		}
	}
	if len(odd) > 0 {
		c.Warn("node %s: %d tensors of %s fit nothing here and are not used: %s", c.ID, len(odd),
			c.Str("lora_name"), fault.List(odd))
	}
}
