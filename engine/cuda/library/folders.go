package library

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Off as Search.Folders disables all libraries.
const Off = "off"

// Search says where to look for libraries.
type Search struct {
	Folders string // a list like PATH; Off: nowhere
	ComfyUI string // a ComfyUI tree, whose Python environment has libraries; empty: none
}

// Candidates returns the paths to open a library by on a driver that supports the given CUDA version, best first: the
// named folders, the Python environments of ComfyUI, of $VIRTUAL_ENV and of $CONDA_PREFIX, what the loader finds (a
// name without a folder), the CUDA toolkit's folders, and Python environments of the machine. Files that do not exist
// are left out.
func (s *Search) Candidates(l *Library, driver int) []string {
	if s.Folders == Off {
		return nil
	}
	var paths []string
	add := func(folders ...string) {
		for _, f := range l.Files {
			for _, folder := range folders {
				path := filepath.Join(folder, f.Name)
				if _, err := os.Stat(path); err == nil && driver >= f.Driver && !slices.Contains(paths, path) {
					paths = append(paths, path)
				}
			}
		}
	}
	add(s.Named()...)
	add(l.below(s.environments())...)
	for _, f := range l.Files {
		if driver >= f.Driver {
			paths = append(paths, f.Name)
		}
	}
	add(toolkit()...)
	add(l.below(machine())...)
	return paths
}

// Looked returns the places where Candidates looks, in human-readable form.
func (s *Search) Looked(l *Library) []string {
	if s.Folders == Off {
		return nil
	}
	looked := append(s.Named(), l.below(s.environments())...)
	looked = append(looked, "the loader's path")
	return append(append(looked, toolkit()...), l.below(machine())...)
}

// Named returns the folders that were named.
func (s *Search) Named() []string {
	if s.Folders == Off {
		return nil
	}
	return filepath.SplitList(s.Folders)
}

// environments returns the Python environments that belong to the user.
func (s *Search) environments() []string {
	var list []string
	if s.ComfyUI != "" {
		list = append(list, filepath.Join(s.ComfyUI, "venv"), filepath.Join(s.ComfyUI, ".venv"))
	}
	for _, v := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(v); dir != "" {
			list = append(list, dir)
		}
	}
	return list
}

// machine returns the Python environments that belong to no user: those of the system and below /opt.
func machine() []string {
	list := []string{"/usr/local", "/usr"}
	for _, pattern := range []string{"/opt/*/pyvenv.cfg", "/opt/*/*/pyvenv.cfg", "/opt/*/conda-meta"} {
		marks, _ := filepath.Glob(pattern) // the pattern is well formed
		for _, mark := range marks {
			list = append(list, filepath.Dir(mark))
		}
	}
	return list
}

// toolkit returns the library folders of an installed CUDA toolkit.
func toolkit() []string {
	list := []string{"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		list = append([]string{filepath.Join(home, "lib64")}, list...)
	}
	return list
}

// below returns the library's folders in the packages of Python environments, and the library folder of each itself,
// where conda puts them.
func (l *Library) below(environments []string) []string {
	var list []string
	for _, env := range environments {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			found, _ := fs.Glob(os.DirFS(env), "lib/python3*/"+packages) // the pattern is well formed
			for _, dir := range found {
				for _, wheel := range l.Wheels {
					list = append(list, filepath.Join(env, dir, wheel))
				}
			}
		}
		if env != "/usr" && env != "/usr/local" { // the loader knows those
			list = append(list, filepath.Join(env, "lib"))
		}
	}
	return list
}
