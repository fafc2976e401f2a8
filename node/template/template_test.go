package template_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/node/classes"
	"patchbay/node/files"
	"patchbay/node/pyjson"
	"patchbay/node/template"
)

// describe is object_info without any model files, but one picture in the input folder.
func describe(t *testing.T) template.Describe {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there.png"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	roots, catalogue := files.Roots{Input: dir}, classes.All()
	return func(class string) map[string]any { return catalogue.ObjectInfo(roots, class) }
}

const flow = `"3": {"class_type": "KSampler", "inputs": {"seed": 1, "steps": 12, "cfg": 3.5, "sampler_name": "euler",
  "scheduler": "simple", "denoise": 1.0, "latent_image": ["5", 0]}},
 "5": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 1}},
 "5.a": {"class_type": "ImageScale", "inputs": {"upscale_method": "area", "width": 128, "height": 128,
  "crop": "center"}},
 "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a heart"}},
 "7": {"class_type": "LoadImage", "inputs": {"image": ""}},
 "8": {"class_type": "VAEEncodeTiled", "inputs": {"tile_size": 512}}`

func parsed(t *testing.T, about string) (*template.Template, error) {
	t.Helper()
	return template.Parse("heart", []byte(`{"patchbay": `+about+`, `+flow+`}`), describe(t))
}

func object(t *testing.T, text string) *pyjson.Object {
	t.Helper()
	v, err := pyjson.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*pyjson.Object)
}

const all = `{"about": "hearts", "parameters": {"prompt": "6.text", "seed": "3.seed", "cfg": "3.cfg",
  "width": ["5.width", "5.a.width"], "sampler": "3.sampler_name", "picture": "7.image", "overlap": "8.overlap"}}`

// TestValues fills in values as JSON and as forms have them, and values that are refused with the name of the
// parameter and what is allowed.
func TestValues(t *testing.T) {
	tp, err := parsed(t, all)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(tp.Names(), " "); tp.About != "hearts" || got !=
		"prompt seed cfg width sampler picture overlap" {
		t.Errorf("%q has the parameters %s", tp.About, got)
	}
	w, sent, err := tp.Filled(object(t, `{"prompt": "a star", "seed": 18446744073709551615, "cfg": "2", "width": "256",
		"picture": "data:image/png;base64,iVBORw0KGgo="}`))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[[2]string]any{
		{"6", "text"}: "a star", {"3", "seed"}: uint64(math.MaxUint64), {"3", "cfg"}: 2.0, {"5", "width"}: int64(256),
		{"5.a", "width"}: int64(256), {"5", "height"}: int64(128), {"3", "sampler_name"}: "euler",
		{"7", "image"}: "patchbay-picture.png",
	} {
		if got, _ := w.Input(at[0], at[1]); got != want {
			t.Errorf("%s of node %s is %v (%T), want %v", at[1], at[0], got, got, want)
		}
	}
	if got := string(sent["patchbay-picture.png"]); got != "\x89PNG\r\n\x1a\n" || len(sent) != 1 {
		t.Errorf("the files are %q", sent)
	}
	if _, given := w.Input("8", "overlap"); given {
		t.Error("a parameter that was not given has a value")
	}
	if again, _, err := tp.Filled(object(t, `{"picture": "there.png"}`)); err != nil {
		t.Error(err)
	} else if got, _ := again.Input("6", "text"); got != "a heart" {
		t.Errorf("the text is %q, want the default: a request has changed the template", got)
	}
	for body, want := range map[string][2]string{
		`{"picture": "there.png", "colour": 1}`:        {fault.BadRequest, "colour"},
		`{"seed": 2}`:                                  {fault.InputMissing, "picture"},
		`{"picture": ""}`:                              {fault.InvalidInput, "picture"},
		`{"picture": 7}`:                               {fault.InvalidInput, "picture"},
		`{"picture": "data:image/png;base64,%"}`:       {fault.InvalidInput, "picture"},
		`{"picture": "there.png", "seed": -1}`:         {fault.TooSmall, "seed"},
		`{"picture": "there.png", "seed": 1.5}`:        {fault.InvalidInput, "seed"},
		`{"picture": "there.png", "seed": "7x"}`:       {fault.InvalidInput, "seed"},
		`{"picture": "there.png", "seed": true}`:       {fault.InvalidInput, "seed"},
		`{"picture": "there.png", "width": 1e9}`:       {fault.TooBig, "width"},
		`{"picture": "there.png", "cfg": NaN}`:         {fault.InvalidInput, "cfg"},
		`{"picture": "there.png", "cfg": "NaN"}`:       {fault.InvalidInput, "cfg"},
		`{"picture": "there.png", "cfg": Infinity}`:    {fault.InvalidInput, "cfg"},
		`{"picture": "there.png", "cfg": true}`:        {fault.InvalidInput, "cfg"},
		`{"picture": "there.png", "cfg": [1]}`:         {fault.InvalidInput, "cfg"},
		`{"picture": "there.png", "prompt": 3}`:        {fault.InvalidInput, "prompt"},
		`{"picture": "there.png", "prompt": ["6", 0]}`: {fault.InvalidInput, "prompt"},
		`{"picture": "there.png", "sampler": "best"}`:  {fault.NotInList, "sampler"},
		`{"picture": "there.png", "sampler": ["3",0]}`: {fault.NotInList, "sampler"},
	} {
		_, _, err := tp.Filled(object(t, body))
		e := fault.From(err)
		if e == nil || e.Code != want[0] || e.Field != want[1] {
			t.Errorf("%s is answered with %+v, want %v", body, e, want)
			continue
		}
		limited := slices.Contains([]string{fault.BadRequest, fault.TooSmall, fault.TooBig, fault.NotInList}, e.Code)
		if limited != (e.Extra["allowed"] != nil) {
			t.Errorf("%s: what is allowed is %v", body, e.Extra)
		}
	}
	values := object(t, `{"picture": "there.png"}`)
	values.Set("seed", []byte("x"))
	if _, _, err := tp.Filled(values); !fault.Is(err, fault.InvalidInput) {
		t.Errorf("a file for a number is answered with %v", err)
	}
}

