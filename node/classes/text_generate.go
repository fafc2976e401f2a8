package classes

import (
	"patchbay/models/text"
	"patchbay/node/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/value"
)

// generateClasses are the rows that have a language model write.
func generateClasses() []graph.Class {
	part := func(name, tip string, preset, lo, hi float64) graph.Input {
		return graph.Float(name, tip, preset, lo, hi, 0.01)
	}
	return []graph.Class{{
		Name: "TextGenerate", Display: "Generate Text", Module: "comfy_extras.nodes_textgen", Category: "text",
		Aliases: "LLM, gemma", NewStyle: true, Heavy: graph.StageText,
		Description: "Has the language model of an encoder write a text; Krea 2's can.",
		Inputs: []graph.Input{
			graph.Link("clip", "CLIP", ""),
			graph.Number("prompt", "STRING", "", "default", "", "multiline", true, "dynamicPrompts", true),
			graph.Int("max_length", "tokens at most", 512, 1, 32768, 0),
			graph.Branch("sampling_mode", "", graph.Alternative{Key: "on", Inputs: []graph.Input{
				graph.Float("temperature", "", 0.7, 0.01, 2, 1e-6),
				graph.Int("top_k", "drawn from so many of the likeliest; 0: all", 64, 0, 1000, 0),
				part("top_p", "", 0.95, 0, 1), part("min_p", "", 0.05, 0, 1),
				part("repetition_penalty", "", 1.05, 0, 5),
				graph.Number("seed", "INT", "", "default", int64(0), "min", int64(0), "max", uint64(1<<64-1)),
				part("presence_penalty", "", 0, 0, 5).AsOptional(),
			}}, graph.Alternative{Key: "off"}).With("display_name", "Sampling Mode"),
			graph.Link("image", "IMAGE", "").AsOptional(), graph.Link("video", "IMAGE", "not supported").AsOptional(),
			graph.Link("audio", "AUDIO", "not supported").AsOptional(),
			graph.Bool("thinking", "lets the model think first", false).AsOptional(),
			graph.Bool("use_default_template", "", true).AsOptional().AsAdvanced(),
		},
		Outputs: []graph.Slot{{Name: "generated_text", Type: "STRING"}}, Run: generateText,
	}}
}

func generateText(c *graph.Call) ([]any, error) {
	clip, most := graph.Arg[*value.Clip](c, "clip"), c.Whole("max_length")
	for _, name := range []string{"video", "audio"} {
		if c.Given(name) {
			return nil, fault.Bad(name, "not supported, only words and image")
		}
	}
	d := text.Draw{Most: most, Greedy: c.Chosen("sampling_mode") == "off"}
	if !d.Greedy {
		in := func(name string) float64 { return c.Decimal("sampling_mode." + name) }
		d.TopK, d.Temperature, d.TopP, d.MinP = c.Whole("sampling_mode.top_k"), in("temperature"), in("top_p"), in("min_p")
		d.Repetition, d.Seed = in("repetition_penalty"), c.Seed("sampling_mode.seed")
		if c.Given("sampling_mode.presence_penalty") {
			d.Presence = in("presence_penalty")
		}
	}
	d.Drawn = func(n int) error {
		c.Emit(graph.Event{Type: "progress", Data: map[string]any{"value": n, "max": most, "node": c.ID}})
		return c.Context.Err()
	}
	flag := func(name string, preset bool) bool {
		if c.Given(name) {
			return c.Flag(name)
		}
		return preset
	}
	a := value.Ask{
		Words: c.Str("prompt"), Bare: !flag("use_default_template", true), Thinking: flag("thinking", false),
	}
	if c.Given("image") {
		im := graph.Arg[*picture.Image](c, "image").First(3)
		y, x := visionSides(im.Y, im.X, clip.Unit())
		sized, err := resizedImage(im, x, y, "bilinear", "disabled", "image")
		if err != nil {
			return nil, err
		}
		for b, n := 0, y*x*3; b < sized.B; b++ {
			a.Pictures = append(a.Pictures, text.Picture{Y: y, X: x, Data: sized.Data[b*n : (b+1)*n]})
		}
	}
	out, err := clip.Write(c.Use(), a, d)
	if err != nil {
		return nil, err
	}
	return []any{out}, nil
}
