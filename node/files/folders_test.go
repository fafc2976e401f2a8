package files

import (
	"testing"
)

func TestTokenIDsOfPublishedCLIPConfigsAreNotUsed(t *testing.T) {
	published := `{"model_type": "clip_text_model", "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, ` +
		`"hidden_size": 768}`
	if got := string(ownIDs("clip_l", []byte(published))); got != `{"hidden_size":768,"model_type":"clip_text_model"}` {
		t.Errorf("got %s", got)
	}
	for part, config := range map[string]string{"t5": published, "clip_l": `{"eos_token_id": 820}`, "clip_g": `{`} {
		if got := string(ownIDs(part, []byte(config))); got != config {
			t.Errorf("%s: got %s, want it unchanged: %s", part, got, config)
		}
	}
}
