package tests

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"patchbay/models"
)

// namedAnyway are the files, or folders if they end in a slash, that name a family outside of families' folders, with
// the reason.
var namedAnyway = map[string]string{
	"node/classes/controlnet.go": "ComfyUI's name of a class",
	"node/media/probe.go":        "what ffprobe calls a part of a colour",
	"cli/":                       anExample,
	"models/family/diffusion.go": aFormula,
	"models/family/detect.go":    "kinds of files that are not supported, whose names begin like those of relatives",
	"models/latent/formats.go":   anAutoencoder,
	"models/vae/config.go":       anAutoencoder, "models/vae/layers.go": anAutoencoder,
	"models/vae/tiled.go": anAutoencoder, "models/vae/chain.go": anAutoencoder,
	"models/vae/vae.go": anAutoencoder, "models/vae/walk.go": anAutoencoder, "models/vae/wan.go": anAutoencoder,
	"models/sampling/model.go":        aFormula,
	"models/sampling/model_tables.go": aFormula, "models/sampling/schedule_curves.go": aFormula,
	"node/value/client_request.go": aClass,
	"node/classes/conditioning.go": aClass, "node/classes/image_resize.go": aClass, "node/classes/latent.go": aClass,
	"node/classes/load.go": aClass, "node/classes/model.go": aClass, "node/classes/samplers.go": aClass,
	"node/classes/qwen_image21.go": aClass, "node/classes/boxes.go": aClass,
	"node/classes/text.go": aClass, "node/classes/mask.go": aClass, "node/classes/wan.go": aClass,
	"node/classes/minimaxh3.go": aClass, "node/classes/ltx.go": aClass, "node/classes/ltx_text.go": aClass,
	"node/classes/ltx_sound.go": aClass, "node/classes/ltx_guides.go": aClass, "node/classes/all.go": aClass,
}

const (
	anAutoencoder = "an autoencoder that other families use too"

	anExample = "a released model or the demo's file as an example or default of a command"
	aFormula  = "a time line or schedule that ComfyUI's class for it names, of several families"
	aClass    = "names of ComfyUI's classes, modules, categories and choices, which workflows carry"
)

// familyFolders returns the folders of the table's rows, from its imports, and the number of rows.
func familyFolders(files []goFile) (out []string, rows int) {
	for _, f := range files {
		if f.path != "models/models.go" {
			continue
		}
		packages := map[string]bool{}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if list, ok := n.(*ast.CompositeLit); ok {
				for _, row := range list.Elts {
					if call, ok := row.(*ast.CallExpr); ok {
						if s, ok := call.Fun.(*ast.SelectorExpr); ok && len(call.Args) == 0 {
							packages[s.X.(*ast.Ident).Name], rows = true, rows+1
						}
					}
				}
			}
			return true
		})
		for _, p := range imports(f) {
			if name := p[strings.LastIndexByte(p, '/')+1:]; packages[name] {
				out = append(out, strings.TrimPrefix(p, "patchbay/"))
			}
		}
	}
	return out, rows
}

// familyWords returns a pattern for the names of families and of their folders.
func familyWords(folders []string) *regexp.Regexp {
	var words []string
	add := func(name string) {
		if len(name) > 3 {
			words = append(words, "(?i:"+regexp.QuoteMeta(name)+")")
			return
		}
		// a short name may begin other words, such as want
		upper := strings.ToUpper(name[:1]) + name[1:]
		words = append(words, "(?:^|[^a-zA-Z])"+name+"(?:[^a-z]|$)", upper+"(?:[^a-z]|$)")
	}
	for _, f := range models.Families() {
		add(f.Name)
	}
	for _, dir := range folders {
		add(dir[strings.LastIndexByte(dir, '/')+1:])
	}
	return regexp.MustCompile(strings.Join(words, "|"))
}

// naming lists the identifiers, strings and imports of a file that name a family.
func naming(f goFile, words *regexp.Regexp) []string {
	var out []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		text := ""
		switch n := n.(type) {
		case *ast.Ident:
			text = n.Name
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				text, _ = strconv.Unquote(n.Value)
			}
		}
		if words.MatchString(text) {
			out = append(out, text)
		}
		return true
	})
	return out
}

// TestLayoutFamiliesAreNamedInOnePlace checks that a family is named only in its own folder, in the table of rows, in
// tests and in the places of namedAnyway.
func TestLayoutFamiliesAreNamedInOnePlace(t *testing.T) {
	files := parse(t)
	folders, rows := familyFolders(files)
	if len(folders) < 8 || rows != len(models.Families()) {
		t.Fatalf("models/models.go has %d rows of the folders %v for %d families", rows, folders, len(models.Families()))
	}
	words, used := familyWords(folders), map[string]bool{}
	for _, f := range files {
		if f.test || f.path == "models/models.go" || slices.Contains(folders, f.dir) || strings.HasPrefix(f.dir, "tests") ||
			testOnly(f.dir) || slices.Contains(forTests, f.dir) {
			continue
		}
		found := naming(f, words)
		if len(found) == 0 {
			continue
		}
		top, _, _ := strings.Cut(f.path, "/")
		used[f.path], used[top+"/"] = true, true
		if namedAnyway[f.path]+namedAnyway[top+"/"] == "" {
			t.Errorf("%s names families: %q", f.path, found)
		}
	}
	for path := range namedAnyway {
		if !used[path] {
			t.Errorf("%s names no family and may leave the list of exceptions", path)
		}
	}
}
