package classes

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/tokenizer"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// TestEmbeddingFiles checks that a file with the rows of "red" in an encoder's token table makes embedding:NAME equal
// "red" for this encoder, that one of another width leaves pads at the end, that a missing one is dropped, both with a
// warning, and that files of other formats are refused by name.
func TestEmbeddingFiles(t *testing.T) {
	roots, extra := demoRoots(), t.TempDir()
	roots.Models = append(roots.Models, extra)
	words, _, err := tokenizer.Find("clip", filepath.Join(demoRoots().Models[0], "tokenizers", "demo_clip.tokenizer.json"))
	check(t, err)
	ids := words.Encode("red")
	f := demoFile(t, "text_encoders/demo_clip.safetensors")
	table, _ := f.Entry("text_model.embeddings.token_embedding.weight")
	width := table.Shape[1]
	var rows []byte
	for _, id := range ids {
		values := table.Data.Bytes()
		size := len(values) / table.Shape[0]
		rows = append(rows, values[id*size:(id+1)*size]...)
	}
	entry := func(name string) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: table.DType, Shape: []int{len(ids), width}, Data: datafile.Of(rows)}
	}
	other := safetensors.Tensor{Name: "t5xxl", DType: engine.F32, Shape: []int{1, 7}, Data: datafile.Of(make([]byte, 28))}
	at := func(name string) string { return filepath.Join(extra, "embeddings", name) }
	writeTensors(t, at("rouge.safetensors"), nil, []safetensors.Tensor{entry("clip_l"), other})
	writeTensors(t, at("deep/bundled.safetensors"), nil, []safetensors.Tensor{
		entry("bundle_emb.x.clip_l"),
		{Name: "bundle_emb.x.t5xxl", DType: engine.F32, Shape: []int{1, 7}, Data: datafile.Of(make([]byte, 28))},
		entry("lora_down"),
	})
	check(t, os.WriteFile(at("old.pt"), []byte("PK"), 0o600))
	runner, err := graph.NewRunner(graph.Config{Engine: engineOf(t, fastOps), Roots: roots, Catalogue: All()})
	check(t, err)
	defer runner.Close()
	clip := exec(t, runner, "DualCLIPLoader", map[string]any{
		"clip_name1": "demo_t5.safetensors", "clip_name2": "demo_clip.safetensors", "type": "flux",
	})
	encode := func(l, t5 string) ([]float32, []float32, []string, error) {
		out, err := runner.Exec(context.Background(), graph.ExecRequest{
			Class: "CLIPTextEncodeFlux", Inputs: map[string]any{"clip": clip, "clip_l": l, "t5xxl": t5, "guidance": 3.5},
		}, nil)
		if err != nil {
			return nil, nil, nil, err
		}
		pair := out.Outputs[0].([]any)[0].([]any)
		pooled, _ := pair[1].(*pyjson.Object).Get("pooled_output")
		return values(t, pair[0]), values(t, pooled), out.Warnings, nil
	}
	for _, c := range []struct{ l, t5, asL, asT5, warning string }{
		{"a embedding:rouge star", "cat", "a red star", "cat", ""},
		{"a embedding:bundled, star", "cat", "a red, star", "cat", ""},
		{"a star", "embedding:rouge cat", "a star", "cat", "of width 7"},
		{"a star embedding:nothing", "cat", "a star", "cat", `no embedding "nothing"`},
	} {
		got, pooled, warnings, err := encode(c.l, c.t5)
		check(t, err)
		want, wantPooled, _, err := encode(c.asL, c.asT5)
		check(t, err)
		if !slices.Equal(got, want) || !slices.Equal(pooled, wantPooled) {
			t.Errorf("%q, %q: states differ from those of %q, %q by %.2g, pooled by %.2g", c.l, c.t5, c.asL, c.asT5,
				relative(got, want), relative(pooled, wantPooled))
		}
		if all := strings.Join(warnings, "\n"); (all == "") != (c.warning == "") || !strings.Contains(all, c.warning) {
			t.Errorf("%q, %q: warnings %q, want one with %q", c.l, c.t5, all, c.warning)
		}
	}
	if plain, _, _, err := encode("a star", "cat"); err != nil {
		t.Error(err)
	} else if red, _, _, err := encode("a red star", "dog"); err != nil || slices.Equal(plain, red) {
		t.Errorf("other words give the same states, error %v", err)
	}
	const refusal = "old.pt is not a safetensors file"
	if _, _, _, err := encode("embedding:old", ""); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("a file of torch.save: got error %v", err)
	}
}
