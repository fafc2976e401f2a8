// Package tests checks the repository as a whole, from outside: its structure in this file, the running program in the
// others.
package tests

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"patchbay/tests/harness"
)

// layers are the top-level folders in the order data flows. A package may import its own layer and those after it.
var layers = []string{"cli", "daemon", "ipc", "node", "parallel", "models", "engine"}

// leaves are the packages beside the layers, which import nothing of the program.
var leaves = []string{"array", "fault"}

// rooms returns the packages of each layer that is split into several, in import order: a room may import those before
// it. "." is the folder of the layer itself.
func rooms() map[string][]string {
	return map[string][]string{
		"cli":    {"console", "settings", "workflow", "download", "plan", "bench", "top", "mcp", "."},
		"daemon": {"."},
		"node": {
			"pyjson", "pyregex", "lru", "picture/resample", "picture", "editor", "files", "value", "media", "graph", "template",
			"classes",
		},
		"parallel": {
			"comm", "comm/deferred", "comm/localcuda", "plan", "scope", "comm/nccl", "comm/stream", "comm/trial",
			"hardware", "rank", "process", "forecast", "remote", "resume", "request", "leader",
			"denoise", ".",
		},
		"ipc": {
			"wire", "bulk", "message", "register", "client", "meter", "rights", "broker", "jobs", "serve", "webhook", "traces",
			"web", "spawn", "worker",
		},
	}
}

// testOnly reports whether a folder is a package that only tests import: ipc/ipctest, ipc/wire/wiretest.
func testOnly(dir string) bool { return roomOf(dir) != "" && strings.HasSuffix(dir, "test") }

// roomOf returns the layer of a folder if that layer is split into rooms, else "".
func roomOf(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	if rooms()[top] == nil {
		return ""
	}
	return top
}

// room returns the name of a folder among the rooms of its layer.
func room(layer, dir string) string {
	if dir == layer {
		return "."
	}
	return dir[len(layer)+1:]
}

// lineCap is the maximum number of lines of a source file.
const lineCap = 600

// goFile is one parsed source file.
type goFile struct {
	path, dir string
	syntax    *ast.File
	test      bool
}

