// Package source says where the weights of a diffusion model or a text encoder come from, as plain data that can be
// sent to another process: a checkpoint with the hash of its header, and the adapters on it. A Loader makes models of
// it. It knows files and families through package models; it knows no node, no rank and no plan.
package source

import (
	"errors"
	"fmt"
	"os"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/models/weights"
)

// File is a checkpoint, one file or several, whose header has been read.
type File struct {
	Path    string
	Hash    string // of the header
	Size    int64  // bytes of all files
	Changed int64  // combined modification times (Modified): files with equal headers may have other weights
	Wide    bool   // quantized weights become f32, not bf16
	Torch   bool   // may be in torch.save's format
	// Rounded is the fp8 type that weights are rounded to when they are read; 0: none.
	Rounded engine.DType
}

// Stat opens the checkpoint at path and describes it; the caller closes the file. Errors are those of weights.Open.
func Stat(path string, wide bool) (File, *weights.File, error) {
	return stat(File{Path: path, Wide: wide})
}

// StatTorch is Stat for files that may be in torch.save's format. Errors are those of weights.OpenTorch.
func StatTorch(path string) (File, *weights.File, error) { return stat(File{Path: path, Torch: true}) }

func stat(f File) (File, *weights.File, error) {
	file, err := f.open()
	if err != nil {
		return f, nil, err
	}
	f.Hash, f.Size, f.Changed = file.HeaderHash(), file.Size(), Modified(file.Paths())
	return f, file, nil
}

// Key identifies the file and its content.
func (f File) Key() string {
	key := fmt.Sprintf("%s#%s@%x", f.Path, f.Hash, f.Changed)
	if f.Rounded != 0 {
		key += "~" + f.Rounded.String()
	}
	return key
}

// Hold opens the file or files for as long as the caller needs them. It returns the error of datafile.Changed if they
// have changed since Stat or cannot be read.
func (f File) Hold() (*weights.File, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	if file.HeaderHash() != f.Hash || Modified(file.Paths()) != f.Changed {
		_ = file.Close() // it has not been used
		return nil, datafile.Changed(f.Path, errors.New("it has changed since the workflow began; run it again"))
	}
	return file, nil
}

// With opens the file or files, calls use and closes them. It returns the error of use, or that of Hold.
func (f File) With(use func(*weights.File) error) (err error) {
	file, err := f.Hold()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	defer datafile.Catch(&err)
	return use(file)
}

func (f File) open() (*weights.File, error) {
	if f.Torch {
		return weights.OpenTorch(f.Path)
	}
	form := engine.BF16
	if f.Wide {
		form = engine.F32
	}
	file, err := weights.Open(f.Path, form)
	if err == nil && f.Rounded != 0 {
		file.Round(f.Rounded)
	}
	return file, err
}

// Modified combines the modification times of files, in nanoseconds, into one number. A missing file counts as 0.
func Modified(paths []string) int64 {
	all := int64(0)
	for _, path := range paths {
		all *= 31
		if info, err := os.Stat(path); err == nil {
			all += info.ModTime().UnixNano()
		}
	}
	return all
}
