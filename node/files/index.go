package files

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"

	"patchbay/models/source"
	"patchbay/models/weights"
)

// NeededFile is a file that a workflow reads. Size and hash tell it from other files of its name.
type NeededFile struct {
	Kind  string `json:"kind"`            // folder of the models root, or input_images and input_latents
	Name  string `json:"name"`            // as the workflow calls it
	Bytes int64  `json:"bytes,omitempty"` // 0: not known
	// SHA-256 in hex of the header of a model file, or of all of an input; empty: not known
	Hash string `json:"hash,omitempty"`
}

// Same reports whether two descriptions may be of the same file: unknown fields match anything.
func (f NeededFile) Same(g NeededFile) bool {
	return f.Kind == g.Kind && f.Name == g.Name && (f.Bytes == g.Bytes || f.Bytes*g.Bytes == 0) &&
		(f.Hash == g.Hash || f.Hash == "" || g.Hash == "")
}

// Shared reports whether the file is in a models root, where other machines may have the same file. Inputs are local
// to one machine.
func (f NeededFile) Shared() bool { return f.Kind != KindInputImage && f.Kind != KindInputLatent }

// Index caches what is known of the files of the roots; a header is read again when its file has changed. It is safe
// for concurrent use.
type Index struct {
	roots Roots
	mu    sync.Mutex
	known map[string]indexed // by path
}

type indexed struct {
	size, changed int64
	hash          string
}

// NewIndex returns an Index of the roots.
func NewIndex(roots Roots) *Index { return &Index{roots: roots, known: map[string]indexed{}} }

// Models lists the files of these kinds in the models roots, or of all kinds if none is given. A file without a
// readable header is listed without a hash.
func (x *Index) Models(kinds ...string) []NeededFile {
	var out []NeededFile
	if kinds == nil {
		kinds = append(Kinds(), KindGGUF)
	}
	for _, kind := range kinds {
		for _, name := range x.roots.List(kind) {
			if f, ok := x.Find(kind, name); ok {
				out = append(out, f)
			}
		}
	}
	return out
}

// Folders lists the models roots and the input folder.
func (x *Index) Folders() []string {
	out := append([]string(nil), x.roots.Models...)
	if x.roots.Input != "" {
		out = append(out, x.roots.Input)
	}
	return out
}

// Find looks up one file and reports whether it is here.
func (x *Index) Find(kind, name string) (NeededFile, bool) {
	f := NeededFile{Kind: kind, Name: name}
	var path string
	var err error
	if f.Shared() {
		path, err = x.roots.Resolve(kind, kind, name)
	} else {
		path, err = x.roots.Picture(kind, name)
	}
	if err != nil {
		return f, false
	}
	paths := []string{path}
	if f.Shared() {
		if all, err := weights.Paths(path); err == nil {
			paths = all
		}
	}
	now := indexed{changed: source.Modified(paths)}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return f, false
		}
		now.size += info.Size()
	}
	x.mu.Lock()
	was := x.known[path]
	x.mu.Unlock()
	if was.size != now.size || was.changed != now.changed {
		now.hash = hashFile(f, path)
		x.mu.Lock()
		x.known[path] = now
		x.mu.Unlock()
		was = now
	}
	f.Bytes, f.Hash = was.size, was.hash
	return f, true
}

// hashFile hashes the header of a model file, or all of an input; "" if it cannot be read. Files of torch.save have no
// header but a program, which the daemon does not run: their sizes tell them apart.
func hashFile(f NeededFile, path string) (hash string) {
	if !f.Shared() {
		data, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	header, file, err := source.Stat(path, false)
	if err != nil {
		return ""
	}
	_ = file.Close()
	return header.Hash
}

// Lacks returns why a job with these files cannot run here: the first file that is missing or differs, and where it
// was looked for. It returns nil if the job can run.
func (x *Index) Lacks(files []NeededFile) error {
	for _, f := range files {
		had, ok := x.Find(f.Kind, f.Name)
		switch {
		case !ok:
			return fmt.Errorf("no file %s/%s in %s", f.Kind, f.Name, x.roots.Public(strings.Join(x.Folders(), ", ")))
		case !had.Same(f):
			return fmt.Errorf("%s/%s in %s is another file than the one of the job (%s, not %s)", f.Kind, f.Name,
				x.roots.Public(strings.Join(x.Folders(), ", ")), had.short(), f.short())
		}
	}
	return nil
}

func (f NeededFile) short() string {
	return fmt.Sprintf("%d bytes, header hash %s", f.Bytes, f.Hash[:min(12, len(f.Hash))])
}
