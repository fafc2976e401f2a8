package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"patchbay/fault"
)

// FileRef names a saved file as ComfyUI's ui dictionaries do.
type FileRef struct {
	Filename  string `json:"filename" msgpack:"filename"`
	Subfolder string `json:"subfolder" msgpack:"subfolder"`
	Type      string `json:"type" msgpack:"type"`
}

// maxFileName bounds the bytes of the file name in a prefix. It leaves room for counter and extension in the 255 bytes
// that file systems allow.
const maxFileName = 230

// CheckPrefix replaces the variables of a filename_prefix (%width%, %height%, %year% ... %second%; local time) and
// returns it as a clean relative path. A prefix that leaves the output folder is refused: code file_outside_root.
func CheckPrefix(prefix string, width, height int) (string, error) {
	if strings.Contains(prefix, "%") {
		now := time.Now()
		two := func(n int) string { return fmt.Sprintf("%02d", n) }
		prefix = strings.NewReplacer("%width%", strconv.Itoa(width), "%height%", strconv.Itoa(height), "%year%",
			strconv.Itoa(now.Year()),
			"%month%", two(int(now.Month())), "%day%", two(now.Day()), "%hour%", two(now.Hour()), "%minute%", two(now.Minute()),
			"%second%", two(now.Second())).Replace(prefix)
	}
	clean := path.Clean(prefix) // "" becomes "."
	switch {
	case !filepath.IsLocal(filepath.FromSlash(clean)):
		return "", fault.Named(fault.FileOutsideRoot, "filename_prefix", "%q leaves the output folder; give a name or "+
			"a path below it", prefix)
	case strings.ContainsRune(clean, 0):
		return "", fault.Bad("filename_prefix", "%q holds a NUL character", prefix)
	case len(path.Base(clean)) > maxFileName:
		return "", fault.Bad("filename_prefix", "file name of %d bytes, at most %d are allowed", len(path.Base(clean)),
			maxFileName)
	}
	return clean, nil
}

// Commit writes an output into a folder under the name that ComfyUI would choose: <prefix>_<counter>_<ext>, the counter
// one above the highest there. The file appears complete or not at all, and never replaces another one, however many
// commits run at once. Errors are *Failure: disk_full where the disk or quota is used up, file_outside_root if the
// folder is reached through a link that leaves outputDir.
func Commit(outputDir string, out Output) (FileRef, error) {
	folder, sub, name, err := place(outputDir, out)
	if err != nil {
		return FileRef{}, err
	}
	temp, err := staged(folder, out.Data)
	if err != nil {
		return FileRef{}, writeFailure(out, err)
	}
	defer func() { _ = os.Remove(temp) }()
	return publishNext(folder, sub, name, temp, out, publish)
}

// CommitStaged is Commit for a file at path on the same file system: its final name becomes a second hard link to it,
// and path stays. The name is on disk when CommitStaged returns. Called again after a crash, it finds the link that it
// made and returns that name: there is never a second file. Where hard links are impossible, the contents are copied
// as Commit does.
func CommitStaged(outputDir string, out Output, path string) (FileRef, error) {
	folder, sub, name, err := place(outputDir, out)
	if err != nil {
		return FileRef{}, err
	}
	ref := FileRef{Filename: linkOf(folder, path), Subfolder: sub, Type: out.Type}
	if ref.Filename == "" {
		ref, err = publishNext(folder, sub, name, path, out, os.Link)
	}
	if _, ok := errors.AsType[*os.LinkError](err); ok {
		if out.Data, err = os.ReadFile(path); err != nil {
			return FileRef{}, writeFailure(out, err)
		}
		ref, err = Commit(outputDir, out)
	}
	if err != nil {
		return FileRef{}, err
	}
	if err := SyncFolder(folder); err != nil {
		return FileRef{}, writeFailure(out, err)
	}
	return ref, nil
}

