package value

import (
	"testing"

	"patchbay/models/text"
	"patchbay/tests/golden"
)

// TestAskQwen35 compares the whole prompts of a Qwen3.5 with what ComfyUI's tokenizer makes of words: braces in them
// stay, the template is used even if it is not wanted, but not for words that are turns already.
func TestAskQwen35(t *testing.T) {
	var cases []struct {
		Prompt, System, Words string
		Thinking, Bare        bool
		Pictures              int
	}
	if err := golden.JSON("qwen35/texts.json", &cases); err != nil {
		t.Fatal(err)
	}
	chat := text.KindOf("qwen35").Chat
	for _, c := range cases {
		a := Ask{
			Words: c.Prompt, System: c.System, Bare: c.Bare, Thinking: c.Thinking, Pictures: make([]text.Picture, c.Pictures),
		}
		if got := a.prompt(chat.Layout.Template, chat); got != c.Words {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
