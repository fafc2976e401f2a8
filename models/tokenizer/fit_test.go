package tokenizer

import (
	"reflect"
	"testing"
)

// TestRowsOfAnotherWidth checks what ComfyUI's process_tokens and encode_token_weights leave of a chunk with such rows:
// tokens move up, pads follow, and weights belong to places, not to tokens.
func TestRowsOfAnotherWidth(t *testing.T) {
	token := func(id int, weight float32) Token { return Token{ID: id, Weight: weight} }
	wide := Token{ID: None, Weight: 1.5, Vector: []float32{1, 2, 3}}
	fits := Token{ID: None, Weight: 0.5, Vector: []float32{1, 2}}
	chunks := [][]Token{{token(7, 1), wide, wide, fits, token(8, 1), token(1, 1)}, {token(9, 1)}}
	if other := (Prompt{Chunks: chunks}).Fit(2, 0); other != 3 {
		t.Errorf("rows of width %d were left out, want 3", other)
	}
	moved := fits
	moved.Weight = 1.5
	want := [][]Token{
		{token(7, 1), moved, token(8, 1.5), token(1, 0.5), token(0, 1), token(0, 1)}, {token(9, 1)},
	}
	if !reflect.DeepEqual(chunks, want) {
		t.Errorf("got %v, want %v", chunks, want)
	}
}
