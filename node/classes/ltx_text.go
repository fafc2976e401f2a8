package classes

import (
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/value"
)

// ltxTextLoader returns the class that opens LTX-2's text encoder: a language model, and the projection of its states,
// which checkpoints of the network have beside it.
func ltxTextLoader() graph.Class {
	const model, checkpoint = "text_encoder", "ckpt_name"
	row := clipLoader(graph.Class{
		Name: "LTXAVTextEncoderLoader", Display: "Load LTXV Audio Text Encoder", Module: "comfy_extras.nodes_lt_audio",
		Description: "Loads Gemma 3 12B, and from a checkpoint of LTX-2 what projects its states.",
		Inputs: []graph.Input{
			graph.File(checkpoint, files.KindCheckpoint), graph.BareCombo("device", "default", "cpu").AsAdvanced(),
		},
	}, "ltxv", model)
	row.Change = func(c *graph.Call) (string, error) {
		first, err := modelChange(files.KindText, model)(c)
		if err != nil {
			return "", err
		}
		second, err := modelChange(files.KindCheckpoint, checkpoint)(c)
		return first + second, err
	}
	row.Run = func(c *graph.Call) ([]any, error) {
		clip := &value.Clip{Type: "ltxv"}
		if err := fromFile(c, files.KindText, model, clip.Add); err != nil {
			return nil, err
		}
		if err := fromFile(c, files.KindCheckpoint, checkpoint, clip.Add); err != nil {
			return nil, err
		}
		warnSpare(c, clip.Name, clip)
		return []any{clip}, clip.Check(c.Class.Name, checkpoint)
	}
	return row
}
