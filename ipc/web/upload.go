package web

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"patchbay/fault"
	"patchbay/ipc/message"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
)

// maxUpload bounds an upload, as ComfyUI's default does.
const maxUpload = 100 << 20

// uploadImage answers POST /upload/image.
func (h *HTTP) uploadImage(w http.ResponseWriter, r *http.Request) error {
	return h.upload(w, r, func(data []byte, _ *multipart.Form) ([]byte, error) { return data, nil })
}

// uploadMask answers POST /upload/mask: what is stored is the picture that original_ref names, with the alpha of the
// one that was sent.
func (h *HTTP) uploadMask(w http.ResponseWriter, r *http.Request) error {
	return h.upload(w, r, func(mask []byte, form *multipart.Form) ([]byte, error) {
		v, err := pyjson.Decode([]byte(first(form.Value["original_ref"])))
		ref, ok := v.(*pyjson.Object)
		if err != nil || !ok {
			return nil, fault.At(fault.BadRequest, "original_ref", "original_ref: want {filename, subfolder, type} as JSON")
		}
		dir, name, err := h.locate(ref.Text("filename"), cmp.Or(ref.Text("type"), "output"), ref.Text("subfolder"))
		if err != nil {
			return nil, err
		}
		f, info, err := openBelow(dir, name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		if info.Size() > maxConverted {
			return nil, bare(http.StatusRequestEntityTooLarge)
		}
		original, err := io.ReadAll(f)
		if err != nil {
			return nil, err
		}
		return masked(original, mask)
	})
}

// masked returns a picture as PNG with the alpha of another of the same size, and its texts.
func masked(original, mask []byte) ([]byte, error) {
	pixels, y, x, err := rgba(original)
	if err != nil {
		return nil, fault.At(fault.BadRequest, "original_ref", "original_ref: %v", err)
	}
	alpha, my, mx, err := rgba(mask)
	if err != nil {
		return nil, fault.At(fault.BadRequest, "image", "image: %v", err)
	}
	if y != my || x != mx {
		return nil, fault.At(fault.BadRequest, "image", "image: the mask is %dx%d, the original picture %dx%d", mx, my, x, y)
	}
	for i := 3; i < len(pixels); i += 4 {
		pixels[i] = alpha[i]
	}
	var texts [][2]string
	if prompt, extra, err := picture.WorkflowFrom(original); err == nil {
		if prompt != nil {
			texts = append(texts, [2]string{"prompt", string(prompt)})
		}
		texts = append(texts, picture.ExtraTexts(extra)...)
	}
	return picture.EncodePNG(pixels, y, x, 4, texts...), nil
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// upload stores a picture, of which made makes what is stored.
func (h *HTTP) upload(w http.ResponseWriter, r *http.Request,
	made func([]byte, *multipart.Form) ([]byte, error),
) error {
	form, err := h.form(r)
	if err != nil {
		return err
	}
	defer func() { _ = form.RemoveAll() }()
	if len(form.File["image"]) == 0 {
		return bare(http.StatusBadRequest)
	}
	part := form.File["image"][0]
	name, err := sentName(part)
	if err != nil {
		return err
	}
	kind := cmp.Or(first(form.Value["type"]), "input")
	dir := h.folder(kind)
	if dir == "" {
		return fault.At(fault.BadRequest, "type", "type: want input, output or temp")
	}
	subfolder := first(form.Value["subfolder"])
	sub := path.Clean("./" + filepath.ToSlash(subfolder))
	if !filepath.IsLocal(sub) || strings.HasPrefix(subfolder, "/") || strings.ContainsRune(subfolder, 0) {
		return bare(http.StatusBadRequest)
	}
	data, err := contents(part)
	if err != nil {
		return err
	}
	if data, err = made(data, form); err != nil {
		return err
	}
	there := clashRenames
	if overwrite := first(form.Value["overwrite"]); overwrite == "true" || overwrite == "1" {
		if there = clashReplaces; !may(r.Context(), message.VerbDelete) {
			there = clashRefused
		}
	}
	if name, err = store(dir, sub, name, data, there); err != nil {
		return err
	}
	h.info.stale()
	h.send(w, http.StatusOK, pyjson.NewObject("name", name, "subfolder", subfolder, "type", kind))
	return nil
}

// form reads a body that is a multipart form. The caller must remove its files.
func (h *HTTP) form(r *http.Request) (*multipart.Form, error) {
	err := r.ParseMultipartForm(8 << 20)
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return nil, fault.New(fault.TooLarge, "the body has more than the %d bytes that are allowed",
			max(h.cfg.Body, maxUpload))
	}
	if err != nil {
		return nil, fault.New(fault.BadRequest, "the body is no multipart form: %v", err)
	}
	return r.MultipartForm, nil
}

// contents returns the bytes of a file in a form.
func contents(part *multipart.FileHeader) ([]byte, error) {
	f, err := part.Open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// sentName returns the file name of a part. The one of package multipart lacks the folders, which are refused.
func sentName(part *multipart.FileHeader) (string, error) {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	name := params["filename"]
	if err != nil || name == "" || name != part.Filename || !filepath.IsLocal(name) || len(name) > 200 ||
		strings.ContainsAny(name, "/\\\x00") {
		return "", bare(http.StatusBadRequest)
	}
	return name, nil
}

// clash says what becomes of another file that has the name of one that is stored.
type clash int

const (
	clashRenames  clash = iota // it stays: the new one is called "NAME (1).EXT" and so on
	clashReplaces              // it is gone
	clashRefused               // it stays, and the new one is refused: who sends it may not remove files
)

// store writes a file into a folder below dir, where no link leads out of it, and returns its name.
func store(dir, sub, name string, data []byte, there clash) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", message.StoreError(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", message.StoreError(err)
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(sub, 0o755); err != nil {
		return "", bare(http.StatusBadRequest) // a file or a link is in the way
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	temp := path.Join(sub, ".patchbay-upload-"+hex.EncodeToString(random[:]))
	if err := writeNew(root, temp, data); err != nil {
		_ = root.Remove(temp)
		return "", message.StoreError(err)
	}
	defer func() { _ = root.Remove(temp) }()
	if there == clashReplaces {
		if err := root.Rename(temp, path.Join(sub, name)); err != nil {
			return "", message.StoreError(err)
		}
		return name, nil
	}
	ext := path.Ext(name)
	stem := strings.TrimSuffix(name, ext)
	for i := 1; ; i++ {
		err := root.Link(temp, path.Join(sub, name))
		if err == nil {
			return name, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", message.StoreError(err)
		}
		if there, err := root.ReadFile(path.Join(sub, name)); err == nil && bytes.Equal(there, data) {
			return name, nil
		}
		if there == clashRefused {
			return "", &plain{http.StatusForbidden, map[string]any{"error": "there is another file of this name, and to " +
				"overwrite it needs the right to " + message.VerbSubject(message.VerbDelete, "*") + ": leave out overwrite"}}
		}
		name = fmt.Sprintf("%s (%d)%s", stem, i, ext)
	}
}

func writeNew(root *os.Root, name string, data []byte) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
