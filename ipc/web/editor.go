package web

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/editor"
	"patchbay/node/pyjson"
)

// ComfyUI's editor is a folder of static files that the user has installed; it is no part of this program. What it asks
// for besides ComfyUI's routes is answered here, with nothing where there is nothing.

// editorPolicy is ComfyUI's own for a server without API nodes. The editor has styles and scripts inside its page, and
// sends reports of errors to other servers, which it forbids.
const editorPolicy = "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; " +
	"style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; " +
	"worker-src 'self' blob:; connect-src 'self' data: blob:; frame-src 'self'; object-src 'none'; base-uri 'self'; " +
	"form-action 'self'; frame-ancestors 'self'"

// editorRoutes are the rows of what only the editor asks for, and of its files if there are any.
func (h *HTTP) editorRoutes() []route {
	nothing := func(w http.ResponseWriter, _ *http.Request) error {
		h.send(w, http.StatusOK, map[string]any{})
		return nil
	}
	rows := []route{
		{method: "GET", path: "/i18n", about: "texts of other nodes: none", answer: nothing},
		{method: "GET", path: "/workflow_templates", about: "templates of other nodes: none", answer: nothing},
		{method: "GET", path: "/global_subgraphs", about: "subgraphs of other nodes: none", answer: nothing},
		{method: "GET", path: "/node_replacements", about: "classes that replace others: none", answer: nothing},
		{method: "GET", path: "/internal/logs", about: "where the log is", answer: h.logs},
		{method: "GET", path: "/internal/logs/raw", about: "where the log is, in entries", answer: h.logs},
		{method: "PATCH", path: "/internal/logs/subscribe", about: "no effect", answer: h.subscribe},
		{
			method: "GET", path: "/internal/files/{type}", verb: message.VerbDescribe, answer: h.fileNames,
			about: "files of a folder, newest first",
		},
		{
			method: "GET", path: "/templates/{file}", onlyBare: true, answer: h.editorTemplate,
			about: "templates of an installed package whose node classes are all known",
		},
	}
	if h.cfg.Frontend == "" {
		return rows
	}
	return append(rows, route{
		method: "GET", path: "/{file...}", onlyBare: true, about: "a file of the editor", answer: h.static,
	})
}

// static answers with a file of the editor.
func (h *HTTP) static(w http.ResponseWriter, r *http.Request) error {
	return h.editorFile(w, r, r.PathValue("file"))
}