// TestSchema looks at what clients are told of parameters.
func TestSchema(t *testing.T) {
	tp, err := parsed(t, all)
	if err != nil {
		t.Fatal(err)
	}
	s := tp.Schema()
	p := s.In("properties")
	for name, want := range map[string]map[string]any{
		"prompt":  {"type": "string", "default": "a heart"},
		"seed":    {"type": "integer", "minimum": int64(0), "maximum": uint64(math.MaxUint64), "default": int64(1)},
		"cfg":     {"type": "number", "minimum": 0.0, "default": 3.5},
		"sampler": {"type": "string", "default": "euler"},
		"picture": {"type": "string", "format": "file", "default": nil},
		"overlap": {"type": "integer", "default": int64(64)},
	} {
		for k, v := range want {
			if got := p.In(name).At(k); got != v {
				t.Errorf("%s of %s is %v (%T), want %v", k, name, got, got, v)
			}
		}
	}
	if list, _ := p.In("sampler").At("enum").([]any); !slices.Contains(list, any("heun")) {
		t.Errorf("the samplers are %v", list)
	}
	if got, _ := s.At("required").([]any); len(got) != 1 || got[0] != "picture" {
		t.Errorf("required is %v, want the picture", got)
	}
}

// TestBadTemplates reads files that are refused, each with the reason.
func TestBadTemplates(t *testing.T) {
	for about, want := range map[string]string{
		`3`:                                               `no object "patchbay"`,
		`{"parameters": {}, "nodes": 1}`:                  "patchbay.nodes is not known",
		`{"about": "x"}`:                                  "patchbay.parameters: want an object",
		`{"parameters": {"a": "6"}}`:                      `parameter a: want "node.input"`,
		`{"parameters": {"a": 6}}`:                        `parameter a: want "node.input"`,
		`{"parameters": {"a": []}}`:                       `parameter a: want "node.input"`,
		`{"parameters": {"a": "9.text"}}`:                 "parameter a: there is no node 9; there are 3, 5, 5.a, 6, 7, 8",
		`{"parameters": {"a": "6.txt"}}`:                  "node 6 (CLIPTextEncode) has no input txt; it has text, clip",
		`{"parameters": {"a": "6.clip"}}`:                 "is of type CLIP, which is no value",
		`{"parameters": {"a": "3.latent_image"}}`:         "is linked to another node",
		`{"parameters": {"a": ["6.text", "3.seed"]}}`:     "its inputs are of the types STRING and INT",
		`{"parameters": {"b": "3.seed", "a": "3.model"}}`: "parameter a: input model",
		`{"parameters": {"a": "3.seed"}}, "10": {"class_type": "Nobody"}, "11": 3`: "",
	} {
		_, err := parsed(t, about)
		if want == "" {
			if err != nil {
				t.Errorf("%s is refused: %v; what is wrong with other nodes is for validation", about, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "template heart: ") {
			t.Errorf("%s is answered with %v, want %s", about, err, want)
		}
	}
	for _, text := range []string{"", "[]", "{", `"x"`, "{}"} {
		if _, err := template.Parse("x", []byte(text), describe(t)); err == nil {
			t.Errorf("the file %q is taken", text)
		}
	}
}

// TestFolder opens templates by name, and names that lead elsewhere.
func TestFolder(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "templates")
	if err := os.MkdirAll(filepath.Join(dir, "sub.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := `{"patchbay": {"parameters": {"prompt": "6.text"}}, ` + flow + `}`
	for _, name := range []string{"templates/good.json", "templates/other.txt", "templates/.hidden.json", "secret.json"} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "secret.json"), filepath.Join(dir, "link.json")); err != nil {
		t.Fatal(err)
	}
	f := template.Folder{Dir: dir, Describe: describe(t)}
	if got := strings.Join(f.List(), " "); got != ".hidden good link" {
		t.Errorf("the templates are %s", got)
	}
	if tp, err := f.Open("good"); err != nil || tp.Name != "good" {
		t.Errorf("good: %v", err)
	}
	for name, code := range map[string]string{
		"other": fault.NoTemplate, "": fault.NoTemplate, "../secret": fault.NoTemplate, "good\x00": fault.NoTemplate,
		"link": fault.BadWorkflow, "sub": fault.BadWorkflow, ".hidden": fault.BadWorkflow,
	} {
		if _, err := f.Open(name); !fault.Is(err, code) {
			t.Errorf("%q is answered with %v, want %s", name, err, code)
		}
	}
	if _, err := (template.Folder{}).Open("good"); !fault.Is(err, fault.NoTemplate) {
		t.Errorf("without a folder: %v", err)
	}
}
