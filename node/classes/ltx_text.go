package classes

import (
	"cmp"
	"regexp"
	"strings"

	"patchbay/models/text"
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

// What LTX-2's language model, Gemma 3, is told before it reads a short prompt, with and without the first picture of
// the video.
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

// What Gemma 4, which LTX-2.5 has, is told: its network knows long captions.
const describeShots = "You write captions for a model that makes videos with sound. Turn the user's short request " +
	"into one paragraph of 150 to 220 words of plain English that describes what is seen and heard from the first to " +
	"the last moment of the video.\n" +
	"Keep all that the user asks for and contradict none of it. Begin at once with what is seen. Describe the place, " +
	"its light, materials and colours, where things are, and of persons what can be seen: age, hair, build, clothes, " +
	"posture. Name no feelings or intentions, only what shows them. Say in the sentences, not as labels, how wide each " +
	"shot is, from which side the camera looks and how it moves, or that it stays still. Say what is heard where it " +
	"happens: speech in quotes and in its own language, the sound of the voice, music, steps, wind. Tell all in the " +
	"order in which it happens, in the present tense, and keep every action that is asked for in motion.\n" +
	"Let it look like a well lit film with rich colours and fine detail, without new things or actions.\n" +
	"Answer with the paragraph alone: no title, no list, no remark."

var thoughts = regexp.MustCompile(`(?s)<think>.*?(?:</think>|$)`)

// longerPrompt has a language model write a long prompt from a short one, which is the answer if there is no other.
func longerPrompt(c *graph.Call) ([]any, error) {
	words, system, picture := c.Str("prompt"), describeVideo, ""
	if c.Given("image") {
		system, picture = describeOnward, "<image_soft_token>\n\n"
	}
	chat := graph.Arg[*value.Clip](c, "clip").Writer()
	if chat.Prompt == "gemma4" {
		system = describeShots
	}
	told := text.KindOf("gemma3_12b").Chat.Told
	if chat.Chat != nil && chat.Chat.Told != nil {
		told = chat.Chat.Told
	}
	out, err := written(c, told(system, picture+"Prompt: "+words, c.Given("thinking") && c.Flag("thinking")))
	if err != nil {
		return nil, err
	}
	return []any{answer(out, words)}, nil
}

// answer returns what was written without what was thought before, and words if that is nothing.
func answer(written, words string) string {
	return cmp.Or(strings.TrimSpace(thoughts.ReplaceAllString(written, "")), words)
}
