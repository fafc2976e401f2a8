// Package compiled holds the kernels of engine/cuda/kernels as NVIDIA's compilers made them: as PTX, which the driver
// compiles for any GPU of compute capability 8.0 or newer, and as code for some of these, which it loads as it is.
package compiled

import (
	"archive/zip"
	"bytes"
	"compress/bzip2"
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// archive has the members NAME.ptx and NAME.sm_XX for every NAME.cu, compressed by bzip2. `make cuda-kernels` writes
// it, and `make cuda-check` compares it with what the compilers give.
//
//go:embed kernels.zip
var archive []byte

// Module is a compiled source of kernels.
type Module struct {
	Name    string   // of the source, without .cu
	Image   []byte   // PTX below a line that names the source and its hash, or an ELF file (see Code)
	Kernels []string // names of those in it
}

// The heads of kernels in PTX, and the names of their sections in ELF files. Package debug/elf refuses NVIDIA's files,
// which have another version.
var (
	entry   = regexp.MustCompile(`\.visible \.entry (\w+)\(`)
	section = regexp.MustCompile(`\x00\.text\.(\w+)\x00`)
)

// PTX returns the PTX of every source, sorted by name. It is unpacked once. It fails if the archive is damaged.
func PTX() ([]Module, error) { return opened().modules(".ptx") }

// Code returns the code of every source for GPUs of a compute capability, sorted by name, and the architecture that it
// was made for, such as sm_86: that of the same major version with the largest minor version that is not above the
// GPU's, which is what such a GPU runs. arch is empty if there is none. It fails if the archive is damaged.
func Code(major, minor int) (arch string, all []Module, err error) {
	u := opened()
	best := -1
	for _, a := range u.architectures() {
		if a/10 == major && a%10 <= minor {
			best = max(best, a)
		}
	}
	if best < 0 {
		return "", nil, u.err
	}
	arch = "sm_" + strconv.Itoa(best)
	all, err = u.modules("." + arch)
	return arch, all, err
}

// unpacked is an archive and what was read of it.
type unpacked struct {
	mu    sync.Mutex
	files []*zip.File
	read  map[string][]Module // by what ends the names of the members
	err   error
}

var opened = sync.OnceValue(func() *unpacked { return open(archive) })

func open(data []byte) *unpacked {
	u := &unpacked{read: map[string][]Module{}}
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		u.err = damaged(err)
		return u
	}
	const method = 12 // bzip2, in the list of the zip format
	r.RegisterDecompressor(method, func(r io.Reader) io.ReadCloser { return io.NopCloser(bzip2.NewReader(r)) })
	u.files = r.File
	return u
}

func damaged(err error) error {
	return fmt.Errorf("the GPU kernels in this program (kernels.zip) are damaged: %w", err)
}

// architectures lists those of all members with code, as 10 * major + minor.
func (u *unpacked) architectures() (list []int) {
	for _, f := range u.files {
		if _, text, ok := strings.Cut(f.Name, ".sm_"); ok {
			if a, err := strconv.Atoi(text); err == nil {
				list = append(list, a)
			}
		}
	}
	return list
}

// modules reads the members whose names end with form.
func (u *unpacked) modules(form string) ([]Module, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if all := u.read[form]; all != nil || u.err != nil {
		return all, u.err
	}
	var all []Module
	for _, f := range u.files {
		name, ok := strings.CutSuffix(f.Name, form)
		if !ok {
			continue
		}
		m, err := module(name, f)
		if err != nil {
			return nil, damaged(fmt.Errorf("%s: %w", f.Name, err))
		}
		all = append(all, m)
	}
	u.read[form] = all
	return all, nil
}

func module(name string, f *zip.File) (Module, error) {
	m := Module{Name: name}
	r, err := f.Open()
	if err != nil {
		return m, err
	}
	defer func() { _ = r.Close() }()
	if m.Image, err = io.ReadAll(r); err != nil { // checks the sum of its bytes
		return m, err
	}
	names := section
	if strings.HasSuffix(f.Name, ".ptx") {
		names = entry
	}
	for _, found := range names.FindAllSubmatch(m.Image, -1) {
		m.Kernels = append(m.Kernels, string(found[1]))
	}
	return m, nil
}
