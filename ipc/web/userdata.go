package web

import (
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/ipc/wire"
	"patchbay/node/pyjson"
)

// The editor stores workflows, settings and what else it likes as files of its user. All are below one folder, which no
// link leads out of.

// userRoutes are the rows of files and settings of users.
func (h *HTTP) userRoutes() []route {
	rows := []route{
		{method: "GET", path: "/users", about: "where files and settings are stored: here", answer: h.users},
		{method: "POST", path: "/users", about: "refused: users are those of --users-file", answer: h.postUsers},
		{method: "GET", path: "/settings", about: "settings of the editor", answer: h.getSettings},
		{method: "GET", path: "/settings/{id}", about: "one setting", answer: h.getSettings},
		{method: "POST", path: "/settings", about: "change settings: {id: value}", answer: h.postSettings},
		{method: "POST", path: "/settings/{id}", about: "change one setting: its value", answer: h.postSettings},
		{
			method: "GET", path: "/userdata", about: "files of the user; dir, recurse, split, full_info",
			answer: h.listUserdata,
		},
		{method: "GET", path: "/v2/userdata", about: "files and folders of the user; path", answer: h.treeUserdata},
		{method: "GET", path: "/userdata/{file}", about: "a file of the user", answer: h.getUserdata},
		{
			method: "POST", path: "/userdata/{file}", about: "store a file of the user; overwrite, full_info",
			answer: h.postUserdata,
		},
		{method: "DELETE", path: "/userdata/{file}", about: "delete a file of the user", answer: h.deleteUserdata},
		{
			method: "POST", path: "/userdata/{file}/move/{dest}", about: "rename a file of the user; overwrite, full_info",
			answer: h.moveUserdata,
		},
	}
	for i := range rows { // the editor is for those who may send jobs
		rows[i].verb = message.VerbSubmit
	}
	return rows
}