func (h *HTTP) editorFile(w http.ResponseWriter, r *http.Request, name string) error {
	name = path.Clean("./" + name)
	f, info, err := openBelow(h.cfg.Frontend, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	head := w.Header()
	head.Set("Content-Security-Policy", editorPolicy)
	head.Set("Content-Type", staticType(name))
	head.Set("Cache-Control", "no-cache")
	if strings.HasPrefix(name, "assets/") { // their names have checksums
		head.Set("Cache-Control", "private, max-age=86400")
	}
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
}

// staticType returns the type of a file of the editor, the same on every machine for those that a browser runs.
func staticType(name string) string {
	switch ext := strings.ToLower(path.Ext(name)); ext {
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".wasm":
		return "application/wasm"
	case ".ico":
		return "image/x-icon"
	case ".woff2", ".woff", ".ttf":
		return "font/" + ext[1:]
	default:
		if kind := mime.TypeByExtension(ext); kind != "" && !active(mediaType(name)) {
			return kind
		}
		return mediaType(name)
	}
}

// extensions answers GET /extensions: the scripts in the editor's folder of that name.
func (h *HTTP) extensions(w http.ResponseWriter, _ *http.Request) error {
	out := []any{}
	if h.cfg.Frontend != "" {
		if root, err := os.OpenRoot(h.cfg.Frontend); err == nil {
			defer func() { _ = root.Close() }()
			err := walk(root, "extensions", true, func(name string, info fs.FileInfo) {
				if !info.IsDir() && path.Ext(name) == ".js" {
					out = append(out, "/extensions/"+name)
				}
			})
			if err != nil {
				h.cfg.Log.Debug().Err(err).Msg("the editor has no folder of extensions")
			}
		}
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// logs says where the log is: it has what all users do, and is not shown.
func (h *HTTP) logs(w http.ResponseWriter, r *http.Request) error {
	now := h.jobs.Config().Now()
	text := fmt.Sprintf("Patchbay %s writes its log to standard error; /patchbay shows jobs and devices.\n",
		h.cfg.Stats().Version)
	if !strings.HasSuffix(r.URL.Path, "/raw") {
		h.send(w, http.StatusOK, now.Format(time.RFC3339)+" - "+text)
		return nil
	}
	h.send(w, http.StatusOK, pyjson.NewObject("entries", []any{
		pyjson.NewObject("t", now.Format(time.RFC3339), "m", text),
	}, "size", pyjson.NewObject("cols", 120, "rows", 30)))
	return nil
}

func (h *HTTP) subscribe(_ http.ResponseWriter, r *http.Request) error {
	_, err := h.fields(r)
	return err
}

// fileNames answers GET /internal/files/{type}: names as LoadImageOutput takes them.
func (h *HTTP) fileNames(w http.ResponseWriter, r *http.Request) error {
	kind := r.PathValue("type")
	dir := h.folder(kind)
	if dir == "" {
		return wrong("Invalid directory type")
	}
	type file struct {
		name string
		at   time.Time
	}
	var list []file
	entries, _ := os.ReadDir(dir) // a folder that is not there has no files
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			list = append(list, file{e.Name(), info.ModTime()})
		}
	}
	slices.SortStableFunc(list, func(a, b file) int { return b.at.Compare(a.at) })
	out := []any{}
	for _, f := range list[:min(len(list), maxListed)] {
		out = append(out, f.name+" ["+kind+"]")
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// offered holds the index of templates that can run, which takes a while to make.
type offered struct {
	once  sync.Once
	index []byte
}

// editorTemplate answers GET /templates/{file}: of an installed package of workflow templates, of which index.json
// lists those whose node classes are all known here. A list of templates that cannot run would be worse than none.
func (h *HTTP) editorTemplate(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("file")
	if !filepath.IsLocal(name) || strings.ContainsAny(name, `/\`) {
		return bare(http.StatusNotFound)
	}
	if strings.HasPrefix(name, "index") && path.Ext(name) == ".json" {
		if name != "index.json" { // in other languages, and of logos: the editor falls back
			return bare(http.StatusNotFound)
		}
		h.offered.once.Do(func() { h.offered.index = h.runnable() })
		cached(w, r, jsonType, h.offered.index)
		return nil
	}
	for _, dir := range h.cfg.FrontendTemplates {
		f, info, err := openBelow(dir, name)
		if err != nil {
			continue
		}
		defer func() { _ = f.Close() }()
		kind := mediaType(name)
		if active(kind) {
			kind = "application/octet-stream"
		}
		w.Header().Set("Content-Type", kind)
		http.ServeContent(w, r, "", info.ModTime(), f)
		return nil
	}
	return bare(http.StatusNotFound)
}

// converts reports whether all classes of a template are known.
func (h *HTTP) converts(name string, classes map[string]any) bool {
	body, err := h.readTemplate(name)
	if err != nil {
		return false
	}
	v, err := pyjson.Decode(body)
	graph, ok := v.(*pyjson.Object)
	if err != nil || !ok {
		return false
	}
	_, failure := editor.Convert(graph, func(class string) *pyjson.Object {
		entry, _ := classes[class].(*pyjson.Object)
		return entry
	})
	return failure == nil
}

// maxTemplate bounds the bytes of a template or their index.
const maxTemplate = 16 << 20

// readTemplate reads a file of the packages of templates.
func (h *HTTP) readTemplate(name string) ([]byte, error) {
	for _, dir := range h.cfg.FrontendTemplates {
		f, info, err := openBelow(dir, name)
		if err != nil {
			continue
		}
		defer func() { _ = f.Close() }()
		if info.Size() > maxTemplate {
			return nil, fault.New(fault.TooLarge, "template %s has %d bytes", name, info.Size())
		}
		return io.ReadAll(f)
	}
	return nil, fs.ErrNotExist
}

// runnable is the index of templates without those that have classes which are not known here.
func (h *HTTP) runnable() []byte {
	text, err := h.readTemplate("index.json")
	if err != nil {
		return []byte("[]")
	}
	v, err := pyjson.Decode(text)
	groups, ok := v.([]any)
	if err != nil || !ok {
		h.cfg.Log.Warn().Err(err).Msg("the index of templates cannot be read")
		return []byte("[]")
	}
	classes := h.classes.Describe("")
	out := []any{}
	for _, g := range groups {
		group, _ := g.(*pyjson.Object)
		list, _ := group.At("templates").([]any)
		left := []any{}
		for _, item := range list {
			one, _ := item.(*pyjson.Object)
			if h.converts(one.Text("name")+".json", classes) {
				left = append(left, item)
			}
		}
		if len(left) > 0 {
			out = append(out, pyjson.Joined(group, pyjson.NewObject("templates", left)))
		}
	}
	b, err := wire.Encode(out, wire.JSON)
	if err != nil {
		return []byte("[]")
	}
	return bytes.TrimSpace(b)
}
