package web

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"patchbay/node/files"
	"patchbay/node/picture"
)

// folder returns the folder of a type of files; "" if there is none of that name.
func (h *HTTP) folder(kind string) string {
	switch kind {
	case "input":
		return h.cfg.Roots.Input
	case "output":
		return h.cfg.Roots.Output
	case "temp":
		return h.cfg.Roots.Temp
	}
	return ""
}

// locate checks a file name, type and subfolder as ComfyUI does, and returns the folder and the path below it. The
// error is the status with which ComfyUI refuses them.
func (h *HTTP) locate(filename, kind, subfolder string) (dir, name string, err error) {
	if base, annotated := files.Annotated(filename); base != filename {
		filename, kind = base, annotated
	}
	if filename == "" || filename[0] == '/' || strings.Contains(filename, "..") || strings.ContainsRune(filename, 0) {
		return "", "", bare(http.StatusBadRequest)
	}
	if dir = h.folder(kind); dir == "" {
		return "", "", bare(http.StatusBadRequest)
	}
	sub := path.Clean("./" + filepath.ToSlash(subfolder))
	if !filepath.IsLocal(sub) || strings.HasPrefix(subfolder, "/") || strings.ContainsRune(subfolder, 0) {
		return "", "", bare(http.StatusForbidden)
	}
	return dir, path.Join(sub, path.Base(filename)), nil
}

// view answers GET /view: a file of the input, output or temp folder. No link leads out of it.
func (h *HTTP) view(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	if !q.Has("filename") {
		return bare(http.StatusNotFound)
	}
	kind := "output"
	if q.Has("type") {
		kind = q.Get("type")
	}
	dir, name, err := h.locate(q.Get("filename"), kind, q.Get("subfolder"))
	if err != nil {
		return err
	}
	f, info, err := openBelow(dir, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	head := w.Header()
	disposed(head, name)
	if channel := q.Get("channel"); q.Has("preview") || channel == "rgb" || channel == "a" {
		return h.converted(w, f, info.Size(), q.Get("preview"), channel, q.Has("preview"))
	}
	head.Set("ETag", fmt.Sprintf(`"%x-%x"`, info.ModTime().UnixNano(), info.Size()))
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
}

// disposed says what a file is, by its name. One that a browser might run is a download.
func disposed(head http.Header, name string) {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "", "\n", "").Replace(path.Base(name))
	kind := mediaType(name)
	head.Set("Content-Disposition", `filename="`+quoted+`"`)
	if active(kind) { // a page of this origin could do all that its user can
		kind = "application/octet-stream"
		head.Set("Content-Disposition", `attachment; filename="`+quoted+`"`)
		head.Set("Cache-Control", "no-store")
	}
	head.Set("Content-Type", kind)
}

// openBelow opens a regular file below a folder.
func openBelow(dir, name string) (*os.File, fs.FileInfo, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, bare(http.StatusNotFound)
	}
	defer func() { _ = root.Close() }()
	return openIn(root, name)
}

func openIn(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := root.Stat(name)
	if err != nil || !info.Mode().IsRegular() { // opening a named pipe would wait for a writer
		return nil, nil, bare(http.StatusNotFound)
	}
	f, err := root.Open(name)
	if err != nil {
		return nil, nil, bare(http.StatusNotFound)
	}
	return f, info, nil
}

// mediaType returns the type of a file by its ending, the same on every machine for those that matter.
func mediaType(name string) string {
	switch ext := strings.ToLower(path.Ext(name)); ext {
	case ".png", ".webp", ".gif", ".bmp", ".avif":
		return "image/" + ext[1:]
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".mp4", ".webm":
		return "video/" + ext[1:]
	case ".txt", ".md":
		return "text/plain; charset=utf-8"
	case ".json":
		return "application/json"
	case ".svg":
		return "image/svg+xml"
	default:
		if kind := mime.TypeByExtension(ext); kind != "" {
			return kind
		}
		return "application/octet-stream"
	}
}

// active reports whether a browser might run what is in a file of a type.
func active(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	return strings.Contains(kind, "html") || strings.Contains(kind, "xml") || strings.Contains(kind, "script") ||
		kind == "text/css"
}

// maxConverted bounds the bytes of a file that is decoded to be shown in another form.
const maxConverted = 256 << 20

// converted answers with a picture in another form: channel rgb or a as PNG, or small as JPEG. ComfyUI's preview is
// WebP by default, for which there is no encoder here.
func (h *HTTP) converted(w http.ResponseWriter, f io.Reader, size int64, preview, channel string, small bool) error {
	if size > maxConverted {
		return bare(http.StatusRequestEntityTooLarge)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConverted))
	if err != nil {
		return err
	}
	pixels, y, x, err := rgba(data)
	if err != nil {
		return bare(http.StatusUnsupportedMediaType)
	}
	var out []byte
	kind := "image/png"
	switch {
	case small && channel == "a":
		out = picture.EncodePNG(alphaOnly(pixels), y, x, 4)
	case small:
		quality := 90
		last := preview[strings.LastIndexByte(preview, ';')+1:]
		if n, err := strconv.Atoi(last); err == nil {
			quality = n
		}
		if out, err = asJPEG(opaque(pixels), y, x, quality); err != nil {
			return err
		}
		kind = "image/jpeg"
	case channel == "a":
		out = picture.EncodePNG(alphaOnly(pixels), y, x, 4)
	default:
		out = picture.EncodePNG(withoutAlpha(pixels), y, x, 3)
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out)
	return nil
}

// rgba decodes the first picture of a file into 8-bit pixels [Y, X, 4].
func rgba(data []byte) (pixels []byte, y, x int, err error) {
	im, mask, err := picture.Decode(data)
	if err != nil {
		return nil, 0, 0, err
	}
	im, y, x = im.Widened(3), im.Y, im.X
	pixels = make([]byte, 4*y*x)
	hasAlpha := mask != nil && mask.Y == y && mask.X == x
	for i := range y * x {
		for c := range 3 {
			pixels[4*i+c] = byte(255*im.Data[3*i+c] + 0.5)
		}
		pixels[4*i+3] = 255
		if hasAlpha { // the mask is 1 where a picture is transparent
			pixels[4*i+3] = byte(255*(1-mask.Data[i]) + 0.5)
		}
	}
	return pixels, y, x, nil
}

// asJPEG encodes pixels [Y, X, 4] as JPEG.
func asJPEG(pixels []byte, y, x, quality int) ([]byte, error) {
	var b bytes.Buffer
	im := &image.NRGBA{Pix: pixels, Stride: 4 * x, Rect: image.Rect(0, 0, x, y)}
	err := jpeg.Encode(&b, im, &jpeg.Options{Quality: min(max(quality, 1), 100)})
	return b.Bytes(), err
}

func alphaOnly(pixels []byte) []byte {
	out := make([]byte, len(pixels))
	for i := 3; i < len(pixels); i += 4 {
		out[i] = pixels[i]
	}
	return out
}

func opaque(pixels []byte) []byte {
	out := slices.Clone(pixels)
	for i := 3; i < len(out); i += 4 {
		out[i] = 255
	}
	return out
}

func withoutAlpha(pixels []byte) []byte {
	out := make([]byte, 0, len(pixels)/4*3)
	for p := range slices.Chunk(pixels, 4) {
		out = append(out, p[:3]...)
	}
	return out
}
