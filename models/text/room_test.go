package text_test

import (
	"fmt"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/text"
	"patchbay/models/weights"
)

// TestNoRoomForTwoLayers checks that an encoder is refused, before anything is read, if two of its layers do not fit
// beside what is outside of layers, with the bytes that it needs, those that there are and the flag to change. With so
// many bytes it is opened, and brings all layers.
func TestNoRoomForTwoLayers(t *testing.T) {
	const width, hidden, words, places, layers = 1024, 4096, 1000, 512, 24 // those of HunyuanDiT's BERT but the words
	var list []weights.Declared
	add := func(name string, shape ...int) { list = append(list, weights.Declared{Name: name, Shape: shape}) }
	norm := func(name string) { add(name+".weight", width); add(name+".bias", width) }
	matrix := func(name string, rows, columns int) { add(name+".weight", rows, columns); add(name+".bias", rows) }
	const at = "bert.embeddings."
	add(at+"word_embeddings.weight", words, width)
	add(at+"position_embeddings.weight", places, width)
	add(at+"token_type_embeddings.weight", 2, width)
	norm(at + "LayerNorm")
	for i := range layers {
		layer := fmt.Sprintf("bert.encoder.layer.%d.", i)
		for _, of := range []string{"self.query", "self.key", "self.value", "output.dense"} {
			matrix(layer+"attention."+of, width, width)
		}
		norm(layer + "attention.output.LayerNorm")
		matrix(layer+"intermediate.dense", hidden, width)
		matrix(layer+"output.dense", width, hidden)
		norm(layer + "output.LayerNorm")
	}
	// bf16: 2 x (4 x (1024 x 1024 + 1024) + 2 x 4096 x 1024 + 4096 + 1024 + 4 x 1024) bytes of a layer and
	// 2 x (1000 + 512 + 2 + 2) x 1024 outside
	const least = 2*25192448 + 3104768
	set := weights.Undefined(list)
	open := func(ops engine.Ops, room int64) error {
		parts, err := text.OpenParts([]engine.Ops{ops}, "bert", set, nil, room)
		if err == nil && !parts[0].Brings() {
			t.Errorf("in %d bytes: all layers are kept", room)
		}
		return err
	}
	if err := open(weights.Shapes(), least); err != nil {
		t.Errorf("in exactly the bytes that it needs: %v", err)
	}
	for flag, ops := range map[string]engine.Ops{
		"raise --memory": weights.Shapes(), "raise --device-memory": card{weights.Shapes()},
	} {
		err := open(ops, least-1)
		if !fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), "bert takes 52 MB") ||
			!strings.Contains(err.Error(), "51 MB are there") || !strings.Contains(err.Error(), flag) {
			t.Errorf("in a byte less: %v, want out_of_memory, 52 MB, 51 MB and %q", err, flag)
		}
	}
}

// card is Ops of a device with memory of its own.
type card struct{ engine.Ops }

func (card) Location() string                    { return "cuda:0" }
func (card) DeviceMemory() (int64, int64, error) { return 0, 0, nil }
