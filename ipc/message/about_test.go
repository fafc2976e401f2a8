package message

import (
	"strings"
	"testing"
	"unicode/utf8"

	"patchbay/node/graph"
)

func TestAbout(t *testing.T) {
	for _, c := range []struct{ graph, about, model string }{
		{ // the negative text comes first, and another node changes the positive one
			`{"1":{"class_type":"CLIPTextEncode","inputs":{"text":"ugly"}},"2":{"class_type":"CLIPTextEncode","inputs":` +
				`{"text":"a red\n fox"}},"3":{"class_type":"FluxGuidance","inputs":{"conditioning":["2",0]}},"4":{"class_type":` +
				`"UNETLoader","inputs":{"unet_name":"flux.safetensors"}},"5":{"class_type":"KSampler","inputs":{"positive":` +
				`["3",0],"negative":["1",0]}}}`, "a red fox", "flux.safetensors",
		},
		{`{"1":{"class_type":"CLIPTextEncodeFlux","inputs":{"clip_l":"x","t5xxl":"long"}}}`, "long", ""},
		{`{"1":{"class_type":"K","inputs":{"positive":["1",0]}}}`, "", ""}, // a cycle
		{`{"1":{"class_type":"K","inputs":{"text":7}}}`, "", ""},
	} {
		w, failure := graph.ParseWorkflowJSON([]byte(c.graph))
		if failure != nil {
			t.Fatal(failure)
		}
		if about, model := About(w); about != c.about || model != c.model {
			t.Errorf("%s: %q on %q, want %q on %q", c.graph, about, model, c.about, c.model)
		}
	}
	text := `{"1":{"class_type":"KSampler","inputs":{},"_meta":{"title":"my\n sampler"}},` +
		`"2":{"class_type":"VAEDecode","inputs":{}}}`
	w, failure := graph.ParseWorkflowJSON([]byte(text))
	if failure != nil {
		t.Fatal(failure)
	}
	if got := Titles(w); len(got) != 2 || got["1"] != "my sampler" || got["2"] != "VAEDecode" {
		t.Errorf("titles are %v", got)
	}
	if got := Clipped(strings.Repeat("é", 200)); len(got) > aboutBytes || !utf8.ValidString(got) ||
		!strings.HasSuffix(got, "é…") {
		t.Errorf("200 runes are cut to %q", got)
	}
}
