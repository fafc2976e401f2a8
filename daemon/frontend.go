package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// frontendPackage is the Python package of ComfyUI's editor: static files, which users install themselves.
const frontendPackage = "comfyui_frontend_package"

// findFrontend makes --frontend the folder with the editor's index.html. A folder that is named may be that one, the
// package, or an environment that has it.
func (c *Config) findFrontend() error {
	if c.Frontend == "" {
		return nil
	}
	places := []string{c.Frontend}
	if c.Frontend == "auto" {
		places = c.environments()
	}
	for _, place := range places {
		for _, pattern := range []string{
			"", "static", frontendPackage + "/static", "lib/python3*/site-packages/" + frontendPackage + "/static",
			"Lib/site-packages/" + frontendPackage + "/static",
		} {
			found, _ := filepath.Glob(filepath.Join(place, pattern, "index.html")) // the pattern is well-formed
			for _, index := range found {
				if c.Frontend == "auto" && !strings.Contains(index, frontendPackage) {
					continue // some other page
				}
				dir, err := filepath.Abs(filepath.Dir(index))
				if err != nil {
					return err
				}
				c.Frontend = dir
				return nil
			}
		}
	}
	if c.Frontend == "auto" {
		return refuse("--frontend auto: %s is in none of %s; install comfyui-frontend-package with pip, or name a folder",
			frontendPackage, strings.Join(places, ", "))
	}
	return refuse("--frontend %s: it has no index.html, nor a package %s that has", c.Frontend, frontendPackage)
}

// environments are the places where Python keeps packages: in ComfyUI's tree, in the environment that is active, in
// that of the python3 of PATH, and in the user's and the system's folders.
func (c *Config) environments() (out []string) {
	if c.ComfyUI != "" {
		const portable = "../python_embeded" //nolint:misspell // its name in ComfyUI for Windows
		for _, name := range []string{".venv", "venv", "../.venv", "../venv", portable} {
			out = append(out, filepath.Join(c.ComfyUI, name))
		}
	}
	for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
		if dir := os.Getenv(name); dir != "" {
			out = append(out, dir)
		}
	}
	if python, err := exec.LookPath("python3"); err == nil {
		out = append(out, filepath.Dir(filepath.Dir(python)))
	}
	if home, err := os.UserHomeDir(); err == nil {
		out = append(out, filepath.Join(home, ".local"))
	}
	return append(out, "/usr/local", "/usr/lib/python3/dist-packages")
}

// templatesBeside returns the folders of workflow templates that are installed beside the editor.
func templatesBeside(frontend string) []string {
	if filepath.Base(filepath.Dir(frontend)) != frontendPackage {
		return nil
	}
	dirs, _ := filepath.Glob(filepath.Join(frontend, "../../comfyui_workflow_templates*/templates")) // well-formed
	return dirs
}