// sources calls f with every file below top whose name ends in one of the suffixes, by path relative to top.
func sources(t *testing.T, top string, f func(path string), suffixes ...string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == ".git" || name == "bin" || name == "testdata" || name == "node_modules" || name == ".venv" {
				return filepath.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(name, s) {
				rel, _ := filepath.Rel(top, path)
				f(filepath.ToSlash(rel))
				return nil
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var (
	parsing sync.Mutex
	parsed  []goFile
)

// parse parses every Go file of the repository, once for all tests.
func parse(t *testing.T) []goFile {
	t.Helper()
	parsing.Lock()
	defer parsing.Unlock()
	if parsed != nil {
		return parsed
	}
	top := harness.Root(t)
	var out []goFile
	sources(t, top, func(path string) {
		syntax, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, goFile{path, filepath.ToSlash(filepath.Dir(path)), syntax, strings.HasSuffix(path, "_test.go")})
	}, ".go")
	if len(out) < 20 {
		t.Fatalf("found only %d Go files below %s", len(out), top)
	}
	parsed = out
	return out
}

func layerOf(dir string) int { return slices.Index(layers, strings.Split(dir, "/")[0]) }

func imports(f goFile) []string {
	var out []string
	for _, im := range f.syntax.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		out = append(out, p)
	}
	return out
}

// cgo are the folders that may use cgo.
var cgo = []string{
	"engine/cpu", "engine/cpu/kernels", "engine/cpu/emulated", "engine/cuda", "engine/cuda/driver", "engine/cuda/lt",
	"engine/cuda/dnn", "engine/cuda/nccl",
}

// badImport says what is wrong when a non-test file in dir imports the package at path. It returns "" if nothing is.
func badImport(dir, path string) string {
	if path == "C" {
		if !slices.Contains(cgo, dir) {
			return "cgo outside engine/cpu and engine/cuda"
		}
		return ""
	}
	inner, ours := strings.CutPrefix(path, "patchbay/")
	if dir == "daemon" && strings.HasPrefix(path, "github.com/spf13/") {
		return "the daemon knows a command line"
	}
	if !ours {
		return ""
	}
	if slices.Contains(leaves, dir) {
		return "a leaf imports a package of the program"
	}
	if dir == "." && inner != "cli" {
		return "main does more than to call cli"
	}
	if strings.HasPrefix(inner, "tests/") || testOnly(inner) {
		return "code imports tests"
	}
	if bad := badCUDA(dir, inner); bad != "" {
		return bad
	}
	if layer := roomOf(dir); layer != "" && roomOf(inner) == layer {
		from, to := slices.Index(rooms()[layer], room(layer, dir)), slices.Index(rooms()[layer], room(layer, inner))
		if from < 0 || to < 0 || to > from {
			return "import points up among the rooms of " + layer
		}
	}
	from, to := layerOf(dir), layerOf(inner)
	if from >= 0 && to >= 0 && to < from {
		return "import points up: " + layers[from] + " -> " + layers[to]
	}
	contracts := []string{"models/dit", "models/sampling", "models/vae", "models/latent"}
	if layers[max(from, 0)] == "parallel" && strings.HasPrefix(inner, "models") && !slices.Contains(contracts, inner) {
		return "parallel imports more of models than its contract packages"
	}
	return ""
}

// badCUDA says what is wrong with an import among the packages of engine/cuda: the driver may import only the list of
// libraries, a library only that list and the driver. Only engine/cuda itself imports several libraries.
func badCUDA(dir, inner string) string {
	_, from, inside := strings.Cut(dir, "engine/cuda/")
	if to, of := strings.CutPrefix(inner, "engine/cuda"); inside && of && to != "/library" && (from == "driver" ||
		to != "/driver") {
		return "import points up among the packages of engine/cuda"
	}
	return ""
}

func TestLayoutImportsPointDown(t *testing.T) {
	for _, f := range parse(t) {
		if f.test || testOnly(f.dir) || layerOf(f.dir) < 0 && f.dir != "." && !slices.Contains(leaves, f.dir) ||
			strings.Contains(f.dir, "goldenweights") ||
			strings.Contains(f.dir, "optest") {
			continue
		}
		for _, p := range imports(f) {
			if bad := badImport(f.dir, p); bad != "" {
				t.Errorf("%s imports %s: %s", f.path, p, bad)
			}
		}
	}
}

// TestLayoutNoFileIsMapped checks that only anonymous memory is mapped, which clients share and nobody can shrink: a
// read of a mapped file ends the process if somebody cuts the file or its disk fails.
func TestLayoutNoFileIsMapped(t *testing.T) {
	const shared = "ipc/bulk"
	mapping := 0
	for _, f := range parse(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || call.Sel.Name != "Mmap" && call.Sel.Name != "MmapPtr" && call.Sel.Name != "SYS_MMAP" {
				return true
			}
			if mapping++; f.dir != shared {
				t.Errorf("%s uses %s: read the file (engine/datafile)", f.path, call.Sel.Name)
			}
			return true
		})
	}
	if mapping == 0 {
		t.Errorf("found no call of Mmap, want those of %s", shared)
	}
}

// forTests are packages that only tests import, including everything below them.
var forTests = []string{
	"engine/cpu/emulated", "engine/optest", "models/goldenrun",
	"models/weights/goldenweights", "parallel/comm/commtest", "parallel/comm/deferred", "tests",
}

func TestLayoutNothingForTestsIsShipped(t *testing.T) {
	imported := map[string][]string{}
	for _, f := range parse(t) {
		if !f.test {
			imported[f.dir] = append(imported[f.dir], imports(f)...)
		}
	}
	seen, todo := map[string]bool{}, []string{"."}
	for len(todo) > 0 {
		dir := todo[0]
		todo = todo[1:]
		for _, p := range imported[dir] {
			inner, ours := strings.CutPrefix(p, "patchbay/")
			if !ours || seen[inner] {
				continue
			}
			seen[inner] = true
			todo = append(todo, inner)
			for _, only := range forTests {
				if strings.HasPrefix(inner+"/", only+"/") {
					t.Errorf("%s, which is in the program, imports %s, which is for tests", dir, inner)
				}
			}
		}
	}
	if !seen["engine/cpu/kernels"] {
		t.Errorf("found only %d packages in the program, want its kernels among them", len(seen))
	}
}

