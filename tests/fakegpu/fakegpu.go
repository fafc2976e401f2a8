// Package fakegpu builds a libcuda.so.1 that needs no GPU, for tests of engine/cuda: the driver's functions on the CPU
// (fake/libcuda.cc) and the very kernels of engine/cuda, compiled by g++ with every CUDA thread a fiber (fake/fibre.h).
// With FAKEGPU_FROM=ptx the kernels are not g++'s: they are what the committed PTX says, translated instruction by
// instruction (package ptx), with races found and approximate units as inexact as they may be (fake/ptx.h).
// Its subfolder nccl has a libnccl.so.2 (fake/nccl.cc).
package fakegpu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"patchbay/engine/cuda/compiled"
	"patchbay/tests/fakegpu/ptx"
)

// flags compile kernels and runtime. The compiler fuses no multiplication with an addition unless the source says so,
// as in the formulas.
var flags = []string{
	"-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-fvisibility=hidden",
	"-Wall", "-Werror",
	"-Wno-unknown-pragmas", "-Wno-unused-function",
}

// Change is a planted fault: in File (a base name), New replaces Old, which must occur exactly once. A File named
// NAME.ptx is the PTX of NAME.cu, from which the kernels are then built; there Old is a regular expression with at
// least one match, and all are replaced.
type Change struct{ File, Old, New string }

func (c *Change) apply(sources map[string]string) error {
	text := sources[c.File]
	if filepath.Ext(c.File) == ".ptx" {
		old, err := regexp.Compile(c.Old)
		if err != nil {
			return err
		}
		if sources[c.File] = old.ReplaceAllString(text, c.New); sources[c.File] == text {
			return fmt.Errorf("the fault in %s changes nothing: %q", c.File, c.Old)
		}
		return nil
	}
	if n := strings.Count(text, c.Old); n != 1 {
		return fmt.Errorf("the fault in %s finds its place %d times, want 1: %q", c.File, n, c.Old)
	}
	sources[c.File] = strings.Replace(text, c.Old, c.New, 1)
	return nil
}

// Library returns a directory with the fake libcuda.so.1, which is rebuilt when its sources or flags have changed.
// Without g++ or on another architecture than amd64 the test is skipped with NOT RUN. Changes apply to copies of the
// sources.
func Library(t testing.TB, changes ...Change) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("NOT RUN: the fake device switches stacks by hand, on amd64 only")
	}
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("NOT RUN: g++ is not installed (apt-get install g++)")
	}
	dir, err := Build(moduleRoot(t), changes...)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Build is Library for the module in folder root, without a test.
