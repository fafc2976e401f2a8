package value

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights"
)

// TestVocabularyBesideAllEncoders checks that a SentencePiece vocabulary is found where checkpoints have it: ComfyUI's
// CheckpointSave writes that of Lumina 2's encoder next to all encoders, and that of HunyuanDiT's mT5 next to its own.
func TestVocabularyBesideAllEncoders(t *testing.T) {
	pieces, err := os.ReadFile(filepath.Join("..", "..", "models", "tokenizer", "testdata", "tiny_bpe.model"))
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "text_encoders.gemma2_2b.transformer."
	for at, found := range map[string]bool{
		"text_encoders.": true, "text_encoders.gemma2_2b.": true, prefix: true, "text_encoders.mt5xl.": false,
	} {
		var b bytes.Buffer
		err := safetensors.Write(&b, nil, []safetensors.Tensor{
			{Name: at + "spiece_model", DType: engine.U8, Shape: []int{len(pieces)}, Data: datafile.Of(pieces)},
		})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "whole.safetensors")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := weights.Open(path, engine.F32)
		if err != nil {
			t.Fatal(err)
		}
		words, err := vocabularyInside(&encoder{kind: "gemma2_2b", prefix: prefix}, file)
		if err != nil || (words != nil) != found {
			t.Errorf("below %s: got %v, %v; want one: %v", at, words != nil, err, found)
		}
		_ = file.Close()
	}
}