func TestLayoutRulesCatchViolations(t *testing.T) {
	for _, c := range []struct{ dir, path string }{
		{"fault", "patchbay/engine"},
		{"array", "patchbay/fault"},
		{"engine/ref", "patchbay/models/dit"},
		{"models/flux", "patchbay/parallel"},
		{"parallel", "patchbay/models/flux"},
		{"node/graph", "patchbay/ipc"},
		{"node/graph", "C"},
		{"engine/cuda/library", "C"},
		{"engine/cuda/driver", "patchbay/engine/cuda"},
		{"engine/cuda/lt", "patchbay/engine/cuda/dnn"},
		{"engine/cuda/nccl", "patchbay/engine/cuda"},
		{"node/graph", "patchbay/node/classes"},
		{"node/lru", "patchbay/node/files"},
		{"node/attic", "patchbay/node/pyjson"},
		{"ipc/serve", "patchbay/tests/golden"},
		{"ipc/wire", "patchbay/ipc/message"},
		{"ipc/jobs", "patchbay/ipc/serve"},
		{"ipc/client", "patchbay/ipc/jobs"},
		{"ipc/wire", "patchbay/ipc/news"},
		{"ipc/serve", "patchbay/ipc/ipctest"},
		{"ipc/client", "patchbay/ipc/wire/wiretest"},
		{"ipc/serve", "patchbay/daemon"},
		{"daemon", "patchbay/cli/console"},
		{"daemon", "github.com/spf13/pflag"},
		{"cli/console", "patchbay/cli/settings"},
		{"cli/plan", "patchbay/cli"},
		{"cli/attic", "patchbay/cli/console"},
		{".", "patchbay/daemon"},
	} {
		if badImport(c.dir, c.path) == "" {
			t.Errorf("%s importing %s was not caught", c.dir, c.path)
		}
	}
	for dir, path := range map[string]string{
		"ipc/serve": "patchbay/engine", "ipc/worker": "patchbay/ipc/wire", "cli": "patchbay/cli/plan",
		"cli/bench": "patchbay/daemon", ".": "patchbay/cli",
	} {
		if bad := badImport(dir, path); bad != "" {
			t.Errorf("%s may import %s, got %q", dir, path, bad)
		}
	}
}

// TestLayoutRoomsAreListed checks that a split layer has exactly the rooms in the list.
func TestLayoutRoomsAreListed(t *testing.T) {
	count := map[string]int{}
	for _, f := range parse(t) {
		if !f.test && layerOf(f.dir) >= 0 {
			count[f.dir]++
		}
	}
	for layer, names := range rooms() {
		for _, name := range names {
			dir := path.Join(layer, name)
			if count[dir] == 0 {
				t.Errorf("%s has no files and is a room of %s", dir, layer)
			}
			delete(count, dir)
		}
	}
	for dir := range count {
		if roomOf(dir) != "" && !testOnly(dir) {
			t.Errorf("%s is no room of its layer", dir)
		}
	}
}

func TestLayoutFilesAreSmall(t *testing.T) {
	top := harness.Root(t)
	sources(t, top, func(path string) {
		if strings.HasPrefix(path, "examples/") {
			return
		}
		f, err := os.Open(filepath.Join(top, path))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		n := 0
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			n++
		}
		if n > lineCap {
			t.Errorf("%s has %d lines, the cap is %d", path, n, lineCap)
		}
	}, ".go", ".c", ".h", ".inc", ".cu", ".py", ".sh")
}

func TestLayoutPackagesAreDescribed(t *testing.T) {
	doc := map[string]string{}
	for _, f := range parse(t) {
		if f.test {
			continue
		}
		if _, seen := doc[f.dir]; !seen {
			doc[f.dir] = ""
		}
		if f.syntax.Doc != nil && len(f.syntax.Doc.Text()) > len(doc[f.dir]) {
			doc[f.dir] = f.syntax.Doc.Text()
		}
	}
	for dir, text := range doc {
		if dir == "." || strings.HasPrefix(dir, "tools") || strings.HasPrefix(dir, "examples") {
			continue
		}
		if !strings.HasPrefix(text, "Package ") && !strings.HasPrefix(text, "Command ") {
			t.Errorf("package in %s has no comment that starts with \"Package\" or \"Command\"", dir)
		}
	}
}

