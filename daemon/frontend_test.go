package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindFrontend looks for the editor in every place that docs/http.md names, and in one that has another page.
func TestFindFrontend(t *testing.T) {
	top := t.TempDir()
	page := func(dir string) string {
		dir = filepath.Join(top, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	site := "lib/python3.11/site-packages/"
	pack := site + frontendPackage + "/static"
	comfy, active := page("comfy/venv/"+pack), page("active/"+pack)
	other := page("other/static") // of something else
	templates := filepath.Join(top, "active", site, "comfyui_workflow_templates_core", "templates")
	if err := os.MkdirAll(templates, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"PATH": top, "HOME": top, "CONDA_PREFIX": "", "VIRTUAL_ENV": filepath.Join(top, "active"),
	} {
		t.Setenv(name, value)
	}
	for _, c := range []struct{ flag, comfy, want string }{
		{"", "", ""},
		{comfy, "", comfy},
		{filepath.Dir(comfy), "", comfy},
		{filepath.Join(top, "active"), "", active},
		{filepath.Join(top, "active", site), "", active},
		{filepath.Join(top, "other"), "", other},
		{"auto", filepath.Join(top, "comfy"), comfy},
		{"auto", filepath.Join(top, "none"), active},
	} {
		cfg := Config{Frontend: c.flag, ComfyUI: c.comfy}
		if err := cfg.findFrontend(); err != nil || cfg.Frontend != c.want {
			t.Errorf("--frontend %q, --comfyui %q: %q, %v, want %q", c.flag, c.comfy, cfg.Frontend, err, c.want)
		}
	}
	if got := templatesBeside(active); len(got) != 1 || got[0] != templates {
		t.Errorf("templates beside the editor: %v", got)
	}
	if got := templatesBeside(other); got != nil {
		t.Errorf("templates beside another page: %v", got)
	}
	t.Setenv("VIRTUAL_ENV", filepath.Join(top, "other"))
	for _, flag := range []string{"auto", filepath.Join(top, "none")} {
		cfg := Config{HTTP: "127.0.0.1:0", Frontend: flag}
		var bad *InputError
		if err := cfg.checkHTTP(); !errors.As(err, &bad) || !strings.Contains(err.Error(), frontendPackage) {
			t.Errorf("--frontend %s: %v, want a refusal that names the package", flag, err)
		}
	}
	cfg := Config{Frontend: comfy}
	if err := cfg.checkHTTP(); err == nil {
		t.Error("--frontend without --http was taken")
	}
}