// SyncFolder syncs a folder and its parent, so that the names in the folder and its own name are on disk: syncing a
// file does not guarantee that. Folders without permission and file systems that cannot sync folders are skipped.
func SyncFolder(dir string) error {
	for _, dir := range []string{dir, filepath.Dir(dir)} {
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		if err = f.Sync(); errors.Is(err, syscall.EINVAL) {
			err = nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// linkOf returns the name in folder of a hard link to path, "" if there is none.
func linkOf(folder, path string) string {
	self, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if st, ok := self.Sys().(*syscall.Stat_t); ok && st.Nlink < 2 {
		return "" // path is the only name
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && os.SameFile(self, info) {
			return e.Name()
		}
	}
	return ""
}

// place makes the folder of an output and returns it with its path below outputDir and the first part of the file name.
func place(outputDir string, out Output) (folder, sub, name string, err error) {
	prefix, err := CheckPrefix(out.Prefix, out.Width, out.Height)
	if err != nil {
		return "", "", "", err
	}
	if sub = path.Dir(prefix); sub == "." {
		sub = ""
	}
	folder = filepath.Join(outputDir, filepath.FromSlash(sub))
	if inside, err := makeBelow(outputDir, folder); err != nil {
		return "", "", "", writeFailure(out, err)
	} else if !inside {
		return "", "", "", fault.New(fault.FileOutsideRoot,
			"save %s: the folder %s is a link that leaves the output folder", out.Prefix, folder)
	}
	return folder, sub, path.Base(prefix), nil
}

// makeBelow makes a folder below dir, and reports false, and makes nothing, if a link on the way leaves dir.
func makeBelow(dir, folder string) (inside bool, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	base, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	real, missing := "", ""
	for { // up to the first folder that is there
		if real, err = filepath.EvalSymlinks(folder); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		folder, missing = filepath.Dir(folder), filepath.Join(filepath.Base(folder), missing)
	}
	if err != nil || !within(base, real) || missing == "" {
		return err == nil && within(base, real), err
	}
	root, err := os.OpenRoot(base) // it follows no link out of base that somebody makes meanwhile
	if err != nil {
		return false, err
	}
	below, err := filepath.Rel(base, filepath.Join(real, missing))
	if err == nil {
		err = root.MkdirAll(below, 0o755)
	}
	return true, errors.Join(err, root.Close())
}

// publishNext gives temp the next free name of the folder.
func publishNext(folder, sub, name, temp string, out Output, publish func(temp, final string) error) (FileRef, error) {
	for counter := nextCounter(folder, name); ; counter++ {
		file := fmt.Sprintf("%s_%05d_%s", name, counter, out.Ext)
		if out.Bare {
			file = fmt.Sprintf("%s_%05d%s", name, counter, out.Ext)
		}
		err := publish(temp, filepath.Join(folder, file))
		if err == nil {
			return FileRef{Filename: file, Subfolder: sub, Type: out.Type}, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return FileRef{}, writeFailure(out, err)
		}
	}
}

// staged writes data into a new hidden file of the folder and syncs it.
func staged(folder string, data []byte) (string, error) {
	f, err := os.CreateTemp(folder, ".patchbay-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// publish gives a staged file its final name; the error is fs.ErrExist if that is taken. A hard link does it in one
// step; where the file system has none, an empty file reserves the name first.
func publish(temp, final string) error {
	err := os.Link(temp, final)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(final, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(temp, final)
}

// nextCounter returns ComfyUI's next counter: one above the largest number between "<name>_" and the next dot or
// underscore; files without a number count as 0.
func nextCounter(folder, name string) int {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 1
	}
	highest := 0
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), name+"_")
		if !ok {
			continue
		}
		digits, _, _ := strings.Cut(rest, ".")
		digits, _, _ = strings.Cut(digits, "_")
		if n, err := strconv.Atoi(strings.TrimSpace(digits)); err == nil && n > highest && n < 1<<40 {
			highest = n
		}
	}
	return highest + 1
}

func writeFailure(out Output, err error) error {
	code := fault.Internal
	if fault.IsDiskFull(err) {
		code = fault.DiskFull
	}
	f := fault.New(code, "save %s: %v", out.Prefix, err)
	f.Node, f.Cause = out.Node, err
	return f
}

// KindSocket is the kind of outputs that are for the client's websocket alone (SaveImageWebsocket).
const KindSocket = "websocket"

// KindAudio is the kind of sounds.
const KindAudio = "audio"

// Output is one file that a node produced. It is not in the output folder until Commit puts it there.
type Output struct {
	Node   string
	Index  int    // position among the outputs of the node
	Kind   string // "images", "latents" or "audio", the key in ComfyUI's ui dictionary
	Prefix string // filename_prefix, variables replaced, checked to stay in the folder
	Type   string // "output" or "temp"
	Ext    string // with the dot
	Bare   bool   // the name ends with the number, in other names an underscore follows it: both are ComfyUI's
	Data   []byte
	Width  int // pixels; 0 for latents
	Height int
}
