package files

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"patchbay/fault"
	"patchbay/models/weights"
)

// Embedding returns the rows [n][E] of the textual inversion that a prompt names, for the encoder with that key of
// embedding files ("clip_l", "t5xxl" ...); nil if there is none. The file's rows may be of any width.
func (r *Roots) Embedding(name, key string) (rows [][]float32, err error) {
	at, err := r.embeddingFile(name)
	if at == "" || err != nil {
		return nil, err
	}
	err = ReadHeader(KindEmbedding, at, true, func(h Header) error {
		parts, err := embeddingParts(h.Weights.Set(), key)
		for _, t := range parts {
			if len(t.Shape) < 1 || len(t.Shape) > 2 || t.Len() == 0 {
				return fmt.Errorf("has shape %v, want rows of numbers", t.Shape)
			}
			rows = slices.AppendSeq(rows, slices.Chunk(t.F32(), t.Shape[len(t.Shape)-1]))
		}
		return err
	})
	return rows, err
}

// embeddingFile returns the path of the file that an embedding's name means (ComfyUI comfy/sd1_clip.py, load_embed):
// in a folder of embeddings or any below, with or without its ending; empty: there is none.
func (r *Roots) embeddingFile(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	listed := r.List(KindEmbedding)
	for _, ending := range []string{"", ".safetensors", ".pt", ".bin"} {
		full := path.Clean(name) + ending
		for _, known := range listed {
			if known != full && !strings.HasSuffix(known, "/"+full) {
				continue
			}
			if !strings.HasSuffix(known, ".safetensors") {
				return "", fmt.Errorf("%s is not a safetensors file: others are not read", known)
			}
			at, err := r.Resolve(KindEmbedding, "text", known)
			if f, ok := errors.AsType[*fault.Error](err); ok && f.Code == fault.FileMissing {
				return "", nil
			}
			return at, err
		}
	}
	return "", nil
}

// embeddingParts returns the tensors of a file that hold the rows for an encoder: the one called key, those bundled in
// a LoRA, or else the only one.
func embeddingParts(set *weights.Set, key string) (out []weights.Stored, err error) {
	if t, ok := set.Get(key); ok {
		return []weights.Stored{t}, nil
	}
	for _, suffix := range []string{".string_to_param.*", "." + key} {
		for _, name := range set.Names() {
			if strings.HasPrefix(name, "bundle_emb.") && strings.HasSuffix(name, suffix) {
				t, _ := set.Get(name)
				out = append(out, t)
			}
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	if names := set.Names(); len(names) == 1 {
		t, _ := set.Get(names[0])
		return []weights.Stored{t}, nil
	}
	return nil, fmt.Errorf("holds no tensor called %s, and several others", key)
}
