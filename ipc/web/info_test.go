package web

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/tests/bubble"
)

// TestModelFiles checks the list of the files of one kind: each with the folder that it lies in, size and times, by the
// older names of kinds too, without files of other types; empty for kinds that are known and have none.
func TestModelFiles(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		top := t.TempDir()
		at := time.Unix(1_700_000_000, 0)
		for name, size := range map[string]int{
			"unet/a.safetensors": 3, "diffusion_models/sub/b.gguf": 5, "diffusion_models/notes.txt": 7, "vae/c.safetensors": 9,
		} {
			path := filepath.Join(top, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, at, at); err != nil {
				t.Fatal(err)
			}
		}
		d := newDoor(t, func(c *Config) { c.Roots.Models = []string{top} })
		const both = `[{"name":"a.safetensors","pathIndex":0,"modified":1700000000.0,"created":1700000000.0,"size":3},` +
			`{"name":"sub/b.gguf","pathIndex":1,"modified":1700000000.0,"created":1700000000.0,"size":5}]`
		for _, c := range []struct {
			path, want string
			status     int
		}{
			{"/experiment/models/diffusion_models", both, 200},
			{"/api/experiment/models/unet", both, 200},
			{"/experiment/models/loras", "[]", 200},
			{"/experiment/models/embeddings", "[]", 200},
			{"/experiment/models/none", `{"code":"not_found","message":"Not Found"}`, 404},
			{"/experiment/models/..%2Fvae", `{"code":"not_found","message":"Not Found"}`, 404},
		} {
			status, body, _ := d.ask("GET", c.path, nil)
			if status != c.status || string(body) != c.want {
				t.Errorf("GET %s: %d %s, want %d %s", c.path, status, body, c.status, c.want)
			}
		}
	})
}
