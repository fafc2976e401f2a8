package classes

import (
	"cmp"
	"regexp"
	"strings"

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

// What LTX-2's language model is told before it reads a short prompt, with and without the first picture of the video.
const (
	describeVideo = "You write prompts for a model that makes videos with sound. Turn the user's short prompt into one " +
		"paragraph of plain English that describes the video from its first to its last moment.\n" +
		"Keep all that the user asks for. Where the prompt is vague, add what can be seen: the place, its light, materials " +
		"and colours, clothes and faces; but add no persons. Say who moves and how, in the present tense and in the order " +
		"in which it happens. Say what is heard, too, where it happens: voices, steps, wind, music. If the user wants " +
		"somebody to speak, quote the words and say how the voice sounds; otherwise nobody speaks. Move the camera only if " +
		"the user says so. Name the style first if it is known. Stay calm and concrete: no feelings, smells or tastes, no " +
		"cuts, no times.\n" +
		"Answer with the paragraph alone: no title, no list, no remark. If you cannot, repeat the user's prompt."
	describeOnward = describeVideo + "\nThe picture is the first one of the video. Begin with it as it is, do not " +
		"describe it again, and say what changes from there on."
)

var thoughts = regexp.MustCompile(`(?s)<think>.*?(?:</think>|$)`)

// longerPrompt has a Gemma write a long prompt from a short one, which is the answer if there is no other.
func longerPrompt(c *graph.Call) ([]any, error) {
	words, system, picture := c.Str("prompt"), describeVideo, ""
	if c.Given("image") {
		system, picture = describeOnward, "<image_soft_token>\n\n"
	}
	out, err := written(c, "<start_of_turn>system\n"+system+"<end_of_turn>\n<start_of_turn>user\n"+picture+"Prompt: "+
		words+"<end_of_turn>\n<start_of_turn>model\n")
	if err != nil {
		return nil, err
	}
	return []any{answer(out, words)}, nil
}

// answer returns what was written without what was thought before, and words if that is nothing.
func answer(written, words string) string {
	return cmp.Or(strings.TrimSpace(thoughts.ReplaceAllString(written, "")), words)
}
