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

// NeededFile is a file that a workflow reads, told apart from others of its name by size and hash.
type NeededFile struct {
	Kind  string `json:"kind"`            // folder of the models root, or input_images and input_latents
	Name  string `json:"name"`            // as the workflow calls it
	Bytes int64  `json:"bytes,omitempty"` // 0: not known
	// SHA-256 in hex, of the header of a model file, of the whole of an input; empty: not known
	Hash string `json:"hash,omitempty"`
}

// Same tells whether two descriptions can be of one file: what is not known fits everything.
func (f NeededFile) Same(g NeededFile) bool {
	return f.Kind == g.Kind && f.Name == g.Name && (f.Bytes == g.Bytes || f.Bytes*g.Bytes == 0) &&
		(f.Hash == g.Hash || f.Hash == "" || g.Hash == "")
}

// Shared tells whether the file lies in a models root, where other machines may have the same; inputs are one machine's
// own.
func (f NeededFile) Shared() bool { return f.Kind != KindInputImage && f.Kind != KindInputLatent }

// Stock knows the files of the roots. Headers are read once and again when a file has changed. Safe for concurrent use.
type Stock struct {
	roots Roots
	mu    sync.Mutex
	known map[string]stocked // by path
}

type stocked struct {
	size, changed int64
	hash          string
}

// NewStock returns a Stock of the roots.
func NewStock(roots Roots) *Stock { return &Stock{roots: roots, known: map[string]stocked{}} }

// Models lists the files of the models roots. A file without a readable header is listed without a hash.
func (s *Stock) Models() []NeededFile {
	var out []NeededFile
	for _, kind := range append(Kinds(), KindGGUF) {
		for _, name := range s.roots.List(kind) {
			if f, ok := s.Find(kind, name); ok {
				out = append(out, f)
			}
		}
	}
	return out
}

// Folders lists the models roots and the input folder.
func (s *Stock) Folders() []string {
	out := append([]string(nil), s.roots.Models...)
	if s.roots.Input != "" {
		out = append(out, s.roots.Input)
	}
	return out
}

// Find looks for one file.
func (s *Stock) Find(kind, name string) (NeededFile, bool) {
	f := NeededFile{Kind: kind, Name: name}
	var path string
	var err error
	if f.Shared() {
		path, err = s.roots.Resolve(kind, kind, name)
	} else {
		path, err = s.roots.Picture(kind, name)
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
	now := stocked{changed: source.Modified(paths)}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return f, false
		}
		now.size += info.Size()
	}
	s.mu.Lock()
	was := s.known[path]
	s.mu.Unlock()
	if was.size != now.size || was.changed != now.changed {
		now.hash = hashFile(path, f.Shared())
		s.mu.Lock()
		s.known[path] = now
		s.mu.Unlock()
		was = now
	}
	f.Bytes, f.Hash = was.size, was.hash
	return f, true
}

// hashFile hashes the header of a model file, or the whole of an input; "" if it cannot be read.
func hashFile(path string, model bool) string {
	if !model {
		data, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	hash := ""
	err := ReadHeader(path, false, func(c Checkpoint, _ *weights.File, _ *weights.Set) error {
		hash = c.Hash
		return nil
	})
	if err != nil {
		return ""
	}
	return hash
}

// Lacks returns why a job with these files cannot run here: the first file that is missing or another one, and where it
// was looked for. nil: it can.
func (s *Stock) Lacks(files []NeededFile) error {
	for _, f := range files {
		had, ok := s.Find(f.Kind, f.Name)
		switch {
		case !ok:
			return fmt.Errorf("no file %s/%s in %s", f.Kind, f.Name, strings.Join(s.Folders(), ", "))
		case !had.Same(f):
			return fmt.Errorf("%s/%s in %s is another file than the one of the job (%s, not %s)", f.Kind, f.Name,
				strings.Join(s.Folders(), ", "), had.short(), f.short())
		}
	}
	return nil
}

func (f NeededFile) short() string {
	return fmt.Sprintf("%d bytes, header hash %s", f.Bytes, f.Hash[:min(12, len(f.Hash))])
}
