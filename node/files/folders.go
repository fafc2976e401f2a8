package files

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"patchbay/fault"
	"patchbay/models/weights"
)

// A diffusers folder is a whole pipeline as the diffusers library saves it: transformer/, text_encoder/,
// text_encoder_2/, vae/, tokenizer/ and tokenizer_2/, each with a config.json and weights in one file or in shards. It
// may lie in diffusion_models, unet or diffusers of a models root. Its name is an entry of the diffusion models,
// "<name>/text_encoder" and the like are entries of the text encoders, "<name>/vae" of the autoencoders. A folder that
// holds nothing but a transformer is an entry of the diffusion models too.

// folderRoots returns the absolute folders in which diffusers folders are looked for.
func (r *Roots) folderRoots() []string {
	var out []string
	for _, m := range r.Models {
		for _, f := range []string{"unet", "diffusion_models", "diffusers"} {
			out = append(out, filepath.Join(m, f))
		}
	}
	for _, extra := range []map[string][]string{r.Extra.First, r.Extra.Then} {
		out = append(append(out, extra[KindDiffusion]...), extra["diffusers"]...)
	}
	return out
}

// isPipeline reports whether dir is a diffusers folder, which has a transformer.
func isPipeline(dir string) bool { return isTransformer(filepath.Join(dir, "transformer")) }

// isTransformer reports whether dir holds one diffusion model in diffusers' format.
func isTransformer(dir string) bool {
	if !isFile(filepath.Join(dir, "config.json")) {
		return false
	}
	const weights = "diffusion_pytorch_model.safetensors"
	return isFile(filepath.Join(dir, weights)) || isFile(filepath.Join(dir, weights+".index.json"))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// walkFolders adds to seen the entries of a kind that are diffusers folders, or parts of them, below dir/sub.
func (r *Roots) walkFolders(kind, dir, sub string, depth int, seen map[string]bool) {
	for _, name := range r.subfolders(filepath.Join(dir, sub)) {
		name = filepath.Join(sub, name)
		full, entry := filepath.Join(dir, name), filepath.ToSlash(name)
		switch {
		case isPipeline(full):
			for _, part := range r.parts(kind, full) {
				seen[strings.TrimSuffix(entry+"/"+part, "/")] = true
			}
		case isTransformer(full):
			if kind == KindDiffusion {
				seen[entry] = true
			}
		case depth < 8:
			r.walkFolders(kind, dir, name, depth+1, seen)
		}
	}
}

// subfolders returns the names of the folders in dir, including links to folders that may be followed.
func (r *Roots) subfolders(dir string) []string {
	entries, _ := os.ReadDir(dir) // a folder that cannot be read has none
	var out []string
	for _, e := range entries {
		full := filepath.Join(dir, e.Name())
		if info, err := os.Stat(full); err == nil && info.IsDir() && (e.IsDir() || r.reachable(full)) {
			out = append(out, e.Name())
		}
	}
	return out
}

// parts returns the sub-folders of a pipeline that hold a kind; "" is the pipeline itself.
func (r *Roots) parts(kind, pipeline string) []string {
	if kind == KindDiffusion {
		return []string{""}
	}
	var out []string
	for _, name := range r.subfolders(pipeline) {
		if partKind(name) == kind && isFile(filepath.Join(pipeline, name, "config.json")) {
			out = append(out, name)
		}
	}
	return out
}

// partKind returns the kind that a sub-folder of a pipeline holds, "" if none.
func partKind(name string) string {
	switch {
	case name == "vae":
		return KindVAE
	case strings.HasPrefix(name, "text_encoder"):
		return KindText
	}
	return ""
}

// folder returns the folder with the weights that an entry names, "" if the entry is not in a diffusers folder. It
// returns an error if a file of the folder is a link that may not be followed.
func (r *Roots) folder(kind, field, name string) (string, error) {
	for _, root := range r.folderRoots() {
		full := filepath.Join(root, filepath.FromSlash(name))
		switch {
		case kind == KindDiffusion && isPipeline(full):
			full = filepath.Join(full, "transformer")
		case kind == KindDiffusion && isTransformer(full) && !isPipeline(filepath.Dir(full)):
		case partKind(filepath.Base(full)) == kind && isPipeline(filepath.Dir(full)) &&
			isFile(filepath.Join(full, "config.json")):
		default:
			continue
		}
		return full, r.allInside(field, name, full)
	}
	return "", nil
}

// allInside refuses a checkpoint of several files if one of them is a link that may not be followed.
func (r *Roots) allInside(field, name, path string) error {
	files, err := weights.Paths(path)
	if err != nil {
		return fault.Named(fault.BadCheckpoint, field, "%v", err)
	}
	for _, f := range files {
		if !r.reachable(f) {
			return fault.Named(fault.FileOutsideRoot, field, "%q: %s %s", name, filepath.Base(f), r.outside())
		}
	}
	return nil
}

// hiddenShard reports whether a file is a shard with its index beside it: the index is the entry then.
func hiddenShard(path string) bool {
	index, ok := weights.Shard(path)
	return ok && isFile(filepath.Join(filepath.Dir(path), index))
}

// FolderOf returns the folder that a checkpoint is in, or the checkpoint itself if it is a folder.
func FolderOf(path string) string {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path
	}
	return filepath.Dir(path)
}

// ownIDs removes the token ids from a config.json that the transformers library wrote for CLIP: they are known to be
// wrong in published files (end 2, begin 0, pad 1 where the vocabulary has 49407, 49406 and 49407), and the library
// does not use them either. Other configs are returned unchanged.
func ownIDs(part string, config []byte) []byte {
	if part != "clip_l" && part != "clip_g" {
		return config
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(config, &members) != nil || string(members["model_type"]) != `"clip_text_model"` {
		return config // a broken one is reported where it is read
	}
	for _, id := range []string{"bos_token_id", "eos_token_id", "pad_token_id"} {
		delete(members, id)
	}
	text, err := json.Marshal(members)
	if err != nil {
		return config
	}
	return text
}