func TestLayoutNamesAndState(t *testing.T) {
	banned := []string{"util", "utils", "common", "helpers", "types", "base", "core", "misc"}
	for _, f := range parse(t) {
		if slices.Contains(banned, filepath.Base(f.dir)) {
			t.Errorf("%s: package name says nothing", f.path)
		}
		if f.test || layerOf(f.dir) < 0 {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init function", f.path)
			}
		}
	}
}

// TestLayoutComparisonsSeeNaN checks that no test asks `math.Abs(got-want) > bound`, which is false for NaN, so that
// NaN would pass. Tests must ask !(... <= bound).
func TestLayoutComparisonsSeeNaN(t *testing.T) {
	for _, f := range parse(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			c, ok := n.(*ast.BinaryExpr)
			if !f.test || !ok || c.Op != token.GTR && c.Op != token.GEQ {
				return true
			}
			if call, ok := c.X.(*ast.CallExpr); ok {
				if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Abs" {
					t.Errorf("%s: a comparison that NaN passes: math.Abs(...) %s bound", f.path, c.Op)
				}
			}
			return true
		})
	}
}

// TestLayoutSkipsHaveReasons checks that whatever skips a test says why, and that each kind of silence is noticed.
func TestLayoutSkipsHaveReasons(t *testing.T) {
	found := 0
	for _, f := range parse(t) {
		silent, all := skips(f.syntax)
		found += all
		for _, s := range silent {
			t.Errorf("%s: a test is skipped without a reason: %s", f.path, s)
		}
	}
	if found < 100 {
		t.Errorf("found %d skips, want 100 or more", found)
	}
	for _, planted := range []string{
		`t.SkipNow()`, `t.Skip()`, `t.Skip("")`, `t.Skip(" ")`, "b.Skip(``)", `tb.Skipf("", x)`, `s.T.Skipf("%v")`,
	} {
		text := "package p\n\nfunc f() { " + planted + " }\n"
		file, err := parser.ParseFile(token.NewFileSet(), "planted.go", text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if silent, _ := skips(file); len(silent) != 1 {
			t.Errorf("%s passes for a reason", planted)
		}
	}
}

// TestLayoutShorterTestsExist checks that a test that a skip names in its place exists and is not skipped itself when
// tests are short.
func TestLayoutShorterTestsExist(t *testing.T) {
	reasons, tests := map[string]string{}, map[string]bool{} // reasons of long tests, by name
	for _, f := range parse(t) {
		for name, reason := range longTests(f.syntax, tests) {
			reasons[name] = reason
		}
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for name, reason := range reasons {
		for _, other := range named.FindAllString(reason, -1) {
			if !tests[other] || reasons[other] != "" {
				t.Errorf("%s is skipped for %s, which there is: %v, long: %q", name, other, tests[other], reasons[other])
			}
		}
	}
	if len(reasons) < 50 {
		t.Errorf("found %d long tests, want 50 or more", len(reasons))
	}
}

// longTests returns the reasons of the long tests of a file by the names of the tests, and adds all its tests to all.
func longTests(file *ast.File, all map[string]bool) map[string]string {
	out := map[string]string{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Test") || f.Body == nil {
			continue
		}
		all[f.Name.Name] = true
		for _, s := range f.Body.List { // at the beginning: a skip in a subtest is another matter
			short, ok := s.(*ast.IfStmt)
			if !ok || len(short.Body.List) != 1 {
				continue
			}
			ast.Inspect(short.Body, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, `"long: `) {
					out[f.Name.Name] = text.Value
				}
				return true
			})
		}
	}
	return out
}

// skips returns the calls in a file that skip a test without a text of two words, and how many skip one at all.
func skips(file *ast.File) (silent []string, all int) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Skip" && s.Sel.Name != "Skipf" && s.Sel.Name != "SkipNow" {
			return true
		}
		of := s.X // a test: t, b, tb, or the field t of something
		if field, ok := of.(*ast.SelectorExpr); ok {
			of = field.Sel
		}
		if id, ok := of.(*ast.Ident); !ok || !slices.Contains([]string{"t", "T", "b", "tb", "tt", "f"}, id.Name) {
			return true
		}
		all++
		if len(call.Args) > 0 {
			if text, ok := call.Args[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
				if reason, err := strconv.Unquote(text.Value); err == nil && len(strings.Fields(reason)) > 1 {
					return true
				}
			}
		}
		silent = append(silent, s.Sel.Name)
		return true
	})
	return silent, all
}
