package message

import (
	"strings"
	"unicode/utf8"

	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// aboutBytes bounds, in bytes, each text that describes a workflow in lists.
const aboutBytes = 120

// About returns what lists of jobs show of a workflow: the start of the prompt that leads to the first positive input,
// or else of the first text, and the first model file. Each has at most aboutBytes bytes.
func About(w *graph.Workflow) (about, model string) {
	literal := func(id string, names ...string) string {
		for _, name := range names {
			if v, _ := w.Input(id, name); v != nil {
				if s, ok := v.(string); ok && s != "" {
					return s
				}
			}
		}
		return ""
	}
	texts := []string{"text", "t5xxl", "clip_l", "prompt"}
	for _, id := range w.IDs() {
		if model == "" {
			model = literal(id, "unet_name", "ckpt_name")
		}
		from := id
		for range w.Len() { // back from the sampler, over nodes that change its conditioning
			next, linked := w.Source(from, "positive")
			if !linked {
				next, linked = w.Source(from, "conditioning")
			}
			if !linked {
				break
			}
			from = next
		}
		if from != id && about == "" {
			about = literal(from, texts...)
		}
	}
	for _, id := range w.IDs() {
		if about == "" {
			about = literal(id, texts...)
		}
	}
	return Clipped(about), Clipped(model)
}

// maxTitles bounds the nodes whose titles are in a job's queued event.
const maxTitles = 256

// Titles returns the display names of the nodes of a workflow, by id: titles, or else classes, each of at most
// aboutBytes bytes. It is empty for a workflow of more than maxTitles nodes.
func Titles(w *graph.Workflow) map[string]string {
	out := map[string]string{}
	if w.Len() <= maxTitles {
		for _, id := range w.IDs() {
			out[id] = Clipped(w.Title(id))
		}
	}
	return out
}

// TitlesIn returns the display names of a job's nodes, by id, from its first event.
func TitlesIn(log []Event) map[string]string {
	out := map[string]string{}
	for i := range log {
		switch titles := log[i].Data["titles"].(type) {
		case map[string]string:
			return titles
		case *pyjson.Object:
			for _, id := range titles.Keys() {
				out[id], _ = titles.At(id).(string)
			}
			return out
		}
	}
	return out
}

// Clipped returns text on one line of at most aboutBytes bytes, cut between runes.
func Clipped(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= aboutBytes {
		return text
	}
	end := aboutBytes - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
