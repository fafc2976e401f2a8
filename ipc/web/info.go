package web

import (
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/ipc/wire"
	"patchbay/node/files"
	"patchbay/node/graph"
	"patchbay/node/pyjson"
)

// infoCache holds the answer to GET /object_info for a second: clients ask for it often, and making it reads every
// folder of models.
type infoCache struct {
	mu    sync.Mutex
	all   []byte
	until time.Time
}

// stale makes the next answer a new one.
func (c *infoCache) stale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Time{}
}

// objectInfo answers GET /object_info and /object_info/{class}. An unknown class is no error.
func (h *HTTP) objectInfo(w http.ResponseWriter, r *http.Request) error {
	if class := r.PathValue("class"); class != "" {
		info := h.classes.Describe(class)
		b, err := wire.Encode(orEmptyMap(info), wire.JSON)
		if err == nil {
			cached(w, r, jsonType, b)
		}
		return err
	}
	c := &h.info
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.until) {
		b, err := wire.Encode(h.classes.Describe(""), wire.JSON)
		if err != nil {
			return err
		}
		c.all, c.until = b, time.Now().Add(time.Second)
	}
	cached(w, r, jsonType, c.all)
	return nil
}

// kinds of files that ComfyUI lists and that are empty here.
var otherKinds = []string{"configs", "embeddings", "diffusers", "vae_approx", "gligen", "hypernetworks", "photomaker"}

// models answers GET /models and /models/{folder}.
func (h *HTTP) models(w http.ResponseWriter, r *http.Request) error {
	folder := r.PathValue("folder")
	if folder == "" {
		h.send(w, http.StatusOK, append(files.Kinds(), otherKinds...))
		return nil
	}
	kind := modern(folder)
	names, ok := h.classes.Models()[kind]
	switch {
	case kind == files.KindEmbedding:
		names, ok = append([]string{}, h.cfg.Roots.List(kind)...), true
	case slices.Contains(otherKinds, kind):
		names, ok = []any{}, true
	}
	if !ok {
		return bare(http.StatusNotFound)
	}
	h.send(w, http.StatusOK, names)
	return nil
}

// modern returns the kind of model files that a folder holds, which may have one of the older names.
func modern(folder string) string {
	switch folder {
	case "unet":
		return files.KindDiffusion
	case "clip":
		return files.KindText
	}
	return folder
}

// modelFiles answers GET /experiment/models/{folder}. Models in several files, and those that only other daemons have,
// are left out. Times are in seconds.
func (h *HTTP) modelFiles(w http.ResponseWriter, r *http.Request) error {
	kind := modern(r.PathValue("folder"))
	if !slices.Contains(files.Kinds(), kind) && !slices.Contains(otherKinds, kind) {
		return bare(http.StatusNotFound)
	}
	out := []any{}
	for i, dir := range h.cfg.Roots.Dirs(kind) {
		for _, name := range h.cfg.Roots.ListIn(kind, dir) {
			info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
			if err != nil {
				continue // it has just gone
			}
			changed := float64(info.ModTime().UnixMilli()) / 1000
			out = append(out, pyjson.NewObject("name", name, "pathIndex", i, "modified", changed, "created", changed, "size",
				info.Size()))
		}
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// kinds answers GET /experiment/models.
func (h *HTTP) kinds(w http.ResponseWriter, _ *http.Request) error {
	out := []any{}
	for _, kind := range files.Kinds() {
		out = append(out, pyjson.NewObject("name", kind, "folders", files.Folders(kind), "extensions",
			[]string{".safetensors", ".sft", ".gguf"}))
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// embeddings answers GET /embeddings: names without their endings.
func (h *HTTP) embeddings(w http.ResponseWriter, _ *http.Request) error {
	out := []string{}
	for _, name := range h.cfg.Roots.List(files.KindEmbedding) {
		out = append(out, strings.TrimSuffix(name, path.Ext(name)))
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// serverFeatures is what this server can do, as ComfyUI says it.
func serverFeatures() *pyjson.Object {
	return pyjson.NewObject("supports_preview_metadata", true, "supports_model_type_tags", false, "max_upload_size",
		maxUpload, "extension", pyjson.NewObject(), "node_replacements", false, "assets", false)
}

func (h *HTTP) features(w http.ResponseWriter, _ *http.Request) error {
	h.send(w, http.StatusOK, serverFeatures())
	return nil
}

// systemStats answers GET /system_stats. Of Python and torch, which are not here, it says so.
func (h *HTTP) systemStats(w http.ResponseWriter, _ *http.Request) error {
	total, free := h.cfg.Memory()
	s := h.cfg.Stats()
	devices := []any{}
	for i, name := range s.Devices {
		kind, _, _ := strings.Cut(name, ":")
		var index any
		if kind != "cpu" {
			index = i
		}
		devices = append(devices, pyjson.NewObject("name", name, "type", kind, "index", index, "vram_total", total,
			"vram_free", free, "torch_vram_total", total, "torch_vram_free", free))
	}
	h.send(w, http.StatusOK, pyjson.NewObject("system", pyjson.NewObject(
		"os", runtime.GOOS, "ram_total", total, "ram_free", free, "comfyui_version", graph.Compat,
		"required_frontend_version", "", "installed_templates_version", "", "required_templates_version", "",
		"comfy_package_versions", []any{}, "python_version", "none: Patchbay "+s.Version, "pytorch_version", "none",
		"embedded_python", false, "deploy_environment", "patchbay", "argv", []any{"patchbay", "serve"},
	), "devices", devices))
	return nil
}
