package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks bounds the links that are followed from one name to its file.
const maxLinks = 40

// reachable reports whether a model file may be opened: it lies in one of the roots, or the links that lead out of them
// are ones that nobody but root or the user of this process can have made, as in the caches of Hugging Face and on
// shared disks. StrictLinks takes the second away.
func (r *Roots) reachable(path string) bool {
	return r.inside(path) || !r.StrictLinks && r.trusted(path)
}

// trusted reports whether every link on the way to path, from the folder of the roots that it begins in, belongs to
// root or to the user of this process. Links above that folder are the operator's, who has named it.
func (r *Roots) trusted(path string) bool {
	for _, root := range r.places() {
		rel, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		base, err := filepath.EvalSymlinks(root)
		return err == nil && ownLinks(base, strings.Split(rel, string(filepath.Separator)), uint32(os.Geteuid()))
	}
	return false
}

// ownLinks walks the parts of a path from a folder on and reports whether it ends at something that is there and every
// link that it meets belongs to root or user.
func ownLinks(at string, parts []string, user uint32) bool {
	for links := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at) // at holds no link any more
			continue
		}
		next := filepath.Join(at, part)
		info, err := os.Lstat(next)
		if err != nil {
			return false
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if links++; !ok || st.Uid != 0 && st.Uid != user || links > maxLinks {
			return false
		}
		target, err := os.Readlink(next)
		if err != nil {
			return false
		}
		if filepath.IsAbs(target) {
			at = string(filepath.Separator)
		}
		parts = append(strings.Split(target, string(filepath.Separator)), parts...)
	}
	return true
}