func Build(root string, changes ...Change) (string, error) {
	sources := make(map[string]string)
	patterns := []string{
		"engine/cuda/driver/driver.h", "engine/cuda/lt/cublaslt.h", "engine/cuda/dnn/cudnn9.h", "engine/cuda/nccl/nccl.h",
		"tests/fakegpu/fake/*",
	}
	translated := os.Getenv("FAKEGPU_FROM") == "ptx" || slices.ContainsFunc(changes, func(c Change) bool {
		return filepath.Ext(c.File) == ".ptx"
	})
	if translated {
		if err := modules(sources); err != nil {
			return "", err
		}
	} else {
		patterns = append(patterns, "engine/cuda/kernels/*.cu", "engine/cuda/kernels/*.h", "engine/cuda/kernels/*.cuh")
	}
	for _, pattern := range patterns {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(names) == 0 {
			return "", fmt.Errorf("no sources %s", pattern)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			sources[filepath.Base(name)] = string(text)
		}
	}
	for _, c := range changes {
		if err := c.apply(sources); err != nil {
			return "", err
		}
	}
	for name, text := range sources {
		if filepath.Ext(name) != ".ptx" {
			continue
		}
		kernels, err := ptx.Translate(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		delete(sources, name)
		for _, k := range kernels {
			sources[k.Name+translation] = k.Code
		}
	}
	return build(sources)
}

// translation ends the names of units that were translated from PTX, each of one kernel.
const translation = ".ptx.cc"

// modules adds the committed PTX of each source of kernels, named NAME.ptx.
func modules(sources map[string]string) error {
	all, err := compiled.PTX()
	for _, m := range all {
		sources[m.Name+".ptx"] = string(m.Image)
	}
	return err
}

// moduleRoot returns the directory of go.mod above the test.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

// build compiles sources (texts by base name) into the cache and returns the directory of the library. Objects are
// cached by the hash of everything they are made from, so that a fault in one kernel recompiles that kernel alone.
func build(sources map[string]string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "patchbay-fakegpu")
	var units []string
	for name := range sources {
		if ext := filepath.Ext(name); ext == ".cu" || ext == ".cc" {
			units = append(units, name)
		}
	}
	hash := func(names ...string) string {
		text := fmt.Sprintln(flags)
		for _, name := range sorted(names) {
			text += fmt.Sprintf("%s %d\n%s", name, len(sources[name]), sources[name])
		}
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:10])
	}
	dir := filepath.Join(cache, "libraries-"+hash(slices.Collect(maps.Keys(sources))...))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := os.MkdirTemp("", "fakegpu")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	objects := make([]string, len(units))
	errs := make([]error, len(units))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, unit := range sorted(units) {
		objects[i] = filepath.Join(cache, hash(included(sources, unit)...)+".o")
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = object(work, unit, objects[i])
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	// The folder appears atomically and never changes: a libcuda.so.1 that another process replaced while this one runs
	// would be loaded a second time through libnccl.so.2, with its own state.
	made, err := os.MkdirTemp(cache, "making")
	if err != nil {
		return "", err
	}
	if err = link(made, objects, sorted(units)); err == nil {
		err = os.Rename(made, dir)
	}
	if err != nil {
		_ = os.RemoveAll(made)
		if _, there := os.Stat(dir); there != nil { // otherwise another process was first
			return "", err
		}
	}
	return dir, nil
}

// include is a line that includes a source.
var include = regexp.MustCompile(`(?m)^\s*#include [<"]([^">]+)[>"]`)

// included returns a source and all others that it includes, itself or through others.
func included(sources map[string]string, unit string) []string {
	all := []string{unit}
	for i := 0; i < len(all); i++ {
		for _, m := range include.FindAllStringSubmatch(sources[all[i]], -1) {
			if _, ok := sources[m[1]]; ok && !slices.Contains(all, m[1]) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// libraries are the units that each become a shared library on top of the driver's. All others are part of the
// driver's.
var libraries = map[string]string{"libcublasLt.cc": "libcublasLt.so.12", "libcudnn.cc": "libcudnn.so.9"}

// link links the objects of units into shared libraries in dir, the driver's first.
func link(dir string, objects, units []string) error {
	const driver = "libcuda.so.1"
	shared := func(name string, args ...string) error {
		to := filepath.Join(dir, name)
		return run("g++", append([]string{"-shared", "-Wl,-soname," + name, "-o", to}, append(args, "-ldl")...)...)
	}
	var driverObjects []string
	for i, unit := range units {
		if libraries[unit] == "" {
			driverObjects = append(driverObjects, objects[i])
		}
	}
	if err := shared(driver, driverObjects...); err != nil {
		return err
	}
	for i, unit := range units {
		if name := libraries[unit]; name != "" {
			if err := shared(name, "-Wl,-rpath,$ORIGIN", objects[i], "-L"+dir, "-l:"+driver); err != nil {
				return err
			}
		}
	}
	// one file, because NCCL works on the driver's streams; in its own folder, because only some tests may find it
	if err := os.Mkdir(filepath.Join(dir, "nccl"), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("../"+driver, filepath.Join(dir, "nccl", "libnccl.so.2")); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// object compiles one unit unless its object file exists.
func object(work, unit, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	return place(to, func(at string) error {
		args := slices.Clone(flags)
		if strings.HasSuffix(unit, translation) { // long, and full of what the compiler drops
			args = append(args, "-O1", "-w", "-fwrapv")
		}
		return run("g++", append(args, "-I", work, "-x", "c++", "-c", filepath.Join(work, unit), "-o", at)...)
	})
}

// place makes a file under another name and renames it, so that no process sees half of it.
func place(to string, make func(at string) error) error {
	at := fmt.Sprintf("%s.%x", to, rand.Uint64())
	if err := make(at); err != nil {
		return err
	}
	return os.Rename(at, to)
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