// userRoot opens the folder of the user that a request is of, and makes it first if it is to be written to.
func (h *HTTP) userRoot(r *http.Request, write bool) (*os.Root, error) {
	if h.cfg.Users == "" {
		return nil, bare(http.StatusNotFound)
	}
	dir := path.Join(h.cfg.Users, folderOf(from(r)))
	if write {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, message.StoreError(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, bare(http.StatusNotFound)
	}
	return root, nil
}

// nobody is the folder of those who are not told apart, as in ComfyUI.
const nobody = "default"

// folderOf returns the name of the folder of a user. No two users have the same one, and none leads out.
func folderOf(user string) string {
	switch name := strings.ReplaceAll(url.QueryEscape(user), ".", "%2E"); name { // a name may be anything, also ..
	case "":
		return nobody
	case nobody:
		return "%" + hex.EncodeToString([]byte(name[:1])) + name[1:]
	default:
		return name
	}
}

// inside checks the name of a file of a user, "" and "." for the folder itself. The root refuses links that lead out.
func inside(name string) (string, error) {
	clean := path.Clean("./" + strings.ReplaceAll(name, `\`, "/"))
	if strings.HasPrefix(name, "/") || strings.ContainsRune(name, 0) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", bare(http.StatusForbidden)
	}
	return clean, nil
}

func (h *HTTP) users(w http.ResponseWriter, r *http.Request) error {
	root, err := h.userRoot(r, false)
	if err == nil {
		_ = root.Close()
	}
	h.send(w, http.StatusOK, pyjson.NewObject("storage", "server", "migrated", err == nil))
	return nil
}

// postUsers refuses to make a user, as ComfyUI refuses a name that it does not take.
func (h *HTTP) postUsers(http.ResponseWriter, *http.Request) error {
	return wrong("users are those of --users-file, or nobody is told apart")
}

// settingsFile is where ComfyUI keeps them too.
const settingsFile = "comfy.settings.json"

// settingsIn reads the settings of a user. The caller must hold HTTP.settling.
func settingsIn(root *os.Root) *pyjson.Object {
	b, err := root.ReadFile(settingsFile)
	if err == nil {
		if v, err := pyjson.Decode(b); err == nil {
			if o, ok := v.(*pyjson.Object); ok {
				return o
			}
		}
	}
	return pyjson.NewObject()
}

// getSettings answers GET /settings and /settings/{id}.
func (h *HTTP) getSettings(w http.ResponseWriter, r *http.Request) error {
	o := pyjson.NewObject()
	if root, err := h.userRoot(r, false); err == nil {
		h.settling.Lock()
		o = settingsIn(root)
		h.settling.Unlock()
		_ = root.Close()
	}
	if id := r.PathValue("id"); id != "" {
		h.send(w, http.StatusOK, o.At(id))
		return nil
	}
	h.send(w, http.StatusOK, o)
	return nil
}

// maxSettings bounds the bytes of a user's settings.
const maxSettings = 4 << 20

// postSettings answers POST /settings and /settings/{id}.
func (h *HTTP) postSettings(_ http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	v, err := pyjson.Decode(body)
	if err != nil {
		return fault.New(fault.BadRequest, "the body is no JSON: %v", err)
	}
	changed, ok := v.(*pyjson.Object)
	if id := r.PathValue("id"); id != "" {
		changed, ok = pyjson.NewObject(id, v), true
	}
	if !ok {
		return fault.New(fault.BadRequest, "the body is no object of settings")
	}
	root, err := h.userRoot(r, true)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	h.settling.Lock()
	defer h.settling.Unlock()
	b, err := wire.Encode(pyjson.Joined(settingsIn(root), changed), wire.JSON)
	if err != nil {
		return err
	}
	if len(b) > maxSettings {
		return fault.New(fault.TooLarge, "the settings have %d bytes, at most %d are allowed", len(b), maxSettings)
	}
	return replace(root, settingsFile, b)
}

// replace writes a file below a root, as a whole or not at all.
func replace(root *os.Root, name string, data []byte) error {
	temp := path.Join(path.Dir(name), ".patchbay-"+wire.NewID())
	err := writeNew(root, temp, data)
	if err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		_ = root.Remove(temp)
		return refusedFile(err)
	}
	return nil
}

// refusedFile is the answer to a file that cannot be written: 400 for its name, else what is wrong with the disk.
func refusedFile(err error) error {
	for _, disk := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.EMFILE} {
		if errors.Is(err, disk) {
			return message.StoreError(err)
		}
	}
	return bare(http.StatusBadRequest)
}

// fileInfo describes a file as ComfyUI does.
func fileInfo(name string, info fs.FileInfo) *pyjson.Object {
	ms := info.ModTime().UnixMilli()
	return pyjson.NewObject("path", name, "size", info.Size(), "modified", ms, "created", ms)
}

// listUserdata answers GET /userdata.
func (h *HTTP) listUserdata(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if q.Get("dir") == "" {
		return bare(http.StatusBadRequest)
	}
	dir, err := inside(q.Get("dir"))
	if err != nil {
		return err
	}
	root, err := h.userRoot(r, false)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	out := []any{}
	yes := func(name string) bool { return strings.EqualFold(q.Get(name), "true") }
	err = walk(root, dir, yes("recurse"), func(name string, info fs.FileInfo) {
		if info.IsDir() {
			return
		}
		switch {
		case yes("full_info"):
			out = append(out, fileInfo(name, info))
		case yes("split"):
			parts := []any{name}
			for p := range strings.SplitSeq(name, "/") {
				parts = append(parts, p)
			}
			out = append(out, parts)
		default:
			out = append(out, name)
		}
	})
	if err != nil {
		return err
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// maxListed bounds the files in a list.
const maxListed = 20000

// walk calls f for the files and folders in a folder, by paths relative to it. Hidden ones and links are passed over.
func walk(root *os.Root, dir string, recurse bool, f func(name string, info fs.FileInfo)) error {
	info, err := root.Stat(dir)
	if err != nil {
		return bare(http.StatusNotFound)
	}
	if !info.IsDir() {
		return nil
	}
	left := maxListed
	err = fs.WalkDir(root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return nil //nolint:nilerr // a folder that cannot be read has nothing to list
		}
		if strings.HasPrefix(e.Name(), ".") || !e.IsDir() && !e.Type().IsRegular() {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := e.Info(); err == nil {
			if left--; left < 0 {
				return fs.SkipAll
			}
			f(strings.TrimPrefix(name, dir+"/"), info)
		}
		if e.IsDir() && !recurse {
			return fs.SkipDir
		}
		return nil
	})
	return err
}

// treeUserdata answers GET /v2/userdata.
func (h *HTTP) treeUserdata(w http.ResponseWriter, r *http.Request) error {
	dir, err := inside(r.URL.Query().Get("path"))
	if err != nil {
		return bare(http.StatusBadRequest)
	}
	type item struct {
		folder bool
		name   string
		o      *pyjson.Object
	}
	var list []item
	root, err := h.userRoot(r, false)
	if err == nil {
		defer func() { _ = root.Close() }()
		if info, err := root.Stat(dir); err == nil && !info.IsDir() {
			return bare(http.StatusBadRequest)
		}
		err = walk(root, dir, true, func(name string, info fs.FileInfo) {
			whole := path.Join(dir, name)
			o := pyjson.NewObject("name", info.Name(), "path", whole, "type", "directory")
			if !info.IsDir() {
				o.SetAll("type", "file", "size", info.Size(), "modified", float64(info.ModTime().UnixMilli())/1000)
			}
			list = append(list, item{info.IsDir(), strings.ToLower(info.Name()), o})
		})
	}
	if err != nil && dir != "." {
		return bare(http.StatusNotFound)
	}
	slices.SortStableFunc(list, func(a, b item) int {
		if a.folder != b.folder {
			if a.folder {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	out := []any{}
	for _, i := range list {
		out = append(out, i.o)
	}
	h.send(w, http.StatusOK, out)
	return nil
}

// fileOfUser opens the root of a user, and returns the name of the file in a parameter of the path.
func (h *HTTP) fileOfUser(r *http.Request, parameter string, write bool) (*os.Root, string, error) {
	name, err := inside(r.PathValue(parameter))
	if err != nil {
		return nil, "", err
	}
	if name == "." {
		return nil, "", bare(http.StatusBadRequest)
	}
	root, err := h.userRoot(r, write)
	return root, name, err
}

// getUserdata answers GET /userdata/{file}: always as a download, but for the user's own style sheet.
func (h *HTTP) getUserdata(w http.ResponseWriter, r *http.Request) error {
	root, name, err := h.fileOfUser(r, "file", false)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, info, err := openIn(root, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	kind, disposition := mediaType(name), "attachment"
	switch {
	case name == "user.css":
		kind, disposition = "text/css", "inline"
	case active(kind):
		kind = "application/octet-stream"
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Disposition", disposition)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
}

// stored answers with what a file of a user is called, or with all about it.
func (h *HTTP) stored(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	if !strings.EqualFold(r.URL.Query().Get("full_info"), "true") {
		h.send(w, http.StatusOK, name)
		return nil
	}
	info, err := root.Stat(name)
	if err != nil {
		return bare(http.StatusNotFound)
	}
	h.send(w, http.StatusOK, fileInfo(name, info))
	return nil
}

// postUserdata answers POST /userdata/{file}.
func (h *HTTP) postUserdata(w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	root, name, err := h.fileOfUser(r, "file", true)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	h.settling.Lock() // so that of two that may not overwrite one does
	defer h.settling.Unlock()
	if err := absent(r, root, name); err != nil {
		return err
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return refusedFile(err)
	}
	if err := replace(root, name, body); err != nil {
		return err
	}
	return h.stored(w, r, root, name)
}

// absent refuses a name that is taken, if the request says that nothing may be overwritten.
func absent(r *http.Request, root *os.Root, name string) error {
	if _, err := root.Stat(name); err == nil && r.URL.Query().Get("overwrite") == "false" {
		return bare(http.StatusConflict)
	}
	return nil
}

// deleteUserdata answers DELETE /userdata/{file}.
func (h *HTTP) deleteUserdata(w http.ResponseWriter, r *http.Request) error {
	root, name, err := h.fileOfUser(r, "file", false)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Stat(name); err != nil || info.IsDir() || root.Remove(name) != nil {
		return bare(http.StatusNotFound)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// moveUserdata answers POST /userdata/{file}/move/{dest}.
func (h *HTTP) moveUserdata(w http.ResponseWriter, r *http.Request) error {
	to, err := inside(r.PathValue("dest"))
	if err != nil {
		return err
	}
	root, name, err := h.fileOfUser(r, "file", false)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Stat(name); err != nil || info.IsDir() {
		return bare(http.StatusNotFound)
	}
	h.settling.Lock()
	defer h.settling.Unlock()
	if err := absent(r, root, to); err != nil {
		return err
	}
	if err := root.MkdirAll(path.Dir(to), 0o700); err != nil {
		return refusedFile(err)
	}
	if err := root.Rename(name, to); err != nil {
		return refusedFile(err)
	}
	return h.stored(w, r, root, to)
}
