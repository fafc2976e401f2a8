package files

import (
	"path/filepath"
	"strings"

	"patchbay/fault"
)

// Named is the inverse of Resolve: the kind and name under which a model file of the roots is found, on this machine
// and on others that have it. It returns an error for a file that is in no models folder.
func (r *Roots) Named(path string) (kind, name string, err error) {
	for _, kind := range append(Kinds(), KindGGUF) {
		for _, dir := range append(r.Dirs(kind), r.folderRoots()...) {
			rel, err := filepath.Rel(dir, path)
			if err != nil || !filepath.IsLocal(rel) {
				continue
			}
			for _, name := range []string{filepath.ToSlash(rel), filepath.ToSlash(filepath.Dir(rel))} {
				if found, err := r.Resolve(kind, kind, name); err == nil && found == path {
					return kind, name, nil
				}
			}
		}
	}
	return "", "", fault.At(fault.FileMissing, "model", "%s lies in none of the models folders, %s: other hosts find "+
		"files by their names there", path, strings.Join(r.Models, ", "))
}
