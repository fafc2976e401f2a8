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

// reachable reports whether a model file may be opened: it is in one of the roots, or only root or the user of this
// process can have made the links that lead out of them, as in the caches of Hugging Face and on shared disks.
// StrictLinks rules out the latter.
func (r *Roots) reachable(path string) bool {
	return r.inside(path) || !r.StrictLinks && r.trusted(path)
}

// trusted reports whether every link on the way to path, from the root that it is below, belongs to root or to the
// user of this process. Links above that root are the operator's own choice.
func (r *Roots) trusted(path string) bool {
	for _, root := range r.places() {
		rel, err := filepath.Rel(root, path)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		base, err := filepath.EvalSymlinks(root)
		return err == nil && trustedSymlinks(base, strings.Split(rel, string(filepath.Separator)), uint32(os.Geteuid()))
	}
	return false
}

// trustedSymlinks follows the parts of a path from the folder at and reports whether they lead to something that exists
// and every link on the way belongs to root or user.
func trustedSymlinks(at string, parts []string, user uint32) bool {
	for links := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at) // at contains no links
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
