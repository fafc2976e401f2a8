package files

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"patchbay/fault"
)

// Roots are the folders that names in a workflow may refer to. Models are folders laid out like ComfyUI's models
// folder; Input, Output and Temp are ComfyUI's folders of those names. An empty path counts as an empty folder.
type Roots struct {
	Models              []string
	Input, Output, Temp string
	// ComfyUI is an installed ComfyUI tree to look for tokenizers in; its models folder is not searched unless Models
	// names it.
	ComfyUI string
	// Also returns the names of model files of a kind that only other machines have: List includes them, and nothing
	// here can open them. nil: there are none.
	Also func(kind string) []string
	// Extra are more folders of models.
	Extra Extra
	// StrictLinks refuses every link that leads out of the folders, even those of root and of this process's user.
	StrictLinks bool
}

// Kinds of files: the folders under a models root that hold them, as ComfyUI names them.
const (
	KindDiffusion   = "diffusion_models"
	KindText        = "text_encoders"
	KindVAE         = "vae"
	KindLora        = "loras"
	KindCheckpoint  = "checkpoints"
	KindClipVision  = "clip_vision"
	KindStyle       = "style_models"
	KindControl     = "controlnet"
	KindUpscale     = "upscale_models"
	KindModelPatch  = "model_patches"
	KindLatentUp    = "latent_upscale_models"
	KindEmbedding   = "embeddings" // of prompts, not of an input
	KindInputImage  = "input_images"
	KindInputLatent = "input_latents"
	KindInputVideo  = "input_videos"
	KindInputAudio  = "input_audio"
)

// IsInput reports whether files of a kind belong into the input folder.
func IsInput(kind string) bool {
	return slices.Contains([]string{KindInputImage, KindInputLatent, KindInputVideo, KindInputAudio}, kind)
}

// Kinds returns the kinds of model files that List and Resolve know.
func Kinds() []string {
	return []string{
		KindDiffusion, KindText, KindVAE, KindLora, KindCheckpoint, KindClipVision, KindStyle, KindControl, KindUpscale,
		KindModelPatch, KindLatentUp,
	}
}

// Folders returns the names of the folders of a models root that hold a kind, in search order.
func Folders(kind string) []string {
	switch kind {
	case KindDiffusion, KindGGUF:
		return []string{"unet", "diffusion_models"}
	case KindText:
		return []string{"text_encoders", "clip"}
	}
	return []string{kind}
}

// Dirs returns the absolute folders in which files of a kind are looked for, in search order.
func (r *Roots) Dirs(kind string) []string {
	if IsInput(kind) {
		if r.Input == "" {
			return nil
		}
		return []string{r.Input}
	}
	extra := kind
	if kind == KindGGUF {
		extra = KindDiffusion
	}
	out := slices.Clone(r.Extra.First[extra])
	for _, m := range r.Models {
		for _, f := range Folders(kind) {
			out = append(out, filepath.Join(m, f))
		}
	}
	return append(out, r.Extra.Then[extra]...)
}

// places returns every folder that names may refer to.
func (r *Roots) places() []string {
	var out []string
	for _, extra := range []map[string][]string{r.Extra.First, r.Extra.Then} {
		for _, dirs := range extra {
			out = append(out, dirs...)
		}
	}
	for _, root := range append([]string{r.Input, r.Output, r.Temp}, r.Models...) {
		if root != "" {
			out = append(out, root)
		}
	}
	return out
}

