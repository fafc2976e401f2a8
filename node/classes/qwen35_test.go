package classes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/tests/golden"
)

// TestQwen35Writes compares what a small Qwen3.5 writes through the nodes, with an ordinary vocabulary, with ComfyUI's:
// with its template and thinking, words that are turns already, and what later ComfyUIs have, a system prompt and
// pictures. The type of the loader does not matter.
func TestQwen35Writes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: another vocabulary; TestAskQwen35 has the prompts, models/text what is written")
	}
	dir := os.Getenv("PATCHBAY_TEST_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "tokenizers")
	}
	if _, err := os.Stat(filepath.Join(dir, "qwen2.5", "vocab.json")); err != nil {
		t.Skipf("NOT RUN: %v\nset PATCHBAY_TEST_TOKENIZERS to the folder that holds qwen2.5", err)
	}
	runner, err := graph.NewRunner(graph.Config{
		Engine: engineOf(t, fastOps), Roots: chatRoots(t, filepath.Join(dir, "qwen2.5")), Catalogue: All(),
	})
	check(t, err)
	defer runner.Close()
	var cases []struct {
		Prompt, System, Text string
		Thinking, Bare       bool
		Pictures             int
	}
	check(t, golden.JSON("qwen35/texts.json", &cases))
	clip := exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "qwen3.5.safetensors", "type": "flux3"})
	for _, c := range cases {
		in := map[string]any{
			"clip": clip, "prompt": c.Prompt, "max_length": 8, "sampling_mode": "off", "thinking": c.Thinking,
			"use_default_template": !c.Bare, "mtp": "off",
		}
		if c.System != "" {
			in["system_prompt"] = c.System
		}
		if c.Pictures > 0 {
			in["image"] = exec(t, runner, "EmptyImage", map[string]any{
				"width": 64, "height": 64, "batch_size": c.Pictures, "color": 0x336699,
			})
		}
		if got := exec(t, runner, "TextGenerate", in); got != strings.TrimSpace(c.Text) {
			t.Errorf("%+v: it writes %q", c, got)
		}
	}
	refused := func(class string, in map[string]any) (f *fault.Error) {
		_, err := runner.Exec(t.Context(), graph.ExecRequest{Class: class, Inputs: in}, nil)
		if !errors.As(err, &f) {
			t.Fatalf("%s: got %v", class, err)
		}
		return f
	}
	if f := refused("CLIPTextEncode", map[string]any{"text": "a cat", "clip": clip}); f.Code != fault.WrongFamily ||
		f.Field != "clip" || !strings.Contains(f.Text, "qwen3.5.safetensors writes texts") {
		t.Errorf("states of a model that writes: %+v", f)
	}
	f := refused("TextGenerate", map[string]any{
		"clip":   exec(t, runner, "CLIPLoader", map[string]any{"clip_name": "qwen3vl_4b.safetensors", "type": "krea2"}),
		"prompt": "a cat", "max_length": 8, "sampling_mode": "off", "system_prompt": "Expand.",
	})
	if f.Field != "system_prompt" || !strings.Contains(f.Text, "load Qwen3.5") {
		t.Errorf("a system prompt for another model: %+v", f)
	}
}

// TestThoughtsApart checks that what a model thought does not become part of its text.
func TestThoughtsApart(t *testing.T) {
	for _, c := range [][4]string{
		{" <think>\na\n</think>\n\nb ", "", "b", "a"},
		{"a</think>b", "go on<think>\n", "b", "a"},
		{"<think>cut short", "", "", "cut short"},
		{" a </think> b", "", "a </think> b", ""},
	} {
		if words, thoughts := withoutThoughts(c[0], c[1]); words != c[2] || thoughts != c[3] {
			t.Errorf("%q becomes %q and %q, want %q and %q", c[0], words, thoughts, c[2], c[3])
		}
	}
}