// List returns the names of all files of a kind, relative to their folder with forward slashes, sorted, each once.
// Unreadable folders, files of other types and links that may not be followed are left out.
func (r *Roots) List(kind string) []string {
	seen := map[string]bool{}
	if r.Also != nil {
		for _, n := range r.Also(kind) {
			seen[n] = true
		}
	}
	for _, dir := range r.Dirs(kind) {
		r.walk(kind, dir, "", 0, seen)
	}
	if kind == KindDiffusion || kind == KindText || kind == KindVAE {
		for _, dir := range r.folderRoots() {
			r.walkFolders(kind, dir, "", 0, seen)
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// ListIn returns the names of the files of a kind below one of its folders, as List does for all folders.
func (r *Roots) ListIn(kind, dir string) []string {
	seen := map[string]bool{}
	r.walk(kind, dir, "", 0, seen)
	return slices.Sorted(maps.Keys(seen))
}

// walk collects names below dir/sub. Links to folders are followed, to a depth that ends loops.
func (r *Roots) walk(kind, dir, sub string, depth int, seen map[string]bool) {
	entries, err := os.ReadDir(filepath.Join(dir, sub))
	if err != nil || depth > 8 {
		return
	}
	for _, e := range entries {
		name := filepath.Join(sub, e.Name())
		full := filepath.Join(dir, name)
		mode := e.Type()
		if e.Type()&fs.ModeSymlink != 0 {
			info, err := os.Stat(full)
			if err != nil || !r.follows(kind, full) {
				continue
			}
			mode = info.Mode()
		}
		switch {
		case mode.IsDir() && !IsInput(kind):
			if !isPipeline(full) && !isTransformer(full) { // entries of their own, see walkFolders
				r.walk(kind, dir, name, depth+1, seen)
			}
		case mode.IsRegular() && HasKindExtension(kind, name) && !hiddenShard(full):
			seen[filepath.ToSlash(name)] = true
		}
	}
}

// Ends of the names of videos and sounds, each followed by a space. LoadAudio takes the sound of videos too.
const (
	videoExtensions = ".mp4 .m4v .mov .webm .mkv .avi .mpg .mpeg .flv .wmv .ts .3gp "
	audioExtensions = ".wav .mp3 .flac .ogg .oga .opus .m4a .aac .aif .aiff .weba .wma "
)

// HasKindExtension reports whether a file of that name can be of the kind.
func HasKindExtension(kind, name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	switch kind {
	case KindInputImage:
		return strings.Contains(" .png .jpg .jpeg .webp .bmp .gif .tif .tiff ", " "+ext+" ")
	case KindInputLatent:
		return ext == ".latent"
	case KindInputVideo:
		return ext != "" && strings.Contains(videoExtensions, ext+" ")
	case KindInputAudio:
		return ext != "" && strings.Contains(videoExtensions+audioExtensions, ext+" ")
	}
	switch {
	case kind == KindGGUF:
		return ext == ".gguf"
	case kind == KindUpscale && ext == ".pth", kind == KindEmbedding && (ext == ".pt" || ext == ".bin"):
		return true
	case ext == ".gguf":
		return kind == KindDiffusion || kind == KindText
	}
	return ext == ".safetensors" || ext == ".sft" || strings.HasSuffix(name, ".safetensors.index.json")
}

// follows reports whether a link in a folder of a kind is followed. Links to inputs must stay in the roots, whoever
// made them.
func (r *Roots) follows(kind, path string) bool {
	if IsInput(kind) {
		return r.inside(path)
	}
	return r.reachable(path)
}

// inside reports whether a path, links resolved, lies in one of the roots.
func (r *Roots) inside(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for _, root := range r.places() {
		if base, err := filepath.EvalSymlinks(root); err == nil && within(base, real) {
			return true
		}
	}
	return false
}

// within reports whether path is base or below it; both are clean and absolute or both relative.
func within(base, path string) bool {
	rel, err := filepath.Rel(base, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

// Resolve returns the path of a file of a kind. field names the input for the error: file_outside_root if the name is
// absolute, climbs out of the roots, or is a link that may not be followed; file_missing if nothing has that name;
// bad_checkpoint if the shards of a checkpoint cannot be found.
func (r *Roots) Resolve(kind, field, name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fault.Named(fault.FileOutsideRoot, field, "%q leaves the folder of %s; allowed: %s", name, kind,
			fault.List(r.List(kind)))
	}
	for _, dir := range r.Dirs(kind) {
		path := filepath.Join(dir, filepath.FromSlash(name))
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() { // opening a named pipe would wait for a writer forever
			continue
		}
		if !r.reachable(path) {
			return "", fault.Named(fault.FileOutsideRoot, field, "%q %s; allowed: %s", name, r.outside(),
				fault.List(r.List(kind)))
		}
		if strings.HasSuffix(path, ".safetensors.index.json") {
			return path, r.allInside(field, name, path)
		}
		return path, nil
	}
	if path, err := r.folder(kind, field, name); path != "" || err != nil {
		return path, err
	}
	return "", fault.Named(fault.FileMissing, field, "no file %q in %s; allowed: %s", name, kind,
		fault.List(r.List(kind)))
}

// outside returns why a link is not followed, and what helps.
func (r *Roots) outside() string {
	if r.StrictLinks {
		return "is a link to a place outside the models folders, and --strict-links is set; name that place with --models, " +
			"or copy the file"
	}
	return "is a link of another user to a place outside the models folders; name that place with --models, make the " +
		"link as root or as the user of the daemon, or copy the file"
}

// Annotated splits ComfyUI's suffix off a file name: "a.png [output]" is a.png in the output folder.
func Annotated(name string) (base, kind string) {
	for _, k := range []string{"input", "output", "temp"} {
		if b, ok := strings.CutSuffix(name, "["+k+"]"); ok {
			return strings.TrimSuffix(b, " "), k
		}
	}
	return name, "input"
}

// Picture returns the path of a file that a user names in LoadImage or LoadLatent: in the input folder, or in the one
// that the name is annotated with.
func (r *Roots) Picture(field, name string) (string, error) {
	base, kind := Annotated(name)
	dir := map[string]string{"input": r.Input, "output": r.Output, "temp": r.Temp}[kind]
	if base == "" || base == "." || !filepath.IsLocal(filepath.FromSlash(base)) {
		return "", fault.Named(fault.FileOutsideRoot, field, "%q is not a file name inside the %s folder; allowed: %s",
			name, kind, fault.List(r.List(KindInputImage)))
	}
	path := filepath.Join(dir, filepath.FromSlash(base))
	info, err := os.Stat(path)
	switch {
	case dir == "" || errors.Is(err, fs.ErrNotExist) || (err == nil && !info.Mode().IsRegular()):
		return "", fault.Named(fault.FileMissing, field, "no file %q in the %s folder; allowed: %s", base, kind,
			fault.List(r.List(KindInputImage)))
	case err != nil:
		return "", fault.Named(fault.FileMissing, field, "%v", err)
	case !r.inside(path):
		return "", fault.Named(fault.FileOutsideRoot, field, "%q is a link to a place outside the %s folder", name, kind)
	}
	return path, nil
}

// KindGGUF is the kind of diffusion models that the loaders of ComfyUI-GGUF list: the GGUF files in the folders of
// diffusion models.
const KindGGUF = "unet_gguf"
